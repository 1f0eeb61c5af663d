#include "perf/channel.h"

#include <poll.h>

#include "bootstrap/wire.h"

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
  return socket_.SendAll(std::move(writer).Take(), {Deadline::After(kSendNs), nullptr});
}

Result<Json> Channel::Receive(Deadline deadline) {
  for (;;) {
    Json message;
    TUTTI_ASSIGN(const bool have, TryReceive(&message));
    if (have) return message;
    pollfd entry{fd(), POLLIN, 0};
    if (poll(&entry, 1, deadline.RemainingMs(1000)) == 0 && deadline.Passed()) {
      return Timeout("no message arrived");
    }
  }
}

Result<bool> Channel::TryReceive(Json* message) {
  for (;;) {
    TUTTI_ASSIGN(const bool have, Extract(message));
    if (have) return true;
    TUTTI_ASSIGN(const int64_t got, socket_.TryRecv(pending_));
    if (got == kEndOfStream) return RemoteError("the connection was closed");
    if (got == 0) return false;
  }
}

Result<bool> Channel::Extract(Json* message) {
  uint32_t length = 0;
  if (pending_.size() < sizeof(length)) return false;
  length = WireReader(pending_).U32();
  if (length > kMaxMessageBytes) return RemoteError("a message of {} bytes was announced", length);
  if (pending_.size() < sizeof(length) + length) return false;
  const auto begin = pending_.begin() + sizeof(length);
  const std::string text = AsText({begin, begin + length});
  pending_.erase(pending_.begin(), begin + length);
  *message = Json::parse(text, nullptr, false);
  if (message->is_discarded() || !message->is_object())
    return RemoteError("a message was no JSON object");
  return true;
}

}  // namespace tutti::tools
