#include "bootstrap/job_secret.h"

#include <sodium.h>

#include <new>

#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/auth.h"

namespace tutti {
namespace {

// Measured on one core of a Xeon server: 46 ms (64 MiB: 104 ms). A job of 64 ranks on a host of 64
// cores needs 2 GiB for as long. OWASP's least for Argon2id is 19 MiB and 2 passes.
constexpr unsigned long long kPasses = 2;
constexpr size_t kMemoryBytes = size_t{32} << 20;
constexpr std::string_view kSalt = "tutti job secret";
static_assert(kSalt.size() == crypto_pwhash_SALTBYTES);

Key Stretch(std::string_view secret) {
  Key key;
  if (crypto_pwhash(key.data(), key.size(), secret.data(), secret.size(),
                    reinterpret_cast<const unsigned char*>(kSalt.data()), kPasses, kMemoryBytes,
                    crypto_pwhash_ALG_ARGON2ID13) != 0) {
    throw std::bad_alloc();  // the only way in which the function fails
  }
  return key;
}

// Keeps the last stretched secret of the process. The secret itself is not kept, only its hash.
struct Stretched {
  Mutex mutex;
  bool there TUTTI_GUARDED_BY(mutex) = false;
  Key hash TUTTI_GUARDED_BY(mutex) = {};
  Key key TUTTI_GUARDED_BY(mutex) = {};
};

// Returns the master key. `hash` is the hash of `secret`.
Key MasterKey(std::string_view secret) {
  const Key hash = KeyFromText(secret);
  if (secret.size() >= kLongSecretBytes) return hash;
  static auto* const last = new Stretched;
  const MutexLock lock(last->mutex);
  if (last->there && last->hash == hash) return last->key;
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
  const Key master = MasterKey(secret);
  Key result;
  crypto_generichash_state state;
  crypto_generichash_init(&state, master.data(), master.size(), result.size());
  crypto_generichash_update(&state, key.data(), key.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(purpose.data()),
                            purpose.size());
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
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
