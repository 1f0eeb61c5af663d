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

// The least time between two warnings about a connection that breaks again and again.
constexpr int64_t kBetweenWarningsNs = 60'000'000'000;

// The most damages in a row without a whole message in between; more are no accident. At one
// damaged bit in 10^6, many times the rate of any worn cable, a message of 16 KiB comes through
// within 8 attempts in 99 % of the cases.
constexpr int kMostDamagesInARow = 32;

// Returns whether an error is an error of the other end, or of the way to the other end, rather
// than of this process. 0 stands for a connection that the peer closed.
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

// Returns the middle of a sentence about a failed connection. Frequent errors get words of their
// own, because the system's text does not name the host or the cause.
std::string ErrorText(int error) {
  if (error == 0) return "the peer closed the connection";
  if (error == EBADMSG) return "what came was damaged on its way";
  if (error == ETIMEDOUT) return "the peer's host acknowledges nothing any more (ETIMEDOUT)";
  const char* text = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  return fmt::format("{} ({})", text ? text : "unknown error", name ? name : std::to_string(error));
}

}  // namespace

// Only data sockets that helpers drive need the doorbell's descriptor.
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
  // A close with unread bytes would reset the connection instead of ending it in order.
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

// Runs on the loop's thread. One silent socket ends all sockets of the connection, because both
// ends begin anew with all of them.
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
  // The connection's thread sees its sockets end, and learns the reason from this store.
  silent_socket_.store(silent_socket, std::memory_order_release);
  // A reset tells the other end that the connection broke, over the sockets that are not silent. An
  // orderly end would tell the other end that this end is gone for good.
  for (const int fd : fds) ResetConnection(fd);
  return false;
}

// A helper thread, if there is one, drives a data socket as soon as it is attached.
void SocketChannel::AddDataSockets(std::vector<SocketStream> streams) {
  for (SocketStream& stream : streams) {
    data_sockets_.push_back(std::make_unique<DataSocket>(std::move(stream), direction_, doorbell_));
    const int index = static_cast<int>(data_sockets_.size()) - 1;
    if (helpers_->any()) helpers_->Attach(*data_sockets_.back(), index);
  }
}

// After DetachDataSockets no helper thread touches the data sockets or the memory of their pieces.
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

// Gives the pieces of a message to data sockets. `left` counts the unfinished pieces.
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

// The doorbell is silenced before the count of pieces is read. No piece is missed, because Arm
// compares the count again before the caller sleeps.
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
  // Data sockets that have just become idle count too, since their progress was not seen yet.
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

// After a replacement the first sockets' descriptors are named, because callers registered these.
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

// Returns roughly how many of the written bytes may not have reached the other end. A connection
// that is being made again counts as having at least one.
size_t SocketChannel::Undelivered() const {
  if (down_ || (resumer_ && resumer_->MayHaveMoved())) return 1;
  // TCP counts unacknowledged bytes. Other sockets do not support the call, and deliver at once.
  const auto undelivered = [](int fd) -> size_t {
    int waiting = 0;
    return ioctl(fd, SIOCOUTQ, &waiting) == 0 ? static_cast<size_t>(waiting) : 0;
  };
  size_t bytes = undelivered(control_.fd());
  // On connections that can be resumed, the messages of data sockets are held until the receiver
  // has acknowledged them. A data socket that was reset meanwhile would report undelivered bytes
  // for ever.
  for (const auto& socket : data_sockets_) bytes += resumable() ? 0 : undelivered(socket->fd());
  return bytes;
}

void SocketChannel::Shutdown() {
  shut_down_.store(true, std::memory_order_release);
  ShutdownSockets();
}

// Handles a failed read or write. The system's error is not always the cause: this process also
// shuts sockets down, when the host is silent or the peer offers new sockets.
Status SocketChannel::Lost(int error) {
  if (silent_socket_.load(std::memory_order_acquire) >= 0) error = ETIMEDOUT;
  // The old socket was shut down by this end, because the peer offers a new socket, or by the peer,
  // because this end offers one.
  if (error == 0 && resumer_ && (resumer_->Offered() || resumer_->IsTrying())) error = ECONNRESET;
  return error == 0 ? Fail(0) : Break(error);
}

// Begins to make the connection again, if resuming is allowed and the failure lies between the
// ends. In all other cases fails the connection.
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

// Closes all sockets, since both ends begin anew with all of them when one is broken. The
// descriptors of the first sockets stay open, because callers watch them.
void SocketChannel::DropSockets() {
  DetachDataSockets();
  resumer_->Use({});  // before descriptors are closed
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

// Returns whether the connection has new sockets. Fails when none come within
// TUTTI_RESUME_TIMEOUT_S, or none can come.
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

// Tries a lost path while the connection works by other paths. Returns whether it has moved.
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

// Both ends divide messages by the number of data sockets, hence the number must not change.
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
  // A shutdown during the exchange saw no sockets.
  return Check();
}

// A lost or regained path is always worth a warning. A connection that merely broke warns at most
// once in kBetweenWarningsNs, and is otherwise only logged.
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

// After Shutdown every socket error is a consequence of it, and the message says so.
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
    // A caller that is told of the failure may free the memory of unfinished messages.
    DetachDataSockets();
  }
  return failure_;
}

}  // namespace tutti
