#pragma once

// SecretKey: a key that is erased when its object ends, so that neither a core dump nor swap space
// keeps the key longer than the object that uses it.

#include "base/erased.h"
#include "bootstrap/unique_id.h"

namespace tutti {

using SecretKey = Erased<Key>;

}  // namespace tutti
