// Whole transfers over stream sockets, hexadecimal text, and this host's addresses.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launch/handshake.h"

namespace tutti::launch {
namespace {

// Waits until `fd` is ready for `events`. A hang-up counts as ready: the transfer that follows says
// what it was.
Status WaitReady(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, deadline.RemainingMs(1000));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "waiting for a connection");
    if (deadline.Passed()) return Timeout("the peer was silent until the deadline");
  }
}

}  // namespace

Status SendAll(int fd, const void* data, size_t bytes, Deadline deadline) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      TUTTI_TRY(WaitReady(fd, POLLOUT, deadline));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return RemoteError("the peer closed the connection");
    } else if (errno != EINTR) {
      return ErrnoError(errno, "sending");
    }
  }
  return {};
}

Status ReceiveAll(int fd, void* data, size_t bytes, Deadline deadline) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(fd, next, bytes, MSG_DONTWAIT);
    if (received > 0) {
      next += received;
      bytes -= static_cast<size_t>(received);
    } else if (received == 0 || errno == ECONNRESET) {
      return RemoteError("the peer closed the connection");
    } else if (errno == EAGAIN) {
      TUTTI_TRY(WaitReady(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoError(errno, "receiving");
    }
  }
  return {};
}

Status SendMessage(int fd, std::string_view message, Deadline deadline) {
  const uint32_t length = htonl(static_cast<uint32_t>(message.size()));
  std::string framed(sizeof(length), '\0');
  std::memcpy(framed.data(), &length, sizeof(length));
  framed += message;
  return SendAll(fd, framed.data(), framed.size(), deadline);
}

Result<std::string> ReceiveMessage(int fd, size_t limit, Deadline deadline) {
  uint32_t length = 0;
  TUTTI_TRY(ReceiveAll(fd, &length, sizeof(length), deadline));
  length = ntohl(length);
  if (length > limit) {
    return RemoteError("a peer announced a message of {} bytes where {} are allowed", length,
                       limit);
  }
  std::string message(length, '\0');
  TUTTI_TRY(ReceiveAll(fd, message.data(), message.size(), deadline));
  return message;
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP) || (entry->ifa_flags & IFF_LOOPBACK))
        continue;
      char text[INET6_ADDRSTRLEN] = "";
      if (entry->ifa_addr->sa_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
      } else if (entry->ifa_addr->sa_family == AF_INET6) {
        const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
        // A link-local address means nothing without the name of the interface, which differs per
        // host.
        if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
          inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
      }
      if (*text) addresses.emplace_back(text);
    }
    freeifaddrs(list);
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
