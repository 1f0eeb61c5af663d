#pragma once

// A rank's side of the root's protocol.

#include <functional>

#include "base/status.h"
#include "bootstrap/root_messages.h"
#include "bootstrap/unique_id.h"
#include "sys/tcp.h"

namespace tutti {

// Sends `request` to the root of `id` and waits for the answer: the contacts of the wanted ranks,
// or the reason why the job cannot start. With NCCL_COMM_ID the root may not have been started yet,
// so connecting is tried again until the deadline; an ordinary id's root exists before anybody has
// the id. The answer may take until the root's deadline, so the wait goes on for kAnswerGraceNs
// beyond `limits`. `secret_source` is the setting, for the sentence of a failed proof. Where the
// abort flag of `limits` ends the wait, the other ranks hear the text of `abort_reason` (may be
// empty). `on_reached` gets the connection's further key before the wait for the answer, and may be
// empty; AskRoot returns the failure of `on_reached`.
Result<RootAnswer> AskRoot(const UniqueId& id, RootRequest request, const WaitLimits& limits,
                           std::string_view secret_source,
                           const std::function<Status()>& abort_reason = {},
                           const std::function<Status(const SecretKey&)>& on_reached = {});
inline constexpr int64_t kAnswerGraceNs = 1'000'000'000;

// Ends the root of a job of a single rank. Such a rank needs no addresses, but the root waits for
// the rank. Fails only when the root knows of other ranks, not when the root is gone or out of
// reach. Takes kReleaseNs at most.
Status ReleaseRoot(const UniqueId& id, RootRequest request, const WaitLimits& limits);
inline constexpr int64_t kReleaseNs = 1'000'000'000;

// Tells the root of `id` that the rank of `request` cannot take part, so that the others hear `why`
// and do not wait until the deadline. Best effort; takes kReleaseNs at most.
void DeclineJob(const UniqueId& id, RootRequest request, const Status& why,
                const WaitLimits& limits);

}  // namespace tutti
