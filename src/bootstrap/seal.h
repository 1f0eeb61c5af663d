#pragma once

// Protects the bytes of a socket on their way, in records. The receiver checks each record before
// it gives out any byte of the record. Control connections are always encrypted
// (sealed_socket.h); data connections as TUTTI_CHECKSUM and TUTTI_ENCRYPT say.
//
// Format of a record (integers little-endian):
//     0  length  u32   bytes behind the header, 1 to kMostRecordBytes
//     4  check   u32   CRC32C of length and number, in order that a damaged length is found at once
//     8  tag           checksum: u32, CRC32C of the bytes, continued from `check`
//                      encryption: 16 bytes of Poly1305 or GHASH, over the bytes and `length`
//    12 or 24  the bytes, encrypted by ChaCha20 or AES-256 where there is encryption
// Records are numbered from 0 in each direction of a socket. The number does not travel; it is the
// nonce of the encryption. Each direction of each socket has a key of its own, derived from the
// handshake of the socket (handshake.h). No nonce is used twice with one key, since a resumed
// connection repeats its data over another socket.
//
// AES-256-GCM is taken where both ends have instructions for AES (libsodium's condition: AES-NI and
// PCLMUL), because AES then takes four fifths of the time of ChaCha20-Poly1305
// (bench/results/security.md). Without such instructions AES would be slow, and would leak the key
// through the cache. The listener's handle tells the connector what the listener can open, and the
// connector's hello names the cipher. Both travel over authenticated connections.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bootstrap/secret_key.h"

namespace tutti {

enum class Sealing : uint16_t {
  kNone = 0,
  kChecksum = 1,
  kEncryption = 2,  // ChaCha20-Poly1305
  kAesEncryption = 3,
};

// Returns whether this processor can seal and open records by AES.
bool HasAes();
// Returns the sealing of a socket: `asked`, or the faster cipher where both ends have AES.
inline Sealing FastestSealing(Sealing asked, bool both_have_aes) {
  return asked == Sealing::kEncryption && both_have_aes ? Sealing::kAesEncryption : asked;
}
// Returns whether an end whose settings ask for `asked` takes a socket that is sealed by `offered`.
inline bool Takes(Sealing asked, bool has_aes, Sealing offered) {
  return offered == asked ||
         (asked == Sealing::kEncryption && offered == Sealing::kAesEncryption && has_aes);
}

// Seals the records of one direction of a socket, or opens them, in order.
class RecordSeal {
 public:
  static RecordSeal Checksum() { return RecordSeal(Sealing::kChecksum, {}); }
  static RecordSeal Encryption(const SecretKey& key) {
    return RecordSeal(Sealing::kEncryption, key);
  }
  // Returns a seal of another kind with the key of this seal; kAesEncryption needs HasAes.
  // REQUIRES: this seal has sealed and opened nothing.
  RecordSeal As(Sealing sealing) const { return RecordSeal(sealing, key_); }

  static constexpr size_t kMostRecordBytes = 64 * 1024;
  static constexpr size_t kMostHeaderBytes = 24;
  size_t header_bytes() const { return sealing_ == Sealing::kChecksum ? 12 : kMostHeaderBytes; }

  // Writes the header of the next record, and encrypts the record's bytes in place.
  void Close(std::byte* header, std::byte* bytes, size_t length);
  // Returns the length in the next record's header, or nothing when the header is damaged.
  std::optional<size_t> ReadLength(const std::byte* header) const;
  // Checks the bytes of the next record, and decrypts them in place. Returns false when the bytes
  // are damaged; no later record can be opened then.
  bool Open(const std::byte* header, std::byte* bytes, size_t length);

 private:
  // The key of AES in the form in which the processor uses the key.
  struct AesKey {
    alignas(16) std::array<unsigned char, 512> rounds = {};
  };

  RecordSeal(Sealing sealing, const SecretKey& key);

  uint32_t Check(uint32_t length) const;

  Sealing sealing_;
  SecretKey key_;
  Erased<AesKey> aes_key_;
  uint64_t number_ = 0;
};

}  // namespace tutti
