#pragma once

// The message that each socket of a data connection sends after it has proven the job's key.
//
// Format (integers little-endian):
//     0  version     u32   kSocketNetVersion
//     4  token       u64   the listener's, from its handle
//    12  connection  u64   random, the same for all sockets of one connection
//    20  socket      u16   0: control; n: data socket n-1
//    22  sockets     u16   the number of data sockets
//    24  life        u16   Life: whether the connection can be resumed, or is
//    26  attempt     u32   kResumes, kMoves: counts the attempts over the connection's life, from 1;
//                          else 0
//    30  sealing     u16   Sealing: protection of the bytes behind the handshake (seal.h)

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "bootstrap/seal.h"
#include "bootstrap/wire.h"

namespace tutti {

// Grows with every change of a format, and of a rule by which both ends count, such as the credit
// of frame.h. Ends with different rules would wait for each other.
inline constexpr uint32_t kSocketNetVersion = 8;

struct DataHello {
  enum Life : uint16_t {
    kOnce = 0,       // the connection ends with its sockets
    kResumable = 1,  // the sender may replace the sockets
    kResumes = 2,    // the socket is among those that replace broken sockets
    kMoves = 3,      // the socket is among those that replace working sockets
  };

  uint64_t token = 0;
  uint64_t connection = 0;
  // Returns whether the socket is for a connection that exists.
  bool Replaces() const { return life == kResumes || life == kMoves; }

  uint16_t socket = 0;
  uint16_t data_sockets = 0;
  uint16_t life = kOnce;
  uint32_t attempt = 0;
  Sealing sealing = Sealing::kNone;

  Bytes Encode() const;
  // Returns RemoteError, with the reason, for bytes that Encode cannot have written.
  static Result<DataHello> Decode(std::span<const std::byte> payload);
};

}  // namespace tutti
