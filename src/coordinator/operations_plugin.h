#pragma once

// Operations of other libraries: MPI's, Gloo's, oneCCL's, and libraries with NCCL's interface. Each
// library is a plugin that makes Operations for a set of ranks, and over the Operations an Exchange
// as well (exchange.h), because negotiation may go the same way as the data.
//
// All plugins but the last are shared libraries of their own (plugins/), looked up by name on
// demand, and Tutti itself needs none of them.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

// The ranks that will use the operations of a plugin.
struct OperationsGroup {
  int rank = 0;              // The rank's number in the group.
  std::vector<int> members;  // ranks of the job, ascending
  // Gathers `bytes` of each rank of the group, by rank, into `all`: the way in which a plugin's
  // ranks find one another.
  std::function<Status(const void* mine, size_t bytes, void* all)> gather;
  // The operations get memory of the ranks' GPUs, which the plugin takes (TakesGpuMemory), and need
  // not serve averages.
  bool gpu_memory = false;

  int size() const { return static_cast<int>(members.size()); }
};

// The first rank that failed, if any: its place in the group, and its sentence.
using FirstFailure = std::optional<std::pair<size_t, std::string>>;

// Returns the first failure of all ranks in a step that all of them tried, the same on all: no rank
// may go on with a thing that another rank lacks. `gather` as in OperationsGroup. `derived`: this
// rank failed because another rank did, whose sentence is worth more.
Result<FirstFailure> CompareOutcomes(
    const std::function<Status(const void* mine, size_t bytes, void* all)>& gather,
    size_t num_ranks, const Status& mine, bool derived = false);

class OperationsPlugin {
 public:
  virtual ~OperationsPlugin() = default;
  virtual std::string_view name() const = 0;
  // Returns ok if the plugin can serve this process in a job of so many ranks, else the reason.
  // Asks no other rank.
  virtual Status Viable(int rank, int num_ranks) = 0;
  // Returns whether its operations take memory of GPUs as they take the host's. REQUIRES: the
  // plugin is viable.
  virtual bool TakesGpuMemory() { return false; }
  // Called by all ranks of the group, one group at a time. Operations of different groups share no
  // state. The operations outlive the plugin.
  virtual Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) = 0;
};

// Returns an entry of a list without spaces around the entry, and in small letters up to a possible
// path.
std::string PlainName(std::string_view name);

// Returns the entries of a comma-separated list as plain names.
std::vector<std::string> NamesIn(const std::string& list);

// Return ok where this rank may use the plugin of a name, and else the reason.
//
// MayLoad: a library of any path ("nccl:LIBRARY") is loaded only where this rank's own list, `own`,
// names the library. Rank 0 decides whose list counts, but must not choose the libraries that other
// processes load. `variable` is the name of the list.
Status MayLoad(const std::string& name, std::string_view variable, const std::string& own);
// MayCarryPlain: plugins do not encrypt. With encryption (TUTTI_ENCRYPT) a list that names tutti,
// too, leaves plugins out. A list without tutti asks for a plugin whatever that means.
Status MayCarryPlain(bool encrypt, const std::string& name, const std::string& list);
// Warns that a plugin carries data although encryption is asked for.
void WarnOfPlain(std::string_view variable, std::string_view plugin);

// Finds the plugin of a name: "mpi", "gloo", "ccl", or "nccl:" and a library. Returns the first of
// its kind that is viable. InvalidUsage, with the reasons, where there is none.
Result<std::shared_ptr<OperationsPlugin>> FindViablePlugin(const std::string& name, int rank,
                                                           int num_ranks);

// Returns the first plugin of a comma-separated list that all ranks find viable; null where the
// first is "tutti", or where no plugin is viable (which `why` explains). All ranks call with the
// same list; `gather` gives every rank's text, by rank.
struct PluginChoice {
  std::shared_ptr<OperationsPlugin> plugin;
  std::string why;  // names the plugins that were passed over
};
using GatherTexts = std::function<Result<std::vector<std::string>>(const std::string& mine)>;
// Returns the plugin of a plain name that can serve this rank, or the reason for none.
using FindPluginFor = std::function<Result<std::shared_ptr<OperationsPlugin>>(
    const std::string& name, int rank, int num_ranks)>;
Result<PluginChoice> ChoosePlugin(const std::string& list, int rank, int num_ranks,
                                  const GatherTexts& gather,
                                  const FindPluginFor& find = FindViablePlugin);

// The function that a plugin's library exports under kPluginSymbol. `version` is the version of
// these headers.
inline constexpr char kPluginSymbol[] = "tuttiOperationsPlugin";
inline constexpr int kPluginVersion = 3;
using PluginEntry = OperationsPlugin* (*)(int version);  // null: the plugin has another version

}  // namespace tutti::coordinator
