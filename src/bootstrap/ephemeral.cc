#include "bootstrap/ephemeral.h"

#include "sys/random.h"

namespace tutti {

EphemeralPair::EphemeralPair(const SecretKey& secret) : secret_(secret) {
  crypto_scalarmult_base(public_key_.data(), secret_.get().data());
}

EphemeralPair EphemeralPair::Fresh() { return EphemeralPair(SecretKey{Random<Key>()}); }

// libsodium fails where the result is zero, which exactly the points of low order give.
std::optional<SecretKey> EphemeralPair::Agree(const Key& theirs) const {
  SecretKey shared;
  const int failed = crypto_scalarmult(shared.get().data(), secret_.get().data(), theirs.data());
  if (failed != 0) return std::nullopt;
  return shared;
}

}  // namespace tutti
