#pragma once

// A rank's side of the root's protocol.

#include <functional>
#include <string>

#include "base/status.h"
#include "bootstrap/root_messages.h"
#include "bootstrap/unique_id.h"
#include "sys/tcp.h"

namespace tutti {

// What a rank brings to the wait for its root.
struct RootWait {
  WaitLimits limits;
  int dead_after_s = 10;      // A root whose host acknowledges nothing for this long is lost.
  std::string secret_source;  // the setting, for the sentence of a failed proof
  std::string name;           // of the communicator, for sentences. May be empty.
  // Where the abort flag of `limits` ends the wait, the other ranks hear the text of this. May be
  // empty.
  std::function<Status()> abort_reason;
};

// Sends `request` to the root of `id` and waits for the answer: the contacts of the wanted ranks,
// or the reason why the job cannot start. Meanwhile warns of the ranks that the root misses. With
// NCCL_COMM_ID the root may not have been started yet, so connecting is tried again until the
// deadline; an ordinary id's root exists before anybody has the id. The answer may take until the
// root's deadline, so the wait goes on for kAnswerGraceNs beyond the limits. Where this process
// stood still during the wait, moves the deadline of `wait`. A connection that is reset during the
// wait is made again, as often as kConnectAttempts allows.
Result<RootAnswer> AskRoot(const UniqueId& id, RootRequest request, RootWait& wait);
inline constexpr int64_t kAnswerGraceNs = 1'000'000'000;

// Ends the root of a job of a single rank. Such a rank needs no addresses, but the root waits for
// the rank. Fails only when the root knows of other ranks, not when the root is gone or out of
// reach. Takes kReleaseNs at most.
Status ReleaseRoot(const UniqueId& id, RootRequest request, const WaitLimits& limits);
inline constexpr int64_t kReleaseNs = 1'000'000'000;

// Tells the root of `id` that the rank of `request` cannot take part, so that the others hear `why`
// and do not wait until the deadline. Best effort; takes twice kReleaseNs at most.
void DeclineJob(const UniqueId& id, RootRequest request, const Status& why,
                const WaitLimits& limits);

}  // namespace tutti
