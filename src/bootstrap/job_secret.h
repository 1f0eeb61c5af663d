#pragma once

// The secret of a job: a text that all processes of the job hold and nobody else knows
// (TUTTI_COMM_KEY). A unique id travels through stores that others can read, so the key in the id
// does not prove membership by itself. Every key of a job that has a secret is therefore made from
// the secret, too.
//
// Any thread may call these functions.

#include <string_view>

#include "bootstrap/unique_id.h"

namespace tutti {

// Returns the key for `purpose` that `key` and `secret` make together. Returns `key` unchanged
// where `secret` is empty. Different purposes ("bootstrap", "network") give unrelated keys.
Key WithSecret(const Key& key, std::string_view secret, std::string_view purpose);

}  // namespace tutti
