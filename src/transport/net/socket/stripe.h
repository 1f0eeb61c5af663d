#pragma once

// Divides a long chunk over the data sockets of a connection. Both ends compute the same division
// from the chunk's length, its number and the two counts of sockets. Data sockets therefore carry
// bare bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/rounding.h"

namespace tutti {

// The shortest piece. Shorter pieces cost more in system calls and wake-ups than a second socket
// wins.
inline constexpr size_t kMinPieceBytes = 32 * 1024;

struct StripePiece {
  int socket = 0;
  size_t offset = 0;
  size_t bytes = 0;
};

class Striping {
 public:
  // Returns how many of `sockets` data sockets carry a chunk of `bytes`; 0: the chunk follows its
  // frame on the control socket.
  static int SocketsFor(size_t bytes, int sockets) {
    const size_t pieces = std::min(bytes / kMinPieceBytes, static_cast<size_t>(sockets));
    return pieces < 2 ? 0 : static_cast<int>(pieces);
  }

  // Divides chunk number `chunk` into `used` pieces. REQUIRES: 0 < used <= sockets.
  Striping(size_t bytes, uint64_t chunk, int used, int sockets)
      : bytes_(bytes), first_socket_(chunk % static_cast<uint64_t>(sockets)), sockets_(sockets) {
    piece_ = RoundUp(DivUp(bytes, static_cast<size_t>(used)), kLine);
  }

  // Returns piece `index` of `used`; the last pieces may be short or empty. The first socket
  // differs from chunk to chunk, hence chunks on few sockets use all sockets in turn.
  StripePiece At(int index) const {
    const size_t offset = std::min(piece_ * static_cast<size_t>(index), bytes_);
    const auto socket =
        (first_socket_ + static_cast<uint64_t>(index)) % static_cast<uint64_t>(sockets_);
    return {static_cast<int>(socket), offset, std::min(piece_, bytes_ - offset)};
  }

 private:
  static constexpr size_t kLine = 64;  // pieces do not share cache lines

  size_t bytes_;
  uint64_t first_socket_;
  int sockets_;
  size_t piece_ = 0;
};

}  // namespace tutti
