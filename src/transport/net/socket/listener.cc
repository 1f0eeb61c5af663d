#include "transport/net/socket/listener.h"

#include <net/if.h>

#include <chrono>
#include <cstring>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "bootstrap/wire.h"

namespace tutti {

// The sockets of a connection come in any order. The first socket says how many there are, and the
// set is complete when all have come.
Status ConnectionQueue::Add(SocketStream socket, const DataHello& hello, std::string peer) {
  const MutexLock lock(mutex_);
  auto found = partial_.find(hello.connection);
  if (found == partial_.end()) {
    if (partial_.size() + complete_.size() >= kMaxWaiting) {
      return RemoteError("{} connections wait to be accepted already", kMaxWaiting);
    }
    Partial fresh;
    fresh.sockets.data.resize(hello.data_sockets);
    fresh.missing = hello.data_sockets + size_t{1};
    found = partial_.emplace(hello.connection, std::move(fresh)).first;
  }
  Partial& partial = found->second;
  if (partial.sockets.data.size() != hello.data_sockets) {
    return RemoteError("its sockets disagree about their number");
  }
  SocketStream& place =
      hello.socket == 0 ? partial.sockets.control : partial.sockets.data[hello.socket - size_t{1}];
  if (place.valid()) return RemoteError("socket {} came twice", hello.socket);
  place = std::move(socket);
  if (hello.socket == 0) partial.sockets.peer = std::move(peer);
  if (hello.life == DataHello::kResumable) partial.sockets.resumable = hello.connection;
  if (--partial.missing > 0) return Status::Ok();
  complete_.push_back(std::move(partial.sockets));
  partial_.erase(found);
  arrived_.NotifyOne();
  return Status::Ok();
}

void ConnectionQueue::Fail(const Status& why) {
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = why;
  arrived_.NotifyAll();
}

// Complete sets are handed out even after a failure. The abort flag has no descriptor, hence the
// wait checks it every kAbortCheckMs.
Result<SocketSet> ConnectionQueue::Take(const WaitLimits& limits) {
  MutexLock lock(mutex_);
  while (complete_.empty()) {
    if (!failure_.ok()) return failure_;
    if (limits.Aborted())
      return InternalError("waiting for a peer's data connection: aborted by the caller");
    if (limits.deadline.Passed())
      return Timeout("waiting for a peer's data connection: none came before the deadline");
    arrived_.WaitFor(lock,
                     std::chrono::milliseconds(limits.deadline.RemainingMs(kAbortCheckMs) + 1));
    if (limits.follow == nullptr || !complete_.empty()) continue;
    const MutexUnlock free(mutex_);
    TUTTI_TRY(limits.Follow());
  }
  SocketSet sockets = std::move(complete_.front());
  complete_.pop_front();
  return sockets;
}

namespace {

// Owns a ResumePoint, to which the queues hold only a weak pointer. After the owner's end, sockets
// that offer to resume the connection are closed.
class AwaitedPoint final : public SocketResumer {
 public:
  explicit AwaitedPoint(std::shared_ptr<ResumePoint> point) : point_(std::move(point)) {}
  ~AwaitedPoint() override {
    point_->Refuse();
    point_->Use({});
  }
  void Begin(int silent_socket) override { point_->Begin(silent_socket); }
  Result<std::optional<Sockets>> Step() override { return point_->Step(); }
  bool Offered() const override { return point_->Offered(); }
  void Use(std::vector<int> fds) override { point_->Use(std::move(fds)); }
  void Refuse() override { point_->Refuse(); }

 private:
  std::shared_ptr<ResumePoint> point_;
};

}  // namespace

// Removes the entries of closed connections on each call, hence the map stays as small as the
// number of open connections.
std::unique_ptr<SocketResumer> ConnectionQueues::Await(const SocketSet& sockets) {
  auto point = std::make_shared<ResumePoint>(sockets.data.size());
  std::vector<int> fds = {sockets.control.fd()};
  for (const SocketStream& stream : sockets.data) fds.push_back(stream.fd());
  point->Use(std::move(fds));
  const MutexLock lock(mutex_);
  std::erase_if(resumable_, [](const auto& entry) { return entry.second.expired(); });
  resumable_[sockets.resumable] = point;
  return std::make_unique<AwaitedPoint>(std::move(point));
}

// Tokens are random, hence a peer of an earlier listener cannot reach a later listener by chance.
uint64_t ConnectionQueues::Open(std::shared_ptr<ConnectionQueue> queue) {
  const MutexLock lock(mutex_);
  for (;;) {
    const uint64_t token = RandomU64();
    if (queues_.emplace(token, queue).second) return token;
  }
}

void ConnectionQueues::Close(uint64_t token) {
  const MutexLock lock(mutex_);
  queues_.erase(token);
}

void ConnectionQueues::Fail(const Status& why) {
  const MutexLock lock(mutex_);
  for (const auto& [token, queue] : queues_) queue->Fail(why);
}

void ConnectionQueues::Offer(SealedSocket socket, const Hello& hello, const SocketAddress& from,
                             const std::string& device) {
  const Result<DataHello> data = DataHello::Decode(hello.payload);
  const Status status =
      data.ok() ? Sort(std::move(socket), *data, fmt::format("{} over {}", from.ToString(), device))
                : data.status();
  if (status.ok()) return;
  TUTTI_INFO(kLogNet, "a data connection from {} was closed: {}", from.ToString(),
             status.message());
}

// Gives a socket to the listener with its token, or to the connection that it resumes. The mutex is
// not held during the call, because listener and connection have mutexes of their own.
Status ConnectionQueues::Sort(SealedSocket authenticated, const DataHello& hello,
                              std::string peer) {
  if (!Takes(sealing_, has_aes_, hello.sealing)) {
    return RemoteError(
        "its TUTTI_CHECKSUM or TUTTI_ENCRYPT differ from this rank's: it is sealed by kind {} "
        "instead of {}",
        static_cast<int>(hello.sealing), static_cast<int>(sealing_));
  }
  SocketStream socket = SocketStream::Create(std::move(authenticated), hello.sealing);
  std::shared_ptr<ConnectionQueue> queue;
  std::shared_ptr<ResumePoint> point;
  {
    const MutexLock lock(mutex_);
    if (const auto found = queues_.find(hello.token); found != queues_.end()) queue = found->second;
    const auto found = resumable_.find(hello.connection);
    if (found != resumable_.end()) point = found->second.lock();
  }
  if (hello.Replaces()) {
    if (!point) return RemoteError("the connection that it resumes is closed");
    return point->Offer(std::move(socket), hello);
  }
  if (!queue) return RemoteError("the listener it is for is closed");
  return queue->Add(std::move(socket), hello, std::move(peer));
}

// Format: magic u64, the first address, token u64, the number of paths used together u8, the number
// of further addresses u8, whether the listener has AES u8, the further addresses.
NetHandle EncodeHandle(const ListenerHandle& handle, uint64_t magic) {
  WireWriter writer;
  writer.U64(magic);
  writer.Address(handle.paths.all.front());
  writer.U64(handle.token);
  writer.U8(static_cast<uint8_t>(handle.paths.together));
  writer.U8(static_cast<uint8_t>(handle.paths.all.size() - 1));
  writer.U8(handle.has_aes ? 1 : 0);
  for (size_t i = 1; i < handle.paths.all.size(); ++i) writer.Address(handle.paths.all[i]);
  const Bytes bytes = std::move(writer).Take();
  NetHandle out = {};
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

uint64_t MagicOf(const NetHandle& handle) { return WireReader(handle).U64(); }

// The caller has checked the magic number. The counts come from a peer and are checked before use.
Result<ListenerHandle> DecodeHandle(const NetHandle& in, const std::string& interface) {
  WireReader reader(in);
  reader.U64();
  ListenerHandle handle;
  handle.paths.all = {reader.Address()};
  handle.token = reader.U64();
  handle.paths.together = reader.U8();
  const size_t others = reader.U8();
  handle.has_aes = reader.U8() != 0;
  bool sound =
      others < kMostPaths && handle.paths.together >= 1 && handle.paths.together <= others + 1;
  for (size_t i = 0; sound && i < others; ++i) {
    handle.paths.all.push_back(reader.Address());
    sound = handle.paths.all.back().valid();
  }
  if (reader.failed() || !sound) return RemoteError("the peer's handle is damaged");
  SocketAddress& first = handle.paths.all.front();
  if (first.IsLinkLocal()) first.scope_id = if_nametoindex(interface.c_str());
  return handle;
}

// The callbacks share the queues, since sockets may still come while the network is being
// destroyed.
Result<std::unique_ptr<AuthAcceptor>> ListenForQueues(EventLoop& loop, const Key& key,
                                                      SocketAddress& address, PortRange ports,
                                                      std::shared_ptr<ConnectionQueues> queues,
                                                      const std::string& interface,
                                                      const char* purpose) {
  TUTTI_ASSIGN(UniqueFd fd, Listen(address, ports));
  auto callback = [queues, interface](SealedSocket accepted, const Hello& hello,
                                      const SocketAddress& from) {
    if (hello.purpose == Purpose::kData) {
      queues->Offer(std::move(accepted), hello, from, interface);
    }
  };
  return AuthAcceptor::Create(loop, std::move(fd), key, purpose, std::move(callback),
                              [queues](const Status& why) { queues->Fail(why); });
}

}  // namespace tutti
