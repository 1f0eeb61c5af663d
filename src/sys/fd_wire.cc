#include "sys/fd_wire.h"

#include <sodium.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace tutti::fd_wire {
namespace {

constexpr uint32_t kMagic = 0x31644654;  // "TFd1"
constexpr size_t kNameRandomBytes = 12;

// Room for a single descriptor: the kernel drops the rest.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

// Takes the descriptor out of a received message.
UniqueFd PassedFd(msghdr& header) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    if (control->cmsg_len < CMSG_LEN(sizeof(int))) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof(fd));
    return UniqueFd(fd);
  }
  return {};
}

}  // namespace

Message Make(Type type, uint64_t id) {
  Message message{};
  message.magic = kMagic;
  message.type = type;
  message.id = id;
  return message;
}

std::string RandomName() {
  uint8_t bytes[kNameRandomBytes];
  randombytes_buf(bytes, sizeof(bytes));
  char text[2 * sizeof(bytes) + 1];
  sodium_bin2hex(text, sizeof(text), bytes, sizeof(bytes));
  return fmt::format("tutti-{}-{}", getpid(), text);
}

socklen_t AbstractAddress(std::string_view name, sockaddr_un& address) {
  std::memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  // A leading NUL makes the name abstract.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// The sizes of all parts are fixed or written before the part, so two different sessions never hash
// the same bytes.
Proof Prove(Role role, const FdKey& key, std::string_view server_name, const Session& session) {
  static constexpr std::string_view kDomain = "tutti fd server 1";
  const auto role_byte = static_cast<uint8_t>(role);
  const auto name_size = static_cast<uint8_t>(server_name.size());
  crypto_generichash_state state;
  const auto update = [&state](const void* data, size_t bytes) {
    crypto_generichash_update(&state, static_cast<const unsigned char*>(data), bytes);
  };
  Proof proof;
  crypto_generichash_init(&state, key.data(), key.size(), proof.size());
  update(kDomain.data(), kDomain.size());
  update(&role_byte, 1);
  update(&name_size, 1);
  update(server_name.data(), server_name.size());
  update(&session.id, sizeof(session.id));
  update(session.client_nonce.data(), session.client_nonce.size());
  update(session.server_nonce.data(), session.server_nonce.size());
  crypto_generichash_final(&state, proof.data(), proof.size());
  return proof;
}

bool Equal(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool Send(int socket_fd, const Message& message, int fd_to_pass) {
  iovec part{const_cast<Message*>(&message), sizeof(message)};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ControlBuffer control{};
  if (fd_to_pass >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof(control.bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd_to_pass, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket_fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(message));
}

Received Receive(int socket_fd, UniqueFd* passed) {
  Received result;
  iovec part{&result.message, sizeof(result.message)};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ControlBuffer control{};
  if (passed != nullptr) {
    header.msg_control = control.bytes;
    // Not all of the padded buffer: the padding has room for a second descriptor, which a peer
    // could pass and nobody would close.
    header.msg_controllen = CMSG_LEN(sizeof(int));
  }
  ssize_t received;
  do {
    received = recvmsg(socket_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    result.outcome = errno == EAGAIN ? Outcome::kNothing : Outcome::kClosed;
    return result;
  }
  if (passed != nullptr) *passed = PassedFd(header);
  if (received == 0) {
    result.outcome = Outcome::kClosed;
    return result;
  }
  const bool whole =
      received == static_cast<ssize_t>(sizeof(Message)) && !(header.msg_flags & MSG_TRUNC);
  result.outcome = whole && result.message.magic == kMagic ? Outcome::kMessage : Outcome::kGarbage;
  return result;
}

}  // namespace tutti::fd_wire
