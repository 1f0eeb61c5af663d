#pragma once

// Plugins with one-sided operations as the networks of rma_group.h.
//
// Each communicator has a context of its own in a plugin. Two mutexes keep threads apart in a
// context: one for set-up, which may wait for other ranks, and one for moving data. Operations
// therefore go on while this rank waits for another rank in a registration.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/settings.h"
#include "transport/net/rma_group.h"

namespace tutti {

class RmaPlugins final : public RmaGroups {
 public:
  // Looks for plugins in the libraries that the settings name (NCCL_RMA_PLUGIN, NCCL_GIN_PLUGIN,
  // NCCL_NET_PLUGIN). Returns null where there are none. `own_nic` is the folder in sysfs of the
  // NIC nearest to the rank, or empty. Of a plugin's devices the device with this folder is taken,
  // and otherwise the first.
  static std::unique_ptr<RmaGroups> Find(const Settings& settings, std::string own_nic);

  ~RmaPlugins() override;

  std::vector<uint64_t> names() const override;
  std::string_view NameOf(uint64_t name) const override;
  Result<std::unique_ptr<RmaGroupListener>> Open(uint64_t name, uint64_t number) override;

 private:
  struct Candidate;
  RmaPlugins(std::vector<Candidate> candidates, std::string own_nic);

  const std::vector<Candidate> candidates_;
  const std::string own_nic_;
};

}  // namespace tutti
