#include "transport/net/verbs/setup.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

constexpr uint16_t kMagic = 0x7656;
constexpr size_t kHeaderBytes = 8;
constexpr size_t kMaxName = 96;
// No connection lives long enough for more; and sums with numbers of groups do not overflow.
constexpr uint64_t kMostGroups = uint64_t{1} << 56;
constexpr uint32_t kPacketNumbers = 1u << 24;
// The bits of a queue pair's number; the port follows above the number.
constexpr int kNumberBits = 24;
// The most bytes that wait to be sent. At most two messages of less than 2 KiB are on their way at
// a time, so more waiting bytes mean that the peer does not read.
constexpr size_t kMaxQueued = 16 * 1024;

struct Header {
  bool sensible = false;
  ControlType type = ControlType::kReady;
  size_t length = 0;  // of the payload
};

// REQUIRES: the span has kHeaderBytes bytes.
Header DecodeHeader(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  const uint16_t magic = reader.U16();
  const uint8_t type = reader.U8();
  const uint8_t zero = reader.U8();
  Header header;
  header.length = reader.U32();
  header.type = static_cast<ControlType>(type);
  const bool known = type >= static_cast<uint8_t>(ControlType::kOffer) &&
                     type <= static_cast<uint8_t>(ControlType::kAwaiting);
  header.sensible = magic == kMagic && zero == 0 && known && header.length <= kMaxControlPayload;
  return header;
}

VerbsEnd::Port DecodePort(WireReader& reader) {
  VerbsEnd::Port port;
  port.mtu = reader.U8();
  port.lid = reader.U16();
  const auto gid = reader.Raw(port.gid.size());
  if (!gid.empty()) std::memcpy(port.gid.data(), gid.data(), gid.size());
  port.speed_mbps = reader.U32();
  port.table_key = reader.U32();
  return port;
}

}  // namespace

Bytes VerbsEnd::Encode() const {
  WireWriter writer;
  writer.U32(kVerbsNetVersion);
  writer.U8(ethernet ? 1 : 0);
  writer.U8(iwarp ? 1 : 0);
  writer.U8(notices ? 1 : 0);
  writer.U32(first_packet);
  writer.U64(table_address);
  writer.U8(own);
  writer.U8(static_cast<uint8_t>(ports.size()));
  for (const Port& port : ports) {
    writer.U8(port.mtu);
    writer.U16(port.lid);
    writer.Raw(std::as_bytes(std::span(port.gid)));
    writer.U32(port.speed_mbps);
    writer.U32(port.table_key);
  }
  writer.U16(static_cast<uint16_t>(queue_pairs.size()));
  for (const Pair& pair : queue_pairs) writer.U32(uint32_t{pair.port} << kNumberBits | pair.number);
  writer.Text(name, kMaxName);
  writer.U16(managed.port);
  writer.Raw(managed.token);
  return std::move(writer).Take();
}

Result<VerbsEnd> VerbsEnd::Decode(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const uint32_t version = reader.U32();
  if (!reader.failed() && version != kVerbsNetVersion) {
    return RemoteError("it speaks version {} of the network over verbs, this rank version {}",
                       version, kVerbsNetVersion);
  }
  VerbsEnd end;
  end.ethernet = reader.U8() != 0;
  end.iwarp = reader.U8() != 0;
  end.notices = reader.U8() != 0;
  end.first_packet = reader.U32();
  end.table_address = reader.U64();
  end.own = reader.U8();
  const size_t ports = reader.U8();
  for (size_t i = 0; i < ports && !reader.failed(); ++i) end.ports.push_back(DecodePort(reader));
  const size_t count = reader.U16();
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
    const uint32_t both = reader.U32();
    end.queue_pairs.push_back(
        {both & ((1u << kNumberBits) - 1), static_cast<uint8_t>(both >> kNumberBits)});
  }
  end.name = reader.Text();
  end.managed.port = reader.U16();
  const auto token = reader.Raw(end.managed.token.size());
  if (!token.empty()) std::memcpy(end.managed.token.data(), token.data(), token.size());
  if (reader.failed() || !reader.AtEnd()) {
    return RemoteError("what it says of its queue pairs has a wrong length");
  }
  const bool pairs_can_be =
      count > 0 && count <= kMaxQueuePairs &&
      std::all_of(end.queue_pairs.begin(), end.queue_pairs.end(),
                  [&](const Pair& pair) { return pair.port < end.ports.size(); });
  const bool ports_can_be = ports <= kMaxPorts && end.own >= 1 && end.own <= ports &&
                            std::all_of(end.ports.begin(), end.ports.end(), [](const Port& port) {
                              return port.mtu >= 1 && port.mtu <= 5;
                            });
  if (!pairs_can_be || !ports_can_be || end.first_packet >= kPacketNumbers ||
      end.table_address % 8 != 0) {
    return RemoteError("what it says of its queue pairs cannot be ({} of them over {} ports)",
                       count, ports);
  }
  return end;
}

Bytes AnswerAgain::Encode() const {
  WireWriter writer;
  writer.U64(groups.posted);
  writer.Raw(std::as_bytes(std::span(groups.missing)));
  writer.Raw(end.Encode());
  return std::move(writer).Take();
}

Result<AnswerAgain> AnswerAgain::Decode(std::span<const std::byte> payload) {
  AnswerAgain answer;
  constexpr size_t kGroupsBytes = sizeof(uint64_t) + sizeof(answer.groups.missing);
  if (payload.size() < kGroupsBytes) {
    return RemoteError("what it says of the messages that have come is too short");
  }
  WireReader reader(payload.first(kGroupsBytes));
  answer.groups.posted = reader.U64();
  if (answer.groups.posted > kMostGroups)
    return RemoteError("it says that it has posted {} groups of receives", answer.groups.posted);
  const auto missing = reader.Raw(answer.groups.missing.size());
  std::memcpy(answer.groups.missing.data(), missing.data(), missing.size());
  TUTTI_ASSIGN(answer.end, VerbsEnd::Decode(payload.subspan(kGroupsBytes)));
  return answer;
}

Status ControlSocket::Send(ControlType type, std::span<const std::byte> payload) {
  if (payload.size() > kMaxControlPayload || out_.size() - sent_ > kMaxQueued) {
    return SystemError("the other end does not read its control socket");
  }
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(sent_));
  sent_ = 0;
  WireWriter writer;
  writer.U16(kMagic);
  writer.U8(static_cast<uint8_t>(type));
  writer.U8(0);
  writer.U32(static_cast<uint32_t>(payload.size()));
  writer.Raw(payload);
  const Bytes message = std::move(writer).Take();
  out_.insert(out_.end(), message.begin(), message.end());
  return Flush().status();
}

void ControlSocket::Refuse(const Status& why) {
  WireWriter writer;
  writer.Sentence(why.message(), kMaxControlPayload - 2);
  [[maybe_unused]] const Status told = Send(ControlType::kRefusal, std::move(writer).Take());
}

Result<bool> ControlSocket::Flush() {
  while (sent_ < out_.size()) {
    const Result<size_t> sent = socket_.TrySend(std::span(out_).subspan(sent_));
    if (!sent.ok()) return RemoteError("the connection to it is broken");
    if (*sent == 0) return false;
    sent_ += *sent;
  }
  return true;
}

// Takes a message out of the bytes that have been read, if they hold a whole message.
Result<bool> ControlSocket::TakeStaged(ControlMessage& message) {
  if (in_.size() < kHeaderBytes) return false;
  const Header header = DecodeHeader(in_);
  if (!header.sensible) return RemoteError("it sent a control message that makes no sense");
  const auto begin = in_.begin() + kHeaderBytes;
  if (in_.size() - kHeaderBytes < header.length) return false;
  const auto end = begin + static_cast<ptrdiff_t>(header.length);
  message.type = header.type;
  message.payload.assign(begin, end);
  in_.erase(in_.begin(), end);
  return true;
}

bool ControlSocket::HasStaged() const {
  if (in_.size() < kHeaderBytes) return false;
  const Header header = DecodeHeader(in_);
  return !header.sensible || in_.size() - kHeaderBytes >= header.length;
}

// A single call of recv may return several messages; the rest stays staged for later calls.
Result<bool> ControlSocket::Receive(ControlMessage& message) {
  for (;;) {
    TUTTI_ASSIGN(const bool taken, TakeStaged(message));
    if (taken) return true;
    const Result<int64_t> got = socket_.TryRecv(in_);
    if (!got.ok()) return RemoteError("its control socket: {}", got.status().message());
    if (*got == kEndOfStream) return RemoteError("the peer closed the connection");
    if (*got == 0) return false;
  }
}

Result<ControlMessage> ControlSocket::Await(const WaitLimits& limits) {
  for (;;) {
    ControlMessage message;
    TUTTI_ASSIGN(const bool came, Receive(message));
    if (came) return message;
    TUTTI_TRY(WaitReady(fd(), POLLIN, limits, "waiting for a peer's queue pairs"));
  }
}

void ControlSocket::Shutdown() { ::shutdown(fd(), SHUT_RDWR); }

}  // namespace tutti
