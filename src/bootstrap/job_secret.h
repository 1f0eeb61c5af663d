#pragma once

// Keys made from the secret of a job (config/secret.h): a text that all processes of the job hold
// and nobody else knows. A unique id travels through stores that others can read, so the key in the
// id does not prove membership by itself. Every key of a job that has a secret is therefore made
// from the secret, too.
//
//   master       = BLAKE2b(secret)                                  from 32 bytes on
//                  Argon2id(secret, salt "tutti job secret",
//                           2 passes, 32 MiB)                       for a shorter secret
//   WithSecret   = BLAKE2b(key: master; the other key, then the purpose)
//
// A short secret may be a word, and words can be tried one after the other against a recorded
// handshake. Argon2id makes each trial as dear as the job's own start. The salt is fixed, because
// the ranks have nothing in common but the secret before they meet; a guesser must therefore pay
// for each word once, and not once for each job. A long secret has too many values to be tried.
//
// Any thread may call these functions.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/erased.h"
#include "base/status.h"
#include "bootstrap/unique_id.h"

namespace tutti {

// From this length on a secret is used as it is.
inline constexpr size_t kLongSecretBytes = 32;
// A secret below this length is warned of.
inline constexpr size_t kShortSecretBytes = 16;

// Returns the key for `purpose` that `key` and `secret` make together. Returns `key` unchanged
// where `secret` is empty. Different purposes ("bootstrap", "network") give unrelated keys. The
// first call with a short secret takes about 0.05 s and 32 MiB; the process keeps the last master
// key.
Key WithSecret(const Key& key, std::string_view secret, std::string_view purpose);

// Returns a secret that nobody guesses: 32 random bytes as hexadecimal digits.
ErasedText RandomSecret();

// Returns the part of a sentence that says where the secret of this process comes from (`source`,
// empty without a secret: config/secret.h) and how to find the host with another secret.
std::string SecretAdvice(std::string_view source);

// Returns the part of a sentence about `count` connections that did not prove the job's key. Empty
// where there are none. `source` as in SecretAdvice.
std::string DescribeRejected(uint64_t count, std::string_view source);

// Lets ranks meet over TCP at `place`: with a secret, or with `insecure` (TUTTI_INSECURE) and a
// warning. InvalidUsage otherwise, in a sentence that says how to give a secret.
Status CheckMeetingOverTcp(std::string_view secret, bool insecure, std::string_view place);

}  // namespace tutti
