#pragma once

// SecretKey: a key that is erased when its object ends, so that neither a core dump nor swap space
// keeps the key longer than the object that uses it.

#include <sodium.h>

#include "bootstrap/unique_id.h"

namespace tutti {

struct SecretKey {
  Key bytes = {};
  ~SecretKey() { sodium_memzero(bytes.data(), bytes.size()); }
};

}  // namespace tutti
