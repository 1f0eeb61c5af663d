#pragma once

// A network behind a plugin for NCCL (plugin_library.h).
//
// A plugin has no descriptors to wait for, hence its connections are polled. A plugin carries no
// op_tag. A receive is posted only for a message that is sure to come, because a plugin expects
// each request to be tested to its end.
//
// Authentication: the plugin makes its own connections, with handles that travel over the
// authenticated bootstrap. Its maker decides about further connections.
//
// Threads: as Net. One mutex for each context keeps two threads out of the plugin at the same time,
// as NCCL promises plugins. The mutex is held for one call, and the plugin's calls return at once.

#include <cstdint>
#include <memory>

#include "transport/net/net.h"
#include "transport/net/plugin/plugin_library.h"

namespace tutti {

class PluginNet {
 public:
  // Initialises the plugin for the communicator with the number `comm_id`, which is the same on all
  // ranks. Fails, with the plugin's name and result, when the plugin's init fails or the plugin has
  // no devices. `events` receives the plugin's reports about its work; null where nobody wants
  // them.
  static Result<std::unique_ptr<Net>> Create(std::shared_ptr<PluginLibrary> library,
                                             uint64_t comm_id,
                                             std::shared_ptr<NetEvents> events = nullptr);
};

}  // namespace tutti
