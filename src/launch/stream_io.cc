// Messages over stream sockets, hexadecimal text, and this host's addresses.

#include <array>
#include <span>

#include "bootstrap/wire.h"
#include "launch/handshake.h"
#include "sys/network_interface.h"
#include "sys/tcp.h"

namespace tutti::launch {

Status SendMessage(int fd, std::string_view message, Deadline deadline) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(message.size()));
  writer.Raw(std::as_bytes(std::span(message)));
  return SendAll(fd, std::move(writer).Take(), {deadline, nullptr});
}

Result<std::string> ReceiveMessage(int fd, size_t limit, Deadline deadline) {
  const WaitLimits limits = {deadline, nullptr};
  std::array<std::byte, 4> header;
  TUTTI_TRY(RecvAll(fd, header, limits));
  const uint32_t length = WireReader(header).U32();
  if (length > limit) {
    return RemoteError("a peer announced a message of {} bytes where {} are allowed", length,
                       limit);
  }
  std::string message(length, '\0');
  TUTTI_TRY(RecvAll(fd, std::as_writable_bytes(std::span(message)), limits));
  return message;
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  if (const auto interfaces = ListNetworkInterfaces(); interfaces.ok()) {
    for (const NetworkInterface& interface : *interfaces) {
      // A link-local address means nothing without the name of the interface, which differs per
      // host.
      if (interface.address.IsLoopback() || interface.address.IsLinkLocal()) continue;
      addresses.push_back(interface.address.HostText());
    }
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    hex += kDigits[static_cast<unsigned char>(byte) >> 4];
    hex += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return hex;
}

Result<std::string> FromHex(std::string_view hex) {
  const auto value = [](char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
  };
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const int high = value(hex[i]);
    const int low = value(hex[i + 1]);
    if (high < 0 || low < 0) break;
    bytes += static_cast<char>(high * 16 + low);
  }
  if (bytes.size() * 2 != hex.size()) return InvalidArgument("'{}' is not hexadecimal", hex);
  return bytes;
}

}  // namespace tutti::launch
