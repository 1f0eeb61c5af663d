#pragma once

// Protects the bytes of a socket on their way: in records, each of which the receiver
// checks before it gives out a byte of it (TUTTI_CHECKSUM, TUTTI_ENCRYPT).
//
// Format of a record (integers little-endian):
//     0  length  u32   bytes behind the header, 1 to kMostRecordBytes
//     4  check   u32   CRC32C of length and number, so that a damaged length is not waited for
//     8  tag           checksum: u32, CRC32C of the bytes, continued from `check`
//                      encryption: 16 bytes of Poly1305, over the bytes and `length`
//    12 or 24  the bytes, encrypted by ChaCha20 where there is encryption
// Records are numbered from 0 in each direction of a socket. The number does not travel; it is the
// nonce of the encryption. Each direction of each socket has a key of its own, derived from the
// job's key and the nonces of the handshake (bootstrap/auth.h), so that no nonce is used twice with
// one key: what a resumed connection repeats goes over another socket.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "bootstrap/auth.h"

namespace tutti {

enum class Sealing : uint16_t { kNone = 0, kChecksum = 1, kEncryption = 2 };

// Seals the records of one direction of a socket, or opens them, in order.
class RecordSeal {
 public:
  static RecordSeal Checksum() { return RecordSeal(Sealing::kChecksum, {}); }
  static RecordSeal Encryption(const Key& key) { return RecordSeal(Sealing::kEncryption, key); }

  static constexpr size_t kMostRecordBytes = 64 * 1024;
  static constexpr size_t kMostHeaderBytes = 24;
  size_t header_bytes() const { return sealing_ == Sealing::kChecksum ? 12 : kMostHeaderBytes; }

  // Writes the header of the next record, and encrypts its bytes in place.
  void Close(std::byte* header, std::byte* bytes, size_t length);
  // Returns the length that the next record's header tells, or nothing when it is damaged.
  std::optional<size_t> ReadLength(const std::byte* header) const;
  // Checks the bytes of the next record, and decrypts them in place. Returns false when they are
  // damaged; nothing can be opened then any more.
  bool Open(const std::byte* header, std::byte* bytes, size_t length);

 private:
  RecordSeal(Sealing sealing, const Key& key) : sealing_(sealing), key_(key) {}

  uint32_t Check(uint32_t length) const;

  Sealing sealing_;
  Key key_;
  uint64_t number_ = 0;
};

// Return what seals and opens the two directions of a socket, at the end that connected and at the
// other.
RecordSeal SealTo(Sealing sealing, const SessionKeys& keys, bool to_acceptor);

}  // namespace tutti
