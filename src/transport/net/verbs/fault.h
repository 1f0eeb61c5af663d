#pragma once

// Failures of verbs as sentences: what happened, on which port, toward whom, and what to try.

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "transport/net/verbs/library.h"
#include "transport/net/verbs/options.h"

namespace tutti {

// Says what a completion with an error means. `doing` is what was asked for ("writing 4096 bytes"),
// `local` and `remote` name the ports. RemoteError where the other end or the way to it is the
// cause.
Status DescribeCompletion(const VerbsLibrary& library, const ibv_wc& completion,
                          std::string_view doing, std::string_view local, std::string_view remote,
                          const VerbsOptions& options);

// Returns whether queue pairs that are made again may succeed where a completion had this status:
// the way to the other end failed, or a queue pair, but neither end did what it must not.
bool MayRecover(ibv_wc_status status);

// Returns whether a device or port cannot be used any more after this event.
bool IsFatal(ibv_event_type event);

// Says what an asynchronous event of a device means; `port` is 0 where it is the whole device's.
std::string DescribeEvent(const VerbsLibrary& library, ibv_event_type event,
                          std::string_view device, int port);

// Refusals of the system while something was made. `error` is an errno value.
Status DescribeRefusal(int error, std::string_view what, std::string_view device);

}  // namespace tutti
