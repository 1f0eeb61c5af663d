#include "perf/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>

#include "bootstrap/wire.h"
#include "sys/tcp.h"

namespace tutti::tools {
namespace {

// The driver and the ranks always read soon; a peer that takes longer is dead or stopped.
constexpr int64_t kSendNs = 60'000'000'000;

}  // namespace

Status Channel::Send(const Json& message) {
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(text.size()));
  writer.Raw(AsBytes(text));
  return SendAll(fd_.get(), std::move(writer).Take(), {Deadline::After(kSendNs), nullptr});
}

Result<Json> Channel::Receive(Deadline deadline) {
  for (;;) {
    Json message;
    TUTTI_ASSIGN(const bool have, TryReceive(&message));
    if (have) return message;
    pollfd entry{fd_.get(), POLLIN, 0};
    if (poll(&entry, 1, deadline.RemainingMs(1000)) == 0 && deadline.Passed()) {
      return Timeout("no message arrived");
    }
  }
}

Result<bool> Channel::TryReceive(Json* message) {
  for (;;) {
    TUTTI_ASSIGN(const bool have, Extract(message));
    if (have) return true;
    char buffer[65536];
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      pending_.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      return RemoteError("the connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      return ErrnoError(errno, "receiving a message");
    }
  }
}

Result<bool> Channel::Extract(Json* message) {
  uint32_t length = 0;
  if (pending_.size() < sizeof(length)) return false;
  length = WireReader(std::as_bytes(std::span(pending_))).U32();
  if (length > kMaxMessageBytes) return RemoteError("a message of {} bytes was announced", length);
  if (pending_.size() < sizeof(length) + length) return false;
  *message = Json::parse(pending_.begin() + sizeof(length),
                         pending_.begin() + static_cast<std::ptrdiff_t>(sizeof(length) + length),
                         nullptr, false);
  pending_.erase(0, sizeof(length) + length);
  if (message->is_discarded() || !message->is_object())
    return RemoteError("a message was no JSON object");
  return true;
}

}  // namespace tutti::tools
