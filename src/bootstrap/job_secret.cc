#include "bootstrap/job_secret.h"

#include <sodium.h>

#include <array>
#include <new>
#include <span>

#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/auth.h"
#include "bootstrap/secret_key.h"
#include "bootstrap/wire.h"

namespace tutti {
namespace {

// Measured on one core of a Xeon server: 46 ms (64 MiB: 104 ms). A job of 64 ranks on a host of 64
// cores needs 2 GiB for as long. OWASP's least for Argon2id is 19 MiB and 2 passes.
constexpr unsigned long long kPasses = 2;
constexpr size_t kMemoryBytes = size_t{32} << 20;
constexpr std::string_view kSalt = "tutti job secret";
static_assert(kSalt.size() == crypto_pwhash_SALTBYTES);

// Returns the BLAKE2b hash of the two texts, one behind the other, under `key`.
Key Hash(const SecretKey& key, std::string_view first, std::string_view second) {
  Key result;
  Erased<crypto_generichash_state> state;
  const auto add = [&](std::string_view text) {
    crypto_generichash_update(&state.get(), Unsigned(text.data()), text.size());
  };
  crypto_generichash_init(&state.get(), key.get().data(), key.get().size(), result.size());
  add(first);
  add(second);
  crypto_generichash_final(&state.get(), result.data(), result.size());
  return result;
}

SecretKey Stretch(std::string_view secret) {
  SecretKey key;
  if (crypto_pwhash(key.get().data(), key.get().size(), secret.data(), secret.size(),
                    Unsigned(kSalt.data()), kPasses, kMemoryBytes,
                    crypto_pwhash_ALG_ARGON2ID13) != 0) {
    throw std::bad_alloc();  // the only way in which the function fails
  }
  return key;
}

// Keeps the last stretched secret of the process. The secret itself is not kept, only its hash.
// The hash is keyed with random bytes of the process, because a plain hash of a short secret would
// let words be tried without Argon2id.
struct Stretched {
  Mutex mutex;
  const SecretKey hash_key = RandomKey();
  bool there TUTTI_GUARDED_BY(mutex) = false;
  SecretKey hash TUTTI_GUARDED_BY(mutex);
  SecretKey key TUTTI_GUARDED_BY(mutex);
};

// Returns the master key.
SecretKey MasterKey(std::string_view secret) {
  if (secret.size() >= kLongSecretBytes) return KeyFromText(secret);
  static auto* const last = new Stretched;
  const SecretKey hash = Hash(last->hash_key, secret, "");
  const MutexLock lock(last->mutex);
  if (last->there && last->hash.get() == hash.get()) return last->key;
  if (secret.size() < kShortSecretBytes) {
    TUTTI_WARN(
        "the secret of this job has {} bytes and could be guessed in time; `tutti key` makes a "
        "random secret",
        secret.size());
  }
  last->key = Stretch(secret);
  last->hash = hash;
  last->there = true;
  return last->key;
}

}  // namespace

Key WithSecret(const Key& key, std::string_view secret, std::string_view purpose) {
  if (secret.empty()) return key;
  return Hash(MasterKey(secret), AsText(std::as_bytes(std::span(key))), purpose);
}

ErasedText RandomSecret() {
  const SecretKey key = RandomKey();
  std::array<char, 2 * sizeof(Key) + 1> digits;
  sodium_bin2hex(digits.data(), digits.size(), key.get().data(), key.get().size());
  ErasedText secret(digits.data());
  explicit_bzero(digits.data(), digits.size());
  return secret;
}

std::string SecretAdvice(std::string_view source) {
  return fmt::format("{} here; compare `tutti key --fingerprint` on all hosts",
                     source.empty() ? "no secret" : source);
}

std::string DescribeRejected(uint64_t count, std::string_view source) {
  if (count == 0) return "";
  return fmt::format("{} connection{} did not hold the job's {} ({})", count, count == 1 ? "" : "s",
                     source.empty() ? "key" : "secret", SecretAdvice(source));
}

Status CheckMeetingOverTcp(std::string_view secret, bool insecure, std::string_view place) {
  if (!secret.empty()) return Status::Ok();
  if (!insecure) {
    return InvalidUsage(
        "the ranks cannot meet over TCP ({}) without a secret, because whoever reaches the address "
        "could take part in the job: set TUTTI_COMM_KEY to the same random text on all ranks, or "
        "make the file ~/.tutti/key by `tutti key` and copy the file to all hosts "
        "(TUTTI_INSECURE=1 "
        "lets the ranks meet without a secret)",
        place);
  }
  TUTTI_WARN(
      "the ranks meet over TCP ({}) without a secret, as TUTTI_INSECURE asks: whoever reaches the "
      "address can take part in the job; set TUTTI_COMM_KEY to the same random text on all ranks",
      place);
  return Status::Ok();
}

}  // namespace tutti
