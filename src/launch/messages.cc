#include "launch/messages.h"

#include <array>
#include <span>

#include "bootstrap/wire.h"

namespace tutti::launch {

Status SendMessage(SealedSocket& socket, std::string_view message, const WaitLimits& limits) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(message.size()));
  writer.Raw(AsBytes(message));
  return socket.SendAll(std::move(writer).Take(), limits);
}

Result<std::string> ReceiveMessage(SealedSocket& socket, size_t limit, const WaitLimits& limits) {
  std::array<std::byte, 4> header;
  TUTTI_TRY(socket.RecvAll(header, limits));
  const uint32_t length = WireReader(header).U32();
  if (length > limit) {
    return RemoteError("a peer announced a message of {} bytes where {} are allowed", length,
                       limit);
  }
  std::string message(length, '\0');
  TUTTI_TRY(socket.RecvAll(std::as_writable_bytes(std::span(message)), limits));
  return message;
}

}  // namespace tutti::launch
