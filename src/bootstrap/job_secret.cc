#include "bootstrap/job_secret.h"

#include <sodium.h>

#include <span>

#include "bootstrap/auth.h"

namespace tutti {

Key WithSecret(const Key& key, std::string_view secret, std::string_view purpose) {
  if (secret.empty()) return key;
  const Key strong = KeyFromText(secret);
  Key result;
  crypto_generichash_state state;
  crypto_generichash_init(&state, strong.data(), strong.size(), result.size());
  crypto_generichash_update(&state, key.data(), key.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(purpose.data()),
                            purpose.size());
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
}

}  // namespace tutti
