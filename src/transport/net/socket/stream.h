#pragma once

// SocketStream: the bytes of one connected socket, in order, plain or sealed (seal.h).
//
// Threads: one at a time in each direction; fd() from any.

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "bootstrap/sealed_socket.h"

namespace tutti {

class SocketStream {
 public:
  SocketStream() = default;
  SocketStream(UniqueFd fd) : fd_(std::move(fd)) {}  // NOLINT: a socket is a stream as it is
  // Makes a stream whose two directions are sealed.
  SocketStream(UniqueFd fd, const RecordSeal& out, const RecordSeal& in)
      : fd_(std::move(fd)),
        writing_(std::make_unique<Writing>(out)),
        reading_(std::make_unique<Reading>(in)) {}
  // Makes a stream of an authenticated socket, with the given sealing.
  static SocketStream Create(SealedSocket socket, Sealing sealing) {
    SealedSocket::Parts parts = std::move(socket).Take();
    if (sealing == Sealing::kNone) return std::move(parts.fd);
    return SocketStream(std::move(parts.fd), parts.out.As(sealing), parts.in.As(sealing));
  }

  bool valid() const { return fd_.valid(); }
  // Returns whether bytes travel in records, which are opened before any byte is given out.
  bool sealed() const { return reading_ != nullptr; }
  int fd() const { return fd_.get(); }
  // Gives the descriptor away, open.
  UniqueFd Take() { return std::move(fd_); }
  // Gives the socket away as it was given to Create. REQUIRES: encrypted; nothing was written or
  // read.
  SealedSocket TakeSealed() {
    return SealedSocket({std::move(fd_), writing_->seal, reading_->seal});
  }

  // Writes as many first bytes of `pieces` as go without a wait, and returns their number, or -1
  // with errno when none go. The next call must begin with the bytes behind the returned number.
  ssize_t Write(std::span<const iovec> pieces);
  // Reads the available bytes into `places`, and returns their number. Returns 0 at the end of the
  // stream, and -1 with errno when there are no bytes: EBADMSG for damaged bytes. Read may write to
  // a first place of more than kBufferBytes beyond the returned number. Such a place must come
  // first in the next call as well, unless the stream is given up.
  ssize_t Read(std::span<const iovec> places);
  // Returns whether the next Read returns bytes though the socket may have none.
  bool HasInput() const;

  void Reset() { ResetConnection(fd_.get()); }

 private:
  static constexpr size_t kBufferBytes = 16 * 1024;

  // The record that is being written.
  struct Writing {
    explicit Writing(const RecordSeal& out) : seal(out) {}
    RecordSeal seal;
    std::vector<std::byte> record;  // grows to the longest header and record
    size_t length = 0;              // the bytes of the record; 0: there is none
    size_t written = 0;             // the written bytes of header and record
    // the socket's error, since the socket reports a reset only once
    int error = 0;
  };
  // The record that is being read.
  struct Reading {
    explicit Reading(const RecordSeal& in)
        : seal(in), buffer(kBufferBytes + RecordSeal::kMostHeaderBytes) {}
    RecordSeal seal;
    std::vector<std::byte> buffer;  // [from, to) has been read from the socket but not used
    size_t from = 0;
    size_t to = 0;
    std::array<std::byte, RecordSeal::kMostHeaderBytes> header = {};
    size_t length = 0;             // the bytes of the record; 0: its header has not come
    size_t got = 0;                // the bytes that have come
    std::byte* place = nullptr;    // the destination; null: the bytes stay in `buffer`
    std::vector<std::byte> large;  // takes a long record without a destination of the caller
    std::span<std::byte> opened;   // bytes of a record that have not been given out yet
    bool damaged = false;
  };

  ssize_t WritePlain(std::span<const iovec> pieces);
  ssize_t ReadPlain(std::span<const iovec> places);
  void SealNext(std::span<const iovec> pieces, size_t skip);
  // Read the rest of a header, or of a record. Return 1 when all has come, and 0 or -1 as Read
  // does.
  ssize_t ReadHeader(std::span<const iovec> places);
  ssize_t ReadRecord();
  ssize_t FillBuffer();
  ssize_t GiveOut(std::span<const iovec> places);

  UniqueFd fd_;
  std::unique_ptr<Writing> writing_;  // null, like reading_: the bytes are plain
  std::unique_ptr<Reading> reading_;
};

}  // namespace tutti
