#pragma once

// The 128 bytes of an ncclUniqueId: where a root listens, and the key of the job.
//
// Format (all integers little-endian; bytes not named are zero):
//     0  magic "TUTTIID1"
//     8  key[32]          random; proves membership (bootstrap/auth.h), where the job has a
//                         secret only together with the secret (Root::KeyOf)
//    40  family u16       4 or 6; 0: no address (never sent)
//    42  port u16
//    44  scope_id u32     IPv6 link-local only
//    48  address[16]      first 4 bytes for IPv4
//    64  flags u32        kKeyFromSetting: the key was derived from the job's secret;
//                         kNoKey: no key; the ranks meet at a local socket, or unauthenticated;
//                         kSecret: the job has a secret (config/secret.h) where the id was made
//    68  id u64           random; names the job in logs
//    76  zero

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"
#include "sys/tcp.h"

namespace tutti {

using Key = std::array<uint8_t, 32>;

struct UniqueId {
  enum Flags : uint32_t { kKeyFromSetting = 1, kNoKey = 2, kSecret = 4 };

  Key key = {};
  SocketAddress root;
  uint32_t flags = 0;
  uint64_t id = 0;

  // Returns whether the address of the root was given by a setting (NCCL_COMM_ID).
  bool AddressIsFixed() const { return (flags & (kNoKey | kKeyFromSetting)) != 0; }
  // Returns whether the job has a secret, which its ranks must know besides the id.
  bool HasSecret() const { return (flags & (kSecret | kKeyFromSetting)) != 0; }
  // Returns the name of the local socket (sys/local_socket.h) at which the root serves: where the
  // job has no secret, the root's address is fixed, and the address is loopback. Empty where the
  // root serves at its address.
  std::string LocalName() const;
  void Encode(char (&out)[128]) const;
  // Returns InvalidArgument when the bytes are not an id (all zero, another library's id, a corrupt
  // one).
  static Result<UniqueId> Decode(const char (&in)[128]);
};

}  // namespace tutti
