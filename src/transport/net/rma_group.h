#pragma once

// One-sided operations over a network whose ranks are joined by one call of all of them, and which
// registers memory on all of them together: that of plugins made for NCCL (plugin/rma_group.h).
// What a NetRmaComm of such a group promises is the same as of any other (rma.h).
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

  // Registers memory that all ranks of the group reach. All ranks call it together and in the same
  // order. Its remote_key() names the memory that each rank brought to this call. The memory ends
  // on each rank for itself, and before the group.
  virtual Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) = 0;
  // Returns a comm to a rank. Its Register takes memory for its own puts only; where that lies in
  // none that the group has registered, puts from it are short (LongestPut). The group outlives it.
  virtual std::unique_ptr<NetRmaComm> MakeComm(int peer) = 0;
  // Returns how many bytes a put from `memory` may have, which comes from here or from such a comm.
  virtual size_t LongestPut(const NetMemory& memory) const = 0;
  // Says whether signals can be strong, and can lie in any window.
  virtual bool has_strong_signals() const = 0;
  virtual bool has_va_signals() const = 0;
  // Returns what sentences call it: "plugin NAME".
  virtual std::string_view name() const = 0;
};

// The end at which a rank is joined.
class RmaGroupListener {
 public:
  virtual ~RmaGroupListener() = default;
  virtual const NetHandle& handle() const = 0;
  // Joins the ranks. All of them call it together, with the handles of all in order. May wait for
  // them without end, where a plugin does.
  virtual Result<std::unique_ptr<RmaGroup>> Join(std::span<const NetHandle> handles, int rank) = 0;
};

// The networks of this kind that a rank can use.
class RmaGroups {
 public:
  virtual ~RmaGroups() = default;
  // Returns a number for each network, in the order in which the rank would take them; the same on
  // all ranks that have the network.
  virtual std::vector<uint64_t> names() const = 0;
  virtual std::string_view NameOf(uint64_t name) const = 0;
  // Opens one of them for a communicator, to which `number` belongs on all ranks.
  virtual Result<std::unique_ptr<RmaGroupListener>> Open(uint64_t name, uint64_t number) = 0;
};

}  // namespace tutti
