#pragma once

// The coordinator: Horovod's background architecture on Tutti's communicators. Many tensors become
// ready in a different order on every rank; the coordinator agrees on an order, fuses small
// tensors, notices missing ranks, and shows where the time goes.
//
//   Coordinator            one a rank; owns the sets, carries round calls, notices lost ranks
//     ProcessSet           queue, loop, negotiation and data of one set of ranks (process_set.h)
//       Controller         one round of negotiation (controller.h)
//         Exchange         how controllers talk (exchange.h)
//         ResponseCache    what was agreed on before
//       Performer          runs fused batches (performer.h)
//         Operations       how data moves (operations.h)
//
// The module uses nccl.h and tutti/tutti.h, and of the library's inside only the modules that
// tools/checks/module_order allows. The module has no global state: a process may hold any number
// of coordinators, of one job or of several.
//
// A coordinator has the connections of two bootstraps: the communicators' own, and its own. Over
// the latter, small messages (round calls) bring ranks into a round, and the death of a rank is
// noticed (docs/bootstrap.md).
//
// Threads: every function from any thread; Create and Shutdown block. Beside the callers a
// coordinator has a loop thread for round calls and ticks, a thread per set for rounds, and a
// thread per set for large data, all asleep while nothing is pending (docs/thread_model.md).

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "config/settings.h"
#include "coordinator/clock_meter.h"
#include "coordinator/communicator.h"
#include "coordinator/gpu.h"
#include "coordinator/gpu_communicator.h"
#include "coordinator/operations_plugin.h"
#include "coordinator/process_set.h"
#include "coordinator/set_making.h"
#include "coordinator/set_mismatch_watch.h"
#include "coordinator/timeline.h"
#include "sys/event_loop.h"

namespace tutti::coordinator {

class Coordinator {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    // Says where this rank stands on its host, and its host among hosts. Used for hierarchical
    // operations only, which need ranks numbered host by host and equally many ranks on each host.
    HierarchyShape place;
    UniqueId id;
    Settings settings;
    // Opens the device of tensors on GPUs.
    std::function<Result<std::shared_ptr<Gpu>>(int device)> open_gpu = MakeCudaGpu;
    // Finds the plugins named by HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS.
    FindPluginFor find_plugin = FindViablePlugin;
    // The clock by which the timeline tells the time.
    WallClock clock = WallClock::OfSystem();
  };

  // Finds the other ranks; all of them call it. Fails on every rank with the reason.
  static Result<std::unique_ptr<Coordinator>> Create(const Options& options);
  // Shuts the coordinator down first.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  int rank() const { return options_.rank; }
  int num_ranks() const { return options_.num_ranks; }
  Timeline& timeline() { return timeline_; }
  // Opens the timeline of this rank: `path` on rank 0, and `path`.N on rank N. Not collective: any
  // ranks may have a timeline, from any time on.
  Status StartTimeline(const std::string& path, bool mark_rounds);

  // Set 0 is the set of all ranks. InvalidArgument for a number without a set, for a set that is
  // still being made, and for a set without this rank.
  Result<std::shared_ptr<ProcessSet>> FindSet(int id) const;
  // Returns the ranks of a set, also of a set without this rank.
  Result<std::vector<int>> SetRanks(int id) const;
  // Every rank calls these, with the same arguments; they block.
  Result<int> AddSet(std::vector<int> ranks);
  Status RemoveSet(int id);

  // Ends all sets on all ranks. Pending work fails, here and elsewhere, with the reason unless the
  // reason is empty.
  void Shutdown(const std::string& reason);
  // Returns the reason for the end of set 0, or ok.
  Status ended() const;

 private:
  static constexpr size_t kNumGpuKinds = 5;  // the kinds of operations that move data
  // How long ranks wait for one another in the last round of a set. A rank that cannot take part in
  // the last round is past helping.
  static constexpr double kShutdownS = 30;
  // Returns a quarter of a timeout, in ns: how often to check so that the timeout is met.
  static int64_t QuarterOf(double seconds);
  struct Communicators {
    Communicator control;
    Communicator data;
    Communicator local;
    Communicator cross;
    // The communicators of GPUs are made when they are first needed, perhaps after a break. A
    // communicator in use is read without the lock, by the thread that made the communicator.
    Mutex gpu_mutex;
    bool broken TUTTI_GUARDED_BY(gpu_mutex) = false;
    bool library_broken TUTTI_GUARDED_BY(gpu_mutex) = false;
    // Another rank cannot join the others' GPUs by a library, inside which they wait for the rank.
    std::atomic<bool> join_failed = false;
    Communicator gpu;
    Communicator gpu_local;
    Communicator gpu_cross;
    std::vector<std::shared_ptr<GpuCommunicator>> gpu_library TUTTI_GUARDED_BY(gpu_mutex);
    void BreakOff();
    // Breaks the communicators of other libraries, which do not notice a lost rank.
    void BreakGpuLibrary();
  };
  struct SetRecord {
    std::vector<int> ranks;
    std::shared_ptr<ProcessSet> set;  // null where this rank is no member
    std::shared_ptr<Communicators> communicators;
  };
  // Settings that rank 0 decides for all ranks, so that all act alike.
  struct Common {
    Tuning tuning;
    uint64_t cache_capacity = 1024;
    bool fuse_groups = true;
    bool autotune = false;
    bool encrypt = false;  // TUTTI_ENCRYPT
    std::string controller;
    std::string cpu_operations;
    std::array<std::string, kNumGpuKinds> gpu_operations;  // One for each OpKind.
  };

  explicit Coordinator(const Options& options);
  Status Connect();
  Result<Common> AgreeOnSettings(ncclUniqueId* id);
  Status MakeGlobalSet(const Common& common, const ncclUniqueId& id);
  void ListenForEvents();
  std::shared_ptr<SetMaking> BeginMaking() TUTTI_EXCLUDES(mutex_);
  void EnterSet(int id, const SetRecord& record) TUTTI_EXCLUDES(mutex_);
  void BreakMaking(const Status& reason) TUTTI_EXCLUDES(mutex_);
  Result<bool> HasHierarchy(const Communicators& communicators) const;
  Status SplitHosts(const Common& common, Communicators& communicators);
  Result<std::shared_ptr<ProcessSet>> MakeSet(int id, const std::vector<int>& ranks,
                                              const std::shared_ptr<Communicators>& communicators,
                                              SetMaking& making) TUTTI_EXCLUDES(mutex_);
  ProcessSet::Hooks MakeHooks(int id, const std::vector<int>& ranks,
                              const std::shared_ptr<Communicators>& communicators);
  Result<std::shared_ptr<OperationsPlugin>> ChooseFor(std::string_view variable,
                                                      const std::string& list,
                                                      const std::string& own);
  GatherTexts TextGatherer() const;
  Status ChooseGpuOperations();
  Result<std::string> WhyNotEverywhere(const std::string& mine) const;
  Result<std::string> FindGpuLibrary();
  Result<std::string> FindGpuPlugin();
  Result<std::unique_ptr<Operations>> OpenPlugin(
      const std::shared_ptr<OperationsPlugin>& plugin, const std::vector<int>& ranks,
      ncclComm_t comm, const std::shared_ptr<Communicators>& communicators,
      SetMaking& making) const;
  Result<std::unique_ptr<Operations>> MakeHierarchy(
      const std::shared_ptr<Communicators>& communicators, SetMaking& making) const;
  std::unique_ptr<Autotune> MakeAutotune(const Communicators& communicators) const;
  Result<std::shared_ptr<Gpu>> OpenGpu(int device) const;
  using OperationsList = std::vector<std::unique_ptr<Operations>>;
  Result<GpuPerformer::Joined> JoinGpus(int set, const std::shared_ptr<Gpu>& gpu,
                                        const std::vector<int>& ranks,
                                        Communicators& communicators) const;
  Result<bool> AllJoined(const OperationsGroup& group, const Status& mine,
                         std::string_view otherwise, bool derived = false) const;
  Status JoinByTutti(const Gpu& gpu, const OperationsGroup& group, Communicators& communicators,
                     OperationsList& list) const;
  Status JoinHostsByTutti(const Gpu& gpu, const OperationsGroup& group,
                          Communicators& communicators, OperationsList& list) const;
  Status JoinByPlugin(const std::shared_ptr<Gpu>& gpu, OperationsGroup group,
                      OperationsList& list) const;
  Status JoinByLibrary(int set, const std::shared_ptr<Gpu>& gpu, const OperationsGroup& group,
                       Communicators& communicators, OperationsList& list) const;
  Result<std::shared_ptr<GpuCommunicator>> OpenLibrary(int set, const std::shared_ptr<Gpu>& gpu,
                                                       const OperationsGroup& all,
                                                       const OperationsGroup& group,
                                                       Communicators& communicators) const;
  OperationsGroup PartOf(const OperationsGroup& group, bool across) const;
  Result<int> ChangeSets(const Agreement& agreement);
  Status JoinSet(int id, ncclComm_t parent, SetMaking& making, SetRecord& record);
  Status AllMade(ncclComm_t parent, const Status& mine) const;
  Result<int> AddSetNow(const std::vector<int>& ranks);
  Result<int> RemoveSetNow(int id);
  Status ChangeAndWait(const tuttiTensor_t& change, int* number) const;
  void OnControl(std::span<const std::byte> payload);
  ClockMeter::Hooks ClockHooks();
  void TendTimeline();
  std::vector<int> NeighboursOf(const std::vector<int>& ranks) const;
  void TellJoinFailed(int set, const std::vector<int>& ranks) const;
  void OnLost(int rank, const std::string& why, bool died);
  void OnTick();
  std::vector<std::shared_ptr<ProcessSet>> LiveSets() const;
  // Returns this rank's place among the ranks; their number where the rank is none of them.
  int PlaceIn(const std::vector<int>& ranks) const;
  OperationsGroup GroupOf(const std::vector<int>& ranks, ncclComm_t data) const;

  const Options options_;
  Common common_;
  std::shared_ptr<OperationsPlugin> controller_plugin_;  // null: Tutti's own
  std::shared_ptr<OperationsPlugin> data_plugin_;
  std::shared_ptr<const NcclLibrary> gpu_library_;  // null: Tutti's own alone
  TakenKinds gpu_library_takes_;
  std::shared_ptr<OperationsPlugin> gpu_plugin_;  // null: none takes the memory of GPUs
  TakenKinds gpu_plugin_takes_;
  Timeline timeline_;
  // These three belong to the loop's thread.
  ClockMeter clock_meter_;
  int64_t next_measure_ns_ = 0;
  EventLoop::TimerId tick_ = 0;
  std::shared_ptr<HierarchySwitches> switches_ = std::make_shared<HierarchySwitches>();
  int64_t tick_ns_ = 1'000'000'000;
  SetMismatchWatch mismatch_watch_;

  // Held for moments only, because the loop's thread needs the mutex to notice a lost rank. Nothing
  // that waits for other ranks may be called while the mutex is held.
  mutable Mutex mutex_;
  std::map<int, SetRecord> sets_ TUTTI_GUARDED_BY(mutex_);
  // The set under construction, of number next_set_; null while there is none.
  std::shared_ptr<SetMaking> making_ TUTTI_GUARDED_BY(mutex_);
  // Rounds of calls for sets that this rank does not know yet.
  std::map<int, uint64_t> early_round_calls_ TUTTI_GUARDED_BY(mutex_);
  int next_set_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool closing_ TUTTI_GUARDED_BY(mutex_) = false;

  // The last member, so that the loop ends before the members used by its callbacks.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Bootstrap> bootstrap_;
};

}  // namespace tutti::coordinator
