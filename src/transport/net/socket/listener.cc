#include "transport/net/socket/listener.h"

#include <net/if.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "bootstrap/wire.h"
#include "transport/net/socket/frame.h"
#include "transport/net/socket/socket_net.h"

namespace tutti {

std::vector<std::byte> DataHello::Encode() const {
  WireWriter writer;
  writer.U32(kSocketNetVersion);
  writer.U64(token);
  writer.U64(connection);
  writer.U16(socket);
  writer.U16(data_sockets);
  writer.U16(life);
  return std::move(writer).Take();
}

Result<DataHello> DataHello::Decode(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const uint32_t version = reader.U32();
  DataHello hello;
  hello.token = reader.U64();
  hello.connection = reader.U64();
  hello.socket = reader.U16();
  hello.data_sockets = reader.U16();
  hello.life = reader.U16();
  if (reader.failed() || !reader.AtEnd()) return RemoteError("its hello has a wrong length");
  if (version != kSocketNetVersion) {
    return RemoteError("it speaks version {} of the socket network, this rank version {}", version,
                       kSocketNetVersion);
  }
  if (hello.data_sockets > kMaxDataSockets || hello.socket > hello.data_sockets) {
    return RemoteError("it is socket {} of {}, which cannot be", hello.socket, hello.data_sockets);
  }
  if (hello.life > DataHello::kResumes ||
      (hello.life != DataHello::kOnce && hello.data_sockets > 0)) {
    return RemoteError("it has {} data sockets and is of kind {}", hello.data_sockets, hello.life);
  }
  return hello;
}

Status ConnectionQueue::Add(UniqueFd fd, const DataHello& hello, std::string peer) {
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
  UniqueFd& place =
      hello.socket == 0 ? partial.sockets.control : partial.sockets.data[hello.socket - size_t{1}];
  if (place.valid()) return RemoteError("socket {} came twice", hello.socket);
  place = std::move(fd);
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

Result<SocketSet> ConnectionQueue::Take(const WaitLimits& limits) {
  MutexLock lock(mutex_);
  while (complete_.empty()) {
    if (!failure_.ok()) return failure_;
    if (limits.abort_flag && limits.abort_flag->load(std::memory_order_acquire)) {
      return InternalError("waiting for a peer's data connection: aborted by the caller");
    }
    if (limits.deadline.Passed()) {
      return Timeout("waiting for a peer's data connection: none came before the deadline");
    }
    arrived_.WaitFor(lock,
                     std::chrono::milliseconds(limits.deadline.RemainingMs(kAbortCheckMs) + 1));
  }
  SocketSet sockets = std::move(complete_.front());
  complete_.pop_front();
  return sockets;
}

Result<UniqueFd> ResumePoint::Step() {
  const MutexLock lock(mutex_);
  offered_.store(false, std::memory_order_release);
  return std::move(fd_);
}

void ResumePoint::Use(int fd) {
  const MutexLock lock(mutex_);
  in_use_ = fd;
}

void ResumePoint::Refuse() {
  const MutexLock lock(mutex_);
  refusing_ = true;
  fd_.Reset();
}

void ResumePoint::Offer(UniqueFd fd) {
  const MutexLock lock(mutex_);
  if (refusing_) return;
  fd_ = std::move(fd);
  offered_.store(true, std::memory_order_release);
  // Wakes whoever sleeps on the old socket. The comm does not close it before it has called Use.
  ::shutdown(in_use_, SHUT_RDWR);
}

namespace {

// Keeps a ResumePoint known to the queues for as long as the comm lives.
class AwaitedPoint final : public SocketResumer {
 public:
  explicit AwaitedPoint(std::shared_ptr<ResumePoint> point) : point_(std::move(point)) {}
  ~AwaitedPoint() override {
    point_->Refuse();
    point_->Use(-1);
  }
  void Begin() override { point_->Begin(); }
  Result<UniqueFd> Step() override { return point_->Step(); }
  bool Offered() const override { return point_->Offered(); }
  void Use(int fd) override { point_->Use(fd); }
  void Refuse() override { point_->Refuse(); }

 private:
  std::shared_ptr<ResumePoint> point_;
};

}  // namespace

std::unique_ptr<SocketResumer> ConnectionQueues::Await(uint64_t connection, int control) {
  auto point = std::make_shared<ResumePoint>();
  point->Use(control);
  const MutexLock lock(mutex_);
  std::erase_if(resumable_, [](const auto& entry) { return entry.second.expired(); });
  resumable_[connection] = point;
  return std::make_unique<AwaitedPoint>(std::move(point));
}

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

void ConnectionQueues::Offer(UniqueFd fd, std::span<const std::byte> payload,
                             const SocketAddress& from, const std::string& device) {
  const Result<DataHello> hello = DataHello::Decode(payload);
  Status status = hello.status();
  if (hello.ok() && hello->life == DataHello::kResumes) {
    std::shared_ptr<ResumePoint> point;
    {
      const MutexLock lock(mutex_);
      const auto found = resumable_.find(hello->connection);
      if (found != resumable_.end()) point = found->second.lock();
    }
    if (point) {
      point->Offer(std::move(fd));
    } else {
      status = RemoteError("the connection that it resumes is closed");
    }
  } else if (hello.ok()) {
    std::shared_ptr<ConnectionQueue> queue;
    {
      const MutexLock lock(mutex_);
      const auto found = queues_.find(hello.value().token);
      if (found != queues_.end()) queue = found->second;
    }
    status = queue ? queue->Add(std::move(fd), hello.value(),
                                fmt::format("{} over {}", from.ToString(), device))
                   : RemoteError("the listener it is for is closed");
  }
  if (!status.ok()) {
    TUTTI_INFO(kLogNet, "a data connection from {} was closed: {}", from.ToString(),
               status.message());
  }
}

NetHandle EncodeHandle(const ListenerHandle& handle, uint64_t magic) {
  WireWriter writer;
  writer.U64(magic);
  writer.Address(handle.address);
  writer.U64(handle.token);
  const Bytes bytes = std::move(writer).Take();
  NetHandle out = {};
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

uint64_t MagicOf(const NetHandle& handle) { return WireReader(handle).U64(); }

Result<ListenerHandle> DecodeHandle(const NetHandle& in, const std::string& interface) {
  WireReader reader(in);
  reader.U64();
  ListenerHandle handle;
  handle.address = reader.Address();
  handle.token = reader.U64();
  if (reader.failed()) return RemoteError("the peer's handle is damaged");
  if (handle.address.IsLinkLocal()) handle.address.scope_id = if_nametoindex(interface.c_str());
  return handle;
}

Result<std::unique_ptr<AuthAcceptor>> ListenForQueues(EventLoop& loop, const Key& key,
                                                      SocketAddress& address, PortRange ports,
                                                      std::shared_ptr<ConnectionQueues> queues,
                                                      const std::string& interface,
                                                      const char* purpose) {
  TUTTI_ASSIGN(UniqueFd fd, Listen(address, ports));
  auto callback = [queues, interface](UniqueFd accepted, const Hello& hello,
                                      const SocketAddress& from) {
    if (hello.purpose == Purpose::kData) {
      queues->Offer(std::move(accepted), hello.payload, from, interface);
    }
  };
  return AuthAcceptor::Create(loop, std::move(fd), key, purpose, std::move(callback),
                              [queues](const Status& why) { queues->Fail(why); });
}

}  // namespace tutti
