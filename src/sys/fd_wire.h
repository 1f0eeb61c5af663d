#pragma once

// The messages between the two sides of sys/fd_server.h: messages of a fixed size on a
// SOCK_SEQPACKET socket, which keeps messages whole, so only a length, a magic number and a type
// need parsing. Both sides run on the same machine; numbers travel in its byte order. For
// fd_server.cc and fd_client.cc only.

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/unique_fd.h"
#include "sys/fd_server.h"
#include "sys/random.h"

namespace tutti::fd_wire {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

enum Type : uint32_t {
  kHello = 1,      // client: id, nonce
  kChallenge = 2,  // server: nonce, proof
  kAnswer = 3,     // client: proof
  kGrant = 4,      // server: carries the descriptor
  kWithdrawn = 5,  // server: no such offer (any more)
};

struct Message {
  uint32_t magic;
  uint32_t type;
  uint64_t id;
  Nonce nonce;
  Proof proof;
};
static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) == 80);

// The common knowledge of both sides before they prove anything.
struct Session {
  uint64_t id = 0;
  Nonce client_nonce{};
  Nonce server_nonce{};
};

enum class Role : uint8_t { kServer = 1, kClient = 2 };

enum class Outcome { kMessage, kNothing, kClosed, kGarbage };
struct Received {
  Outcome outcome = Outcome::kNothing;
  Message message{};
};

Message Make(Type type, uint64_t id);
inline Nonce RandomNonce() { return Random<Nonce>(); }
// Returns a name "tutti-<pid>-<random>": the process number is for people who look at `ss -xl`.
std::string RandomName();
// Fills `address` and returns its length. REQUIRES: name.size() <= kMaxFdServerName.
socklen_t AbstractAddress(std::string_view name, sockaddr_un& address);

Proof Prove(Role role, const FdKey& key, std::string_view server_name, const Session& session);
bool Equal(const Proof& a, const Proof& b);  // Takes the same time for all proofs.

// Sends without waiting, with the descriptor `fd_to_pass` unless it is -1. Returns false when the
// other side is gone.
bool Send(int socket_fd, const Message& message, int fd_to_pass);
// Receives without waiting. A descriptor that comes along goes to `passed`; where `passed` is null
// the descriptor is dropped.
Received Receive(int socket_fd, UniqueFd* passed);

}  // namespace tutti::fd_wire
