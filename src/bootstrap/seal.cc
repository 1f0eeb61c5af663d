#include "bootstrap/seal.h"

#include <sodium.h>

#include <array>
#include <span>

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "bootstrap/wire.h"

namespace tutti {
namespace {

// The places of the fields in a header (seal.h).
constexpr size_t kLengthBytes = 4;
constexpr size_t kTagAt = 8;

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == RecordSeal::kMostHeaderBytes - kTagAt);
static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == sizeof(Key));
static_assert(crypto_aead_aes256gcm_NPUBBYTES == sizeof(Nonce));
static_assert(crypto_aead_aes256gcm_ABYTES == RecordSeal::kMostHeaderBytes - kTagAt);
static_assert(crypto_aead_aes256gcm_KEYBYTES == sizeof(Key));
static_assert(sizeof(crypto_aead_aes256gcm_state) == 512);

// Returns the place of an expanded key of AES as libsodium's type.
crypto_aead_aes256gcm_state* StateOf(std::array<unsigned char, 512>& rounds) {
  return reinterpret_cast<crypto_aead_aes256gcm_state*>(rounds.data());
}

// Returns the nonce of a record: its number, which is never the same twice under one key.
Nonce NonceOf(uint64_t number) {
  Nonce nonce = {};
  PutLittleEndian(number, reinterpret_cast<std::byte*>(&nonce[4]));
  return nonce;
}

}  // namespace

bool HasAes() {
  static const bool has = [] {
    [[maybe_unused]] const int ready = sodium_init();
    return crypto_aead_aes256gcm_is_available() == 1;
  }();
  return has;
}

RecordSeal::RecordSeal(Sealing sealing, const SecretKey& key) : sealing_(sealing), key_(key) {
  if (sealing != Sealing::kAesEncryption) return;
  AesKey aes;
  crypto_aead_aes256gcm_beforenm(StateOf(aes.rounds), key.get().data());
  aes_key_ = aes;
  sodium_memzero(&aes, sizeof(aes));
}

// The check covers the record's number too, which reveals repeated and missing records.
uint32_t RecordSeal::Check(uint32_t length) const {
  std::array<std::byte, 12> covered;
  PutLittleEndian(length, covered.data());
  PutLittleEndian(number_, &covered[4]);
  return Crc32c(0, covered);
}

// The encryption's tag also covers the length, hence records cannot be divided on their way.
void RecordSeal::Close(std::byte* header, std::byte* bytes, size_t length) {
  const auto short_length = static_cast<uint32_t>(length);
  const uint32_t check = Check(short_length);
  PutLittleEndian(short_length, header);
  PutLittleEndian(check, header + kLengthBytes);
  if (sealing_ == Sealing::kChecksum) {
    PutLittleEndian(Crc32c(check, {bytes, length}), header + kTagAt);
  } else if (sealing_ == Sealing::kAesEncryption) {
    crypto_aead_aes256gcm_encrypt_detached_afternm(
        Unsigned(bytes), Unsigned(header + kTagAt), nullptr, Unsigned(bytes), length,
        Unsigned(header), kLengthBytes, nullptr, NonceOf(number_).data(),
        StateOf(aes_key_.get().rounds));
  } else {
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        Unsigned(bytes), Unsigned(header + kTagAt), nullptr, Unsigned(bytes), length,
        Unsigned(header), kLengthBytes, nullptr, NonceOf(number_).data(), key_.get().data());
  }
  ++number_;
}

std::optional<size_t> RecordSeal::ReadLength(const std::byte* header) const {
  const auto length = GetLittleEndian<uint32_t>(header);
  if (GetLittleEndian<uint32_t>(header + kLengthBytes) != Check(length)) return std::nullopt;
  if (length == 0 || length > kMostRecordBytes) return std::nullopt;
  return length;
}

// The number grows even for a damaged record, after which nothing more is opened.
bool RecordSeal::Open(const std::byte* header, std::byte* bytes, size_t length) {
  const uint64_t number = number_++;
  if (sealing_ == Sealing::kChecksum) {
    const auto check = GetLittleEndian<uint32_t>(header + kLengthBytes);
    return Crc32c(check, {bytes, length}) == GetLittleEndian<uint32_t>(header + kTagAt);
  }
  if (sealing_ == Sealing::kAesEncryption) {
    return crypto_aead_aes256gcm_decrypt_detached_afternm(
               Unsigned(bytes), nullptr, Unsigned(bytes), length, Unsigned(header + kTagAt),
               Unsigned(header), kLengthBytes, NonceOf(number).data(),
               StateOf(aes_key_.get().rounds)) == 0;
  }
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
             Unsigned(bytes), nullptr, Unsigned(bytes), length, Unsigned(header + kTagAt),
             Unsigned(header), kLengthBytes, NonceOf(number).data(), key_.get().data()) == 0;
}

}  // namespace tutti
