#pragma once

// One-sided operations over a network that joins all ranks by one collective call and registers
// memory on all ranks together, as plugins for NCCL do (plugin/rma_plugin_group.h). A NetRmaComm of
// such a group keeps the same promises as any NetRmaComm (rma.h).
//
//   rank                                              all ranks
//   RmaGroups::Open() → RmaGroupListener
//     handle() ──────────── bootstrap, to all ───────▶ Join(handles, rank) → RmaGroup
//     Register(region) ───── the same call on all ───▶ key of the memory of all ranks
//     MakeComm(peer) → NetRmaComm

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/net/rma.h"

namespace tutti {

class RmaGroup {
 public:
  virtual ~RmaGroup() = default;

  // Registers memory that all ranks of the group reach. All ranks make this call together and in
  // the same order. The remote_key() of the result names the memory that each rank brought to this
  // call. Each rank destroys its registration on its own, before the group.
  virtual Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) = 0;
  // Returns a comm to a rank. Register of the comm takes memory for the comm's own puts only. A put
  // from memory outside every registration of the group must be short (LongestPut). The group
  // outlives the comm.
  virtual std::unique_ptr<NetRmaComm> MakeComm(int peer) = 0;
  // Returns the most bytes of a put from `memory`, which comes from this group or one of its comms.
  virtual size_t LongestPut(const NetMemory& memory) const = 0;
  // Says whether signals can be strong, and whether a signal's word can lie in any window.
  virtual bool has_strong_signals() const = 0;
  virtual bool has_va_signals() const = 0;
  // Returns the network's name in error messages: "plugin NAME".
  virtual std::string_view name() const = 0;
};

// The end at which a rank is joined.
class RmaGroupListener {
 public:
  virtual ~RmaGroupListener() = default;
  virtual const NetHandle& handle() const = 0;
  // Joins the ranks. All ranks make this call together, with the handles of all ranks in order. The
  // call may wait for the other ranks without a limit where a plugin does.
  virtual Result<std::unique_ptr<RmaGroup>> Join(std::span<const NetHandle> handles, int rank) = 0;
};

// The networks with groups that a rank can use.
class RmaGroups {
 public:
  virtual ~RmaGroups() = default;
  // Returns a number for each network, in the rank's order of preference. Its number is the same
  // everywhere.
  virtual std::vector<uint64_t> names() const = 0;
  virtual std::string_view NameOf(uint64_t name) const = 0;
  // Opens a network for the communicator with the number `number`, which is the same on all ranks.
  virtual Result<std::unique_ptr<RmaGroupListener>> Open(uint64_t name, uint64_t number) = 0;
};

}  // namespace tutti
