#include "elastic/store_wire.h"

namespace tutti::elastic {

Bytes EncodeRequest(const Request& request) {
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(request.op));
  writer.U64(request.newer_than);
  writer.U32(request.wait_ms);
  writer.Text(request.key, kMaxKeyBytes);
  writer.Raw(AsBytes(request.value));
  return std::move(writer).Take();
}

Bytes EncodeAnswer(const Answer& answer) {
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(answer.outcome));
  writer.U64(answer.version);
  writer.Raw(AsBytes(answer.value));
  return std::move(writer).Take();
}

// The value is the rest of the message, and needs no size of its own.
Result<Request> ParseRequest(std::span<const std::byte> message) {
  WireReader reader(message);
  Request request;
  const uint8_t op = reader.U8();
  request.newer_than = reader.U64();
  request.wait_ms = reader.U32();
  request.key = AsText(reader.Raw(reader.U8()));
  request.value = AsText(reader.Raw(reader.remaining()));
  if (reader.failed() || (op != 1 && op != 2)) return RemoteError("a malformed request");
  if (request.key.empty() || request.key.size() > kMaxKeyBytes) {
    return RemoteError("a key of {} bytes where 1 to {} are allowed", request.key.size(),
                       kMaxKeyBytes);
  }
  if (request.value.size() > kMaxValueBytes) {
    return RemoteError("a value of {} bytes where {} are allowed", request.value.size(),
                       kMaxValueBytes);
  }
  request.op = static_cast<Op>(op);
  return request;
}

Result<Answer> ParseAnswer(std::span<const std::byte> message) {
  WireReader reader(message);
  Answer answer;
  const uint8_t outcome = reader.U8();
  answer.version = reader.U64();
  answer.value = AsText(reader.Raw(reader.remaining()));
  if (reader.failed() || outcome > 2) return RemoteError("the store's answer is malformed");
  answer.outcome = static_cast<Outcome>(outcome);
  return answer;
}

Bytes WithSize(const Bytes& message) {
  WireWriter writer;
  writer.Reserve(4 + message.size());
  writer.U32(static_cast<uint32_t>(message.size()));
  writer.Raw(message);
  return std::move(writer).Take();
}

}  // namespace tutti::elastic
