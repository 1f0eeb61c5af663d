#pragma once

// Operations of others: MPI's, Gloo's, oneCCL's, those of a library with NCCL's interface. Each is
// a plugin that makes Operations for a set of ranks, and over those an Exchange as well
// (operations_exchange.h), so that negotiation may go the same way as the data.
//
// All but the last are shared libraries of their own (plugins/), looked up by name when they are
// asked for, so that Tutti itself needs none of them.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

// The ranks that will use what a plugin makes.
struct OperationsGroup {
  int rank = 0;              // The rank's number in the group.
  std::vector<int> members;  // ranks of the job, ascending
  // Gathers `bytes` of each rank of the group, by rank, into `all`: how a plugin's ranks find one
  // another.
  std::function<Status(const void* mine, size_t bytes, void* all)> gather;
  // The operations get memory of the ranks' GPUs, which the plugin takes (TakesGpuMemory), and work
  // where no average is asked for.
  bool gpu_memory = false;

  int size() const { return static_cast<int>(members.size()); }
};

class OperationsPlugin {
 public:
  virtual ~OperationsPlugin() = default;
  virtual std::string_view name() const = 0;
  // Returns ok if it can serve this process in a job of so many ranks, else why not. Asks no other
  // rank.
  virtual Status Viable(int rank, int num_ranks) = 0;
  // Returns whether its operations take memory of GPUs as they take the host's. REQUIRES: it is
  // viable.
  virtual bool TakesGpuMemory() { return false; }
  // All ranks of the group call it, one group at a time. What is made for one group shares no state
  // with that for another. It outlives the plugin.
  virtual Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) = 0;
};

// Returns a name of a list without spaces around it, and in small letters up to what may be a path.
std::string PlainName(std::string_view name);

// Finds the plugin of a name: "mpi", "gloo", "ccl", or "nccl:" and a library. InvalidUsage for
// another name or where there is no such library.
Result<std::shared_ptr<OperationsPlugin>> FindPlugin(const std::string& name);

// Returns the first plugin of its kind that is viable, or the last one's reason.
Result<std::shared_ptr<OperationsPlugin>> FindViablePlugin(const std::string& name, int rank,
                                                           int num_ranks);

// Returns the first of a comma-separated list that all ranks find viable; null where that is
// "tutti", or none is (which `why` explains). All ranks call it with the same list; `gather` gives
// every rank's text, by rank.
struct PluginChoice {
  std::shared_ptr<OperationsPlugin> plugin;
  std::string why;  // It names what was passed over.
};
using GatherTexts = std::function<Result<std::vector<std::string>>(const std::string& mine)>;
// Returns the plugin of a plain name that can serve this rank, or why there is none.
using FindPluginFor = std::function<Result<std::shared_ptr<OperationsPlugin>>(
    const std::string& name, int rank, int num_ranks)>;
Result<PluginChoice> ChoosePlugin(const std::string& list, int rank, int num_ranks,
                                  const GatherTexts& gather,
                                  const FindPluginFor& find = FindViablePlugin);

// The function that a plugin's library exports under kPluginSymbol. `version` is that of these
// headers.
inline constexpr char kPluginSymbol[] = "tuttiOperationsPlugin";
inline constexpr int kPluginVersion = 3;
using PluginEntry = OperationsPlugin* (*)(int version);  // null: another version

}  // namespace tutti::coordinator
