#pragma once

// Describes failures of verbs as sentences: the event, the port, the peer, and the advice.

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "transport/net/verbs/library.h"
#include "transport/net/verbs/options.h"

namespace tutti {

// Describes a completion with an error. `doing` is the request ("writing 4096 bytes"), and `local`
// and `remote` name the ports. Returns RemoteError where the peer or the way to the peer is the
// cause.
Status DescribeCompletion(const VerbsLibrary& library, const ibv_wc& completion,
                          std::string_view doing, std::string_view local, std::string_view remote,
                          const VerbsOptions& options);

// Returns whether renewed queue pairs may succeed after a completion of this status: the way to the
// peer or a queue pair has failed, but neither end has attempted a forbidden access.
bool MayRecover(ibv_wc_status status);

// Returns whether a device or port is unusable after this event.
bool IsFatal(ibv_event_type event);

// Describes an asynchronous event; `port` is 0 for an event of the whole device.
std::string DescribeEvent(const VerbsLibrary& library, ibv_event_type event,
                          std::string_view device, int port);

// Describes a refusal of the system to make an object. `error` is an errno value.
Status DescribeRefusal(int error, std::string_view what, std::string_view device);

}  // namespace tutti
