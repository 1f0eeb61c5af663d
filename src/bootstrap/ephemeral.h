#pragma once

// EphemeralPair: a pair of X25519 keys for the handshakes of a short time. Two ends with such pairs
// agree on a secret. Whoever recorded their bytes and learns the job's key later cannot compute the
// secret, because the secret halves are erased with their objects.
//
// Never changes, hence any thread may use a pair.

#include <optional>

#include "bootstrap/secret_key.h"

namespace tutti {

class EphemeralPair {
 public:
  explicit EphemeralPair(const SecretKey& secret);
  // Makes a random pair.
  static EphemeralPair Fresh();

  const Key& public_key() const { return public_key_; }
  // Returns the secret that this pair shares with the pair of `theirs`. Returns nothing where
  // `theirs` is a point of low order, because everybody would know the secret then.
  std::optional<SecretKey> Agree(const Key& theirs) const;

 private:
  SecretKey secret_;
  Key public_key_ = {};
};

}  // namespace tutti
