#include "transport/net/socket/data_hello.h"

#include "transport/net/socket/frame.h"

namespace tutti {

Bytes DataHello::Encode() const {
  WireWriter writer;
  writer.U32(kSocketNetVersion);
  writer.U64(token);
  writer.U64(connection);
  writer.U16(socket);
  writer.U16(data_sockets);
  writer.U16(life);
  writer.U32(attempt);
  writer.U16(static_cast<uint16_t>(sealing));
  return std::move(writer).Take();
}

// Every field comes from a peer and is checked before any of them is used.
Result<DataHello> DataHello::Decode(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const uint32_t version = reader.U32();
  DataHello hello;
  hello.token = reader.U64();
  hello.connection = reader.U64();
  hello.socket = reader.U16();
  hello.data_sockets = reader.U16();
  hello.life = reader.U16();
  hello.attempt = reader.U32();
  hello.sealing = static_cast<Sealing>(reader.U16());
  if (reader.failed() || !reader.AtEnd()) return RemoteError("its hello has a wrong length");
  if (version != kSocketNetVersion) {
    return RemoteError("it speaks version {} of the socket network, this rank version {}", version,
                       kSocketNetVersion);
  }
  if (hello.sealing > Sealing::kAesEncryption)
    return RemoteError("it is sealed by kind {}, which does not exist",
                       static_cast<int>(hello.sealing));
  if (hello.data_sockets > kMaxDataSockets || hello.socket > hello.data_sockets) {
    return RemoteError("it is socket {} of {}, which cannot be", hello.socket, hello.data_sockets);
  }
  if (hello.life > DataHello::kMoves || hello.Replaces() != (hello.attempt > 0)) {
    return RemoteError("it is of kind {} and attempt {}", hello.life, hello.attempt);
  }
  return hello;
}

}  // namespace tutti
