#pragma once

// SocketStream: the bytes of one connected socket, in order, as they are or sealed (seal.h).
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
#include "transport/net/socket/seal.h"

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
  // Makes a stream that is sealed as `sealing` says, with the keys of the socket's handshake.
  static SocketStream Create(UniqueFd fd, Sealing sealing, const SessionKeys& keys,
                             bool connector) {
    if (sealing == Sealing::kNone) return fd;
    return SocketStream(std::move(fd), SealTo(sealing, keys, connector),
                        SealTo(sealing, keys, !connector));
  }

  bool valid() const { return fd_.valid(); }
  // Returns whether bytes travel in records that are opened before any of them is given out.
  bool sealed() const { return reading_ != nullptr; }
  int fd() const { return fd_.get(); }
  // Gives the descriptor away, open.
  UniqueFd Take() { return std::move(fd_); }

  // Writes the first bytes of `pieces` that go without waiting, and returns how many they are; -1
  // with errno when there are none. The bytes that it does not count come first in the next call.
  ssize_t Write(std::span<const iovec> pieces);
  // Reads what is there into `places`, and returns how many bytes they are; 0 at the end of the
  // stream, -1 with errno when there are none: EBADMSG where they are damaged. A first place of
  // more than kBufferBytes may be written to beyond what is counted, and comes first in the next
  // call as well, unless the stream is given up.
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
    size_t length = 0;              // The record has so many bytes; 0: there is none.
    size_t written = 0;             // So much of header and bytes is written.
    int error = 0;                  // The socket's, which tells of a reset only once.
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
    size_t length = 0;             // The record has so many bytes; 0: its header has not come.
    size_t got = 0;                // So many of them have come.
    std::byte* place = nullptr;    // They go there. Where it is null, they stay in `buffer`.
    std::vector<std::byte> large;  // Takes a long record that has no place to go to at once.
    std::span<std::byte> opened;   // bytes of a record that have not been given out yet
    bool damaged = false;
  };

  ssize_t WritePlain(std::span<const iovec> pieces);
  ssize_t ReadPlain(std::span<const iovec> places);
  void SealNext(std::span<const iovec> pieces, size_t skip);
  // Read what is missing of a header, or of a record; 1: it is there; 0 and -1 as Read.
  ssize_t ReadHeader(std::span<const iovec> places);
  ssize_t ReadRecord();
  ssize_t FillBuffer();
  ssize_t GiveOut(std::span<const iovec> places);

  UniqueFd fd_;
  std::unique_ptr<Writing> writing_;  // null: the bytes travel as they are; so reading_
  std::unique_ptr<Reading> reading_;
};

}  // namespace tutti
