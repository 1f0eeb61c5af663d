#pragma once

// The network over TCP sockets, for any two hosts that reach each other. Every connection proves
// the job's key (bootstrap/auth.h) before a byte of it is parsed.
//
// A rank listens at one address per device, for all its listeners; the hello of a connection
// carries the token of the listener that it is for (data_hello.h). A connection has a control
// socket and as many data sockets as the connecting side's settings say; the hello also says which
// of them this is.
//
// Threads: as Net. Callbacks run on the loop's thread.

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/unique_id.h"
#include "config/settings.h"
#include "sys/event_loop.h"
#include "transport/net/net.h"
#include "transport/net/socket/paths.h"

namespace tutti {

class SocketNet {
 public:
  struct Options {
    // Listen here and nowhere else (port 0); an address that the bootstrap has found to reach the
    // peers, say. When it is not valid, devices are the interfaces that the settings admit.
    SocketAddress address;
    // With `address`: further ones, each a device of its own.
    std::vector<SocketAddress> others;
    SocketPaths::Times path_times;
  };
  // `loop` outlives the network; listeners and comms do not.
  static Result<std::unique_ptr<Net>> Create(EventLoop& loop, const Key& key,
                                             const Settings& settings, const Options& options);
};

}  // namespace tutti
