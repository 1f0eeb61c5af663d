#include "transport/net/socket/listener.h"

#include <chrono>

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
  if (reader.failed() || !reader.AtEnd()) return RemoteError("its hello has a wrong length");
  if (version != kSocketNetVersion) {
    return RemoteError("it speaks version {} of the socket network, this rank version {}", version,
                       kSocketNetVersion);
  }
  if (hello.data_sockets > kMaxDataSockets || hello.socket > hello.data_sockets) {
    return RemoteError("it is socket {} of {}, which cannot be", hello.socket, hello.data_sockets);
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
  if (--partial.missing > 0) return Status::Ok();
  complete_.push_back(std::move(partial.sockets));
  partial_.erase(found);
  arrived_.NotifyOne();
  return Status::Ok();
}

Result<SocketSet> ConnectionQueue::Take(const WaitLimits& limits) {
  MutexLock lock(mutex_);
  while (complete_.empty()) {
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

void ConnectionQueues::Offer(UniqueFd fd, std::span<const std::byte> payload,
                             const SocketAddress& from, const std::string& device) {
  const Result<DataHello> hello = DataHello::Decode(payload);
  Status status = hello.status();
  if (hello.ok()) {
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

}  // namespace tutti
