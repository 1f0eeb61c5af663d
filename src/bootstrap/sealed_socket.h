#pragma once

// SealedSocket: a connection whose two ends have proved the job's key. Every byte travels in
// encrypted records (seal.h): a reader of the wire sees the records' number and lengths, and a byte
// that was changed, added, repeated or left out on the way breaks the connection. A protocol that
// must tell the end of its peer from a cut connection says so in a message of its own.
//
// Threads: one at a time. fd() may be called from any thread while the object is not moved.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/seal.h"
#include "bootstrap/wire.h"
#include "sys/tcp.h"

namespace tutti {

class SealedSocket {
 public:
  SealedSocket() = default;
  // Takes a connected, non-blocking socket, the keys of its two directions, and further_key().
  SealedSocket(UniqueFd fd, const SecretKey& out, const SecretKey& in,
               const SecretKey& further = {})
      : fd_(std::move(fd)),
        out_(RecordSeal::Encryption(out)),
        in_(RecordSeal::Encryption(in)),
        further_key_(further) {}

  struct Parts {
    UniqueFd fd;
    RecordSeal out;
    RecordSeal in;
  };
  explicit SealedSocket(Parts parts) : fd_(std::move(parts.fd)), out_(parts.out), in_(parts.in) {}
  // Hands the parts to a network transport, which has streams of its own, or the plain socket to a
  // protocol that wants no protection. REQUIRES: nothing was sent or received.
  Parts Take() && { return {std::move(fd_), out_, in_}; }

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  void Reset() { fd_.Reset(); }
  // Returns a key that only the two ends of the handshake know, for uses besides the records.
  const SecretKey& further_key() const { return further_key_; }

  // Sends without waiting. Returns how many first bytes of `data` have left; 0 when none leave now.
  // The next call must begin with the bytes behind the returned number, because they may have left
  // in part.
  Result<size_t> TrySend(std::span<const std::byte> data);
  // Reads from the socket once, without waiting, and appends the bytes of all records that are
  // whole to `data`: no whole record is kept back. Returns how many bytes were read from the
  // socket: 0 when none have come, kEndOfStream at the end of the stream between two records. Fails
  // when a record is damaged, or the stream ends within a record.
  Result<int64_t> TryRecv(Bytes& data);

  // Send or receive all of `data`, waiting within `limits`. RecvAll returns RemoteError when the
  // other end closes first. REQUIRES of RecvAll: TryRecv is not used.
  Status SendAll(std::span<const std::byte> data, const WaitLimits& limits);
  Status RecvAll(std::span<std::byte> data, const WaitLimits& limits);

 private:
  Status OpenRecords(Bytes& data);

  UniqueFd fd_;
  RecordSeal out_ = RecordSeal::Checksum();
  RecordSeal in_ = RecordSeal::Checksum();
  SecretKey further_key_;
  Bytes record_;     // the record that is being sent
  size_t sent_ = 0;  // the bytes of record_ that have left
  Bytes sealed_;     // has come, and is the beginning of a record
  Bytes opened_;     // for RecvAll: opened bytes that nobody has asked for yet
};

}  // namespace tutti
