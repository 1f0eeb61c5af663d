#pragma once

// SocketStream: the bytes of one connected socket, in order. Reads and writes are those of the
// system.
//
// Threads: one at a time in each direction; fd() from any.

#include <sys/types.h>
#include <sys/uio.h>

#include <span>
#include <utility>

#include "base/unique_fd.h"

namespace tutti {

class SocketStream {
 public:
  SocketStream() = default;
  SocketStream(UniqueFd fd) : fd_(std::move(fd)) {}  // NOLINT: a socket is a stream as it is
  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Gives the descriptor away, open.
  UniqueFd Take() { return std::move(fd_); }

  // Writes the first bytes of `pieces` that go without waiting, and returns how many they are; -1
  // with errno when there are none.
  ssize_t Write(std::span<const iovec> pieces);
  // Reads what is there into `places`, and returns how many bytes they are; 0 at the end of the
  // stream, -1 with errno when there are none.
  ssize_t Read(std::span<const iovec> places);

  // Ends the connection by a reset, which tells the other end from an orderly end. The descriptor
  // stays open and wakes those that wait for it.
  void Reset();

 private:
  UniqueFd fd_;
};

}  // namespace tutti
