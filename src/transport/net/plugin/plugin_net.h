#pragma once

// A network behind a plugin of NCCL's (plugin_library.h).
//
// A plugin has no descriptors to wait for, so its connections are polled; it carries no op_tag; and
// a receive is posted only for a message that is sure to come, because a plugin expects each
// request to be tested to its end.
//
// Authentication: the plugin's connections are its own. They are made with handles that travel over
// the authenticated bootstrap, but what else the plugin lets in is its maker's business.
//
// Threads: as Net. One mutex for each context keeps two threads out of the plugin at the same time,
// which NCCL promises; it is held for one call, and the plugin's calls return at once.

#include <cstdint>
#include <memory>

#include "transport/net/net.h"
#include "transport/net/plugin/plugin_library.h"

namespace tutti {

class PluginNet {
 public:
  // Initialises the plugin for one communicator, whose number `comm_id` is the same on all ranks.
  // Fails, with the plugin's name and result, when its init does or it has no devices.
  // `events` takes what the plugin reports of its work; null where nobody asks.
  static Result<std::unique_ptr<Net>> Create(std::shared_ptr<PluginLibrary> library,
                                             uint64_t comm_id,
                                             std::shared_ptr<NetEvents> events = nullptr);
};

}  // namespace tutti
