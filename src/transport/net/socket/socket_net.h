#pragma once

// The network over TCP sockets, for any two hosts that reach each other. Every connection proves
// the job's key (bootstrap/auth.h) before any further byte is parsed.
//
// A rank listens at one address per device, for all its listeners. The hello of a connection
// carries the token of its listener (data_hello.h). A connection has a control socket, and the
// number of data sockets that the connecting side's settings say. The hello also numbers the
// sockets.
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
    // The only address to listen at (port 0), for example the address by which the bootstrap
    // reaches the peers. When it is not valid, the devices are the interfaces that the settings
    // admit.
    SocketAddress address = {};
    // Where valid, an address of this host by which the ranks have met. The first device is the
    // address's interface, unless settings or the kind of another interface forbid that.
    SocketAddress near = {};
    // Further addresses beside `address`, each a device of its own.
    std::vector<SocketAddress> others = {};
    SocketPaths::Times path_times = {};
    // False stands for a processor without instructions for AES, in tests and measurements.
    bool use_aes = true;
  };
  // `loop` outlives the network; listeners and comms do not.
  static Result<std::unique_ptr<Net>> Create(EventLoop& loop, const Key& key,
                                             const Settings& settings, const Options& options);
};

}  // namespace tutti
