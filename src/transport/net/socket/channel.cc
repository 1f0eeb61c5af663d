#include "transport/net/socket/channel.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "transport/net/socket/stripe.h"

namespace tutti {
namespace {

// A connection that breaks again and again warns at most once in this time.
constexpr int64_t kBetweenWarningsNs = 60'000'000'000;

// Damage that leaves no message whole so often in a row is no accident: at one damaged bit in 10^6,
// many times what any worn cable has, a message of 16 KiB comes through within 8 attempts in 99 %.
constexpr int kMostDamagesInARow = 32;

// Returns whether an error is one of the other end, or of the way to it, rather than of this
// process. 0 stands for a connection that was closed.
bool IsRemote(int error) {
  switch (error) {
    case 0:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EBADMSG:
      return true;
    default:
      return false;
  }
}

std::string ErrorText(int error) {
  if (error == 0) return "the peer closed the connection";
  if (error == EBADMSG) return "what came was damaged on its way";
  if (error == ETIMEDOUT) return "the peer's host acknowledges nothing any more (ETIMEDOUT)";
  const char* text = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  return fmt::format("{} ({})", text ? text : "unknown error", name ? name : std::to_string(error));
}

}  // namespace

Result<std::unique_ptr<SocketChannel>> SocketChannel::Create(
    SocketSet sockets, SocketDirection direction, std::shared_ptr<SocketHelpers> helpers) {
  UniqueFd event;
  if (!sockets.data.empty() && helpers->any()) {
    event.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.valid()) return ErrnoError(errno, "eventfd failed for a connection");
  }
  std::unique_ptr<SocketChannel> channel(
      new SocketChannel(std::move(sockets), direction, std::move(helpers), std::move(event)));
  TUTTI_TRY(channel->PrepareSockets());
  if (channel->silence_) channel->silence_->Add(channel.get());
  return channel;
}

SocketChannel::SocketChannel(SocketSet sockets, SocketDirection direction,
                             std::shared_ptr<SocketHelpers> helpers, UniqueFd event)
    : control_(std::move(sockets.control)),
      direction_(direction),
      resumer_(std::move(sockets.resumer)),
      resume_within_ns_(sockets.faults.resume_within_ns),
      silence_(std::move(sockets.faults.silence)),
      peer_(std::move(sockets.peer)),
      helpers_(std::move(helpers)),
      doorbell_(std::move(event)),
      num_data_sockets_(static_cast<int>(sockets.data.size())) {
  const MutexLock lock(sockets_mutex_);
  AddDataSockets(std::move(sockets.data));
}

SocketChannel::~SocketChannel() {
  if (silence_) silence_->Remove(this);
  // A socket that is closed with something unread resets the connection instead of ending it.
  std::array<std::byte, 1024> unread;
  while (::recv(control_.fd(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
  DetachDataSockets();
}

Status SocketChannel::PrepareSockets() {
  if (!silence_) return Status::Ok();
  for (const int fd : Fds()) TUTTI_TRY(silence_->Prepare(fd));
  return Status::Ok();
}

bool SocketChannel::LookForSilence(int64_t now_ns, int64_t dead_after_ns) {
  const MutexLock lock(sockets_mutex_);
  if (!control_.valid()) return false;
  const std::vector<int> fds = Fds();
  meters_.resize(fds.size());
  bool awaits_answer = false;
  int silent_socket = -1;
  for (size_t i = 0; i < fds.size(); ++i) {
    const Result<SignsOfLife> signs = ReadSignsOfLife(fds[i], now_ns);
    if (!signs.ok()) continue;
    awaits_answer |= signs->awaits_answer;
    if (meters_[i].Observe(*signs, now_ns, dead_after_ns)) silent_socket = static_cast<int>(i);
  }
  if (silent_socket < 0) return awaits_answer;
  // The thread that drives the connection sees its sockets end, and learns from this why they did.
  silent_socket_.store(silent_socket, std::memory_order_release);
  // The other end still hears from those that are not silent: an orderly end would tell it that
  // this end is gone for good.
  for (const int fd : fds) ResetConnection(fd);
  return false;
}

// A helper thread, where there are some, begins to drive a data socket as soon as it is attached.
void SocketChannel::AddDataSockets(std::vector<SocketStream> streams) {
  for (SocketStream& stream : streams) {
    data_sockets_.push_back(std::make_unique<DataSocket>(std::move(stream), direction_, doorbell_));
    const int index = static_cast<int>(data_sockets_.size()) - 1;
    if (helpers_->any()) helpers_->Attach(*data_sockets_.back(), index);
  }
}

// When this returns, no helper thread touches the data sockets any more, nor the memory that they
// work on.
void SocketChannel::DetachDataSockets() {
  for (size_t i = 0; helpers_->any() && i < data_sockets_.size(); ++i) {
    helpers_->Detach(*data_sockets_[i], static_cast<int>(i));
  }
}

Result<std::unique_ptr<NetMemory>> SocketChannel::Register(const NetRegion& region) const {
  if (region.kind != NetMemoryKind::kHost || region.dmabuf_fd >= 0) {
    return InvalidUsage("sockets send and receive memory of the host only");
  }
  return std::unique_ptr<NetMemory>(std::make_unique<PlainNetMemory>(region));
}

// Hands the pieces of a message to data sockets. `left` counts the pieces that are not yet done.
void SocketChannel::Push(std::byte* data, size_t bytes, uint64_t chunk, int used,
                         std::atomic<uint32_t>& left) {
  const Striping striping(bytes, chunk, used, num_data_sockets_);
  left.fetch_add(static_cast<uint32_t>(used), std::memory_order_relaxed);
  for (int i = 0; i < used; ++i) {
    const StripePiece piece = striping.At(i);
    data_sockets_[static_cast<size_t>(piece.socket)]->Push(data + piece.offset, piece.bytes, left);
    if (helpers_->any()) helpers_->Wake(piece.socket);
  }
}

Result<bool> SocketChannel::Progress() {
  NoteActivity();
  if (data_sockets_.empty()) return false;
  bool moved = false;
  if (helpers_->any()) {
    doorbell_.Silence();
  } else {
    for (const auto& socket : data_sockets_) moved |= socket->HasWork() && socket->Step();
  }
  const uint64_t completed = doorbell_.completed();
  moved |= completed != pieces_seen_;
  pieces_seen_ = completed;
  if (const int error = doorbell_.error(); error != SocketDoorbell::kNoError) {
    TUTTI_TRY(Lost(error));
  }
  return moved;
}

void SocketChannel::AppendDataWaits(std::vector<NetWait>& waits) const {
  bool helped = false;
  for (const auto& socket : data_sockets_) {
    if (!socket->HasWork()) continue;
    helped = true;
    if (!helpers_->any()) {
      waits.push_back(
          {socket->fd(), socket->direction() == SocketDirection::kSend ? EPOLLOUT : EPOLLIN});
    }
  }
  // Data sockets that have just become idle count too: what they did has not been seen yet.
  if (helpers_->any() && (helped || doorbell_.completed() != pieces_seen_)) {
    doorbell_.Arm(pieces_seen_);
    waits.push_back({doorbell_.event_fd(), EPOLLIN});
  }
}

std::vector<int> SocketChannel::Fds() const {
  std::vector<int> fds = {control_.fd()};
  for (const auto& socket : data_sockets_) fds.push_back(socket->fd());
  return fds;
}

void SocketChannel::AppendFds(std::vector<int>& fds) const {
  if (replaced_) {
    for (const UniqueFd& fd : first_sockets_) fds.push_back(fd.get());
  } else if (helpers_->any()) {
    fds.push_back(control_.fd());
  } else {
    const std::vector<int> all = Fds();
    fds.insert(fds.end(), all.begin(), all.end());
  }
  if (helpers_->any() && num_data_sockets_ > 0) fds.push_back(doorbell_.event_fd());
}

// Returns whether, and roughly how much of, what was written may not have reached the other end. A
// connection that is being made again counts as having something.
size_t SocketChannel::Undelivered() const {
  if (down_ || (resumer_ && resumer_->MayHaveMoved())) return 1;
  // TCP counts what is not yet acknowledged; other sockets do not know the call, and deliver at
  // once.
  const auto undelivered = [](int fd) -> size_t {
    int waiting = 0;
    return ioctl(fd, SIOCOUTQ, &waiting) == 0 ? static_cast<size_t>(waiting) : 0;
  };
  size_t bytes = undelivered(control_.fd());
  // What data sockets carry is held until the receiver has said that it has it, on connections that
  // can be resumed. A data socket that was reset meanwhile says for ever that something waits.
  for (const auto& socket : data_sockets_) bytes += resumable() ? 0 : undelivered(socket->fd());
  return bytes;
}

void SocketChannel::Shutdown() {
  shut_down_.store(true, std::memory_order_release);
  ShutdownSockets();
}

// A read or write has failed. The error that the system tells is not always the cause: sockets are
// also shut down by this process, when the host is silent or the peer offers new ones.
Status SocketChannel::Lost(int error) {
  if (silent_socket_.load(std::memory_order_acquire) >= 0) error = ETIMEDOUT;
  // This end shut the old socket down because the peer offers a new one, or the peer did because
  // this end does.
  if (error == 0 && resumer_ && (resumer_->Offered() || resumer_->IsTrying())) error = ECONNRESET;
  return error == 0 ? Fail(0) : Break(error);
}

// Begins to make the connection again where that is allowed and the failure is one of the way
// between the ends; else fails it.
Status SocketChannel::Break(int error) {
  if (!resumer_ || !IsRemote(error) || shut_down_.load(std::memory_order_acquire)) {
    return Fail(error);
  }
  if (down_) return Status::Ok();
  if (error == EBADMSG && ++damages_in_a_row_ > kMostDamagesInARow) {
    return Fail(RemoteError(
        "what came was damaged on its way {} times without one whole message in between: this way "
        "cannot be used (a bad NIC, cable, switch or driver at either end)",
        damages_in_a_row_));
  }
  down_ = true;
  broke_ns_ = NowNs();
  broken_by_ = error;
  const int silent_socket = silent_socket_.load(std::memory_order_acquire);
  DropSockets();
  resumer_->Begin(silent_socket);
  return Status::Ok();
}

// Closes all sockets: when one is broken, both ends begin anew with all of them. The descriptors of
// the first sockets stay open, because callers watch these.
void SocketChannel::DropSockets() {
  DetachDataSockets();
  resumer_->Use({});  // This comes before descriptors are closed.
  const MutexLock lock(sockets_mutex_);
  control_.Reset();
  for (const auto& socket : data_sockets_) socket->Reset();
  if (!replaced_) {
    first_sockets_.push_back(control_.Take());
    for (const auto& socket : data_sockets_) first_sockets_.push_back(socket->Take());
    replaced_ = true;
  }
  control_ = {};
  data_sockets_.clear();
  meters_.clear();
  silent_socket_.store(-1, std::memory_order_relaxed);
  doorbell_.Forgive();
  pieces_seen_ = doorbell_.completed();
}

// Returns whether the connection has new sockets. Fails when they do not come within
// TUTTI_RESUME_TIMEOUT_S, or cannot come.
Result<bool> SocketChannel::Resume() {
  Result<std::optional<Sockets>> sockets = resumer_->Step();
  if (!sockets.ok()) {
    return Fail(RemoteError("{}; {}", ErrorText(broken_by_), sockets.status().message()));
  }
  if (!sockets->has_value()) {
    if (NowNs() - broke_ns_ < resume_within_ns_) return false;
    return Fail(RemoteError(
        "{}, and the connection could not be made again within {} s (TUTTI_RESUME_TIMEOUT_S)",
        ErrorText(broken_by_), resume_within_ns_ / 1'000'000'000));
  }
  TUTTI_TRY(TakeSockets(std::move(**sockets)));
  return true;
}

// Tries a path that was lost while the connection works by others. Returns whether it has moved to
// new sockets.
Result<bool> SocketChannel::Move() {
  const int64_t now_ns = NowNs();
  if (!resumer_->TriesPath(now_ns)) return false;
  Result<std::optional<Sockets>> sockets = resumer_->Step();
  if (!sockets.ok()) {
    TUTTI_TRY(Break(ECONNRESET));
    return false;
  }
  if (!sockets->has_value()) return false;
  broke_ns_ = now_ns;
  DropSockets();
  (*sockets)->moved = true;
  TUTTI_TRY(TakeSockets(std::move(**sockets)));
  return true;
}

Status SocketChannel::TakeSockets(Sockets sockets) {
  if (sockets.data.size() != static_cast<size_t>(num_data_sockets_)) {
    return Fail(RemoteError("the connection was made again with {} data sockets instead of {}",
                            sockets.data.size(), num_data_sockets_));
  }
  moved_ = sockets.moved;
  {
    const MutexLock lock(sockets_mutex_);
    control_ = std::move(sockets.control);
    AddDataSockets(std::move(sockets.data));
  }
  resumer_->Use(Fds());
  down_ = false;
  if (const Status prepared = PrepareSockets(); !prepared.ok()) return Fail(prepared);
  // A shutdown that came meanwhile saw no sockets.
  return Check();
}

void SocketChannel::TellResumed(uint64_t repeated, std::string_view what) {
  const int64_t now_ns = NowNs();
  const std::string paths = resumer_->TakeNotice();
  std::string line = fmt::format("net Socket: the connection with {} ", peer_);
  if (!moved_) {
    line += fmt::format("broke ({}) and was made again after {} ms; {} {} are sent a second time",
                        ErrorText(broken_by_), (now_ns - broke_ns_) / 1'000'000, repeated, what);
    if (!paths.empty()) line += ". It " + paths;
  } else {
    line += paths.empty() ? "moved to other sockets" : paths;
  }
  const bool seldom = told_ns_ == 0 || now_ns - told_ns_ >= kBetweenWarningsNs;
  if (paths.empty() && (moved_ || !seldom)) {
    TUTTI_INFO(kLogNet, "{}", line);
    return;
  }
  told_ns_ = now_ns;
  TUTTI_WARN("{}", line);
}

void SocketChannel::ShutdownSockets() {
  if (resumer_) resumer_->Refuse();
  const MutexLock lock(sockets_mutex_);
  for (const int fd : Fds()) ::shutdown(fd, SHUT_RDWR);
}

Status SocketChannel::Fail(int error) {
  if (shut_down_.load(std::memory_order_acquire)) {
    return Fail(InternalError("this rank closed the connection"));
  }
  std::string sentence = ErrorText(error);
  if (IsRemote(error)) return Fail(RemoteError("{}", sentence));
  return Fail(SystemError("{}", sentence));
}

Status SocketChannel::Fail(Status status) {
  if (failure_.ok()) {
    failure_ = std::move(status);
    ShutdownSockets();
    // A caller that is told of the failure may free the memory of what was under way.
    DetachDataSockets();
  }
  return failure_;
}

}  // namespace tutti
