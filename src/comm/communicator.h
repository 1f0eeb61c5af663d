#pragma once

// A communicator: ranks, the watch over them, and their operations.
//
// A communicator is made in named steps (init.cc): bootstrap → who is where → operations (join.h)
// of one of three kinds (operations/operations.h). The handle from the API owns the communicator
// (comm/handle.h), which owns everything below. A failure stops the communicator for good
// (watch/watch.h): later operations return the first reason.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "comm/device_communicators.h"
#include "comm/process.h"
#include "comm/rank_device.h"
#include "config/settings.h"
#include "nccl.h"
#include "operations/agreement.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "operations/tuner/tuner_plugin.h"
#include "sys/network_interface.h"
#include "transport/shm/remote_copy.h"
#include "watch/slow_rank_finder.h"
#include "watch/watch.h"
#include "window/one_sided.h"
#include "window/symmetric_memory.h"

namespace tutti {

struct PlanContext;

class Communicator {
 public:
  struct InitOptions {
    std::vector<UniqueId> ids;
    int rank = 0;
    int num_ranks = 1;
    std::string name;      // Shown in logs. May be empty.
    int cuda_device = -1;  // CUDA's number of this rank's GPU; -1 makes the rank a host device.
    // Raising the flag ends initialisation early. The bootstrap raises the flag when initialisation
    // fails for all ranks (Bootstrap::Options).
    std::atomic<bool>* abort_flag = nullptr;
    std::function<Status()> abort_reason = {};
    std::vector<int> shown_ranks = {};  // As in tuttiConfig_t; empty: the ranks.
  };

  // Blocks until all ranks are there. Fails on every rank with the same reason where possible.
  static Result<std::unique_ptr<Communicator>> Init(Process& process, const Settings& settings,
                                                    const InitOptions& options);
  // Makes the communicator of `parent_ranks`, which include this rank and are known to all of them.
  // `abort_flag` and `abort_reason` are as in InitOptions.
  static Result<std::unique_ptr<Communicator>> InitChild(
      Communicator& parent, uint64_t child_id, std::vector<int> parent_ranks, std::string name,
      std::atomic<bool>* abort_flag, const std::function<Status()>& abort_reason);
  // REQUIRES: every call has returned, and every ticket was run (HandleTable::Remove).
  ~Communicator();

  int rank() const { return bootstrap_->rank(); }
  int num_ranks() const { return bootstrap_->num_ranks(); }
  const std::string& name() const { return name_; }
  const RankDevice& device() const { return *device_; }
  const Settings& settings() const { return settings_; }
  Process& process() { return process_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  Watch& watch() { return *watch_; }
  const std::vector<PeerInfo>& peers() const { return peers_; }
  Operations& operations() { return *operations_; }
  const Operations& operations() const { return *operations_; }
  // Returns the deadline of a step that begins now in which ranks come to life or end.
  Deadline InitDeadline() const { return Deadline::AfterSeconds(settings_.init_timeout_s); }
  // Returns the deadline of a joint step of all ranks of this communicator that begins now: the
  // shorter of the two time-outs, because the ranks exist already.
  Deadline JointDeadline() const { return Deadline::AfterSeconds(JointTimeout().seconds); }
  // Returns the ranks for a step that begins now. The step ends when any rank stops the
  // communicator.
  JointRanks ranks() const {
    return {bootstrap_.get(), peers_, JointDeadline(), &watch_->stop_flag()};
  }

  // Returns the number of the next child of all ranks. The numbers are alike on all ranks, because
  // all make the children in the same order.
  uint64_t NextChildNumber() { return ++children_; }
  // Returns how many shrinks have left out just these ranks. The ranks left out know nothing of a
  // shrink, so that a common count of all shrinks would differ from rank to rank ever after.
  uint64_t NextShrinkNumber(const std::vector<int>& excluded) { return ++shrinks_[excluded]; }

  SymmetricMemory& symmetric() { return *symmetric_; }
  // Registers a window; all ranks call it together. With NCCL_WIN_COLL_SYMMETRIC, operations work
  // in the window from now on where they gain by that. Returns null on all ranks where the memory
  // of a rank cannot be mapped by others. Where a rank refuses, all fail with the rank's reason,
  // and the communicator lives on; any other failure stops the communicator.
  enum class WindowUse : uint8_t { kOfProgram, kResource };  // kResource: of a device communicator
  Result<std::shared_ptr<const Window>> RegisterWindow(const SymmetricMemory::Request& request,
                                                       WindowUse use = WindowUse::kOfProgram);
  // Agrees with all ranks on the outcome of a step; all ranks call this together, in the API call
  // `step`. Returns the reason of the first failed rank, the same on all ranks, and the
  // communicator lives on. Stops the communicator where the ranks cannot talk.
  Status AgreeInStep(const std::string& step, const Status& mine);
  // Stops the communicator after a failed joint step, and returns why. Some ranks may have got
  // further than others, and then no later joint step would fit.
  Status StopAfterStep(Status failure);
  // Ends a window on this rank, after all queued work of the device. Any thread.
  Status DeregisterWindow(ncclWindow_t handle);

  // Give back the memory that only carries data, and take it again (suspend.cc). All ranks call
  // each together. Where a rank refuses, `wrong` among the reasons, all fail with the rank's reason
  // and the communicator is as before; any other failure stops the communicator.
  Status Suspend(const Status& wrong);
  Status Resume();
  // Returns whether the memory is given back, or about to be. Any thread.
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }

  DeviceCommunicators& device_communicators() { return device_communicators_; }

  // Ends all waits, here and (if `tell`) on the other ranks.
  void Stop(const Status& reason, bool tell) { watch_->Stop(reason, tell); }

  // Returns whether one-sided calls reach all ranks once a window has been registered; the same on
  // all ranks.
  bool CanDoOneSided() const;
  // Returns whether kernels can put to all ranks; the same on all ranks.
  bool CanDoGin() const;
  // Returns the maker of one-sided calls. Returns InvalidUsage before the first window, and where
  // calls are impossible. Any thread.
  Result<OneSided*> one_sided();

  // Returns the JSON object of tuttiCommDescribe.
  std::string DescribeAsJson() const;
  // Returns this rank's place among the ranks of its machine.
  int LocalRank() const;

 private:
  // The whole making of the communicator may last `init_timeout_s`.
  Communicator(Process& process, const Settings& settings, std::string name, int cuda_device,
               double init_timeout_s, observe::Identity identity);
  // The time-out of joint steps, and its setting.
  struct JointTime {
    double seconds;
    const char* setting;
  };
  JointTime JointTimeout() const {
    const bool shorter = settings_.timeout_s > 0 && settings_.timeout_s < settings_.init_timeout_s;
    return shorter ? JointTime{settings_.timeout_s, "TUTTI_TIMEOUT_S"}
                   : JointTime{settings_.init_timeout_s, "TUTTI_INIT_TIMEOUT_S"};
  }
  // Returns the JSON object that says how data between hosts are protected.
  std::string DescribeProtection() const;

  // The steps of initialisation (init.cc).
  static Result<std::unique_ptr<Communicator>> Built(std::unique_ptr<Communicator> comm,
                                                     std::atomic<bool>* abort_flag,
                                                     const std::function<Status()>& abort_reason);
  Status Build(std::atomic<bool>* abort_flag);
  // Takes the last step: the communicator is made, and the watch listens.
  Status Open();
  // Shows the ranks, which have met, in this rank's record.
  void ShowRanks();
  // Exchanges the ranks' records. `has_tuner` says whether this rank has found a tuner.
  Status ExchangePeers(bool has_tuner, PlanContext& lists);
  Status CheckSharedMemory(PeerInfo& self) const;
  // Makes the tuner of the communicator from the first usable library, if every rank has a tuner.
  // Ranks that choose differently would not meet.
  Status MakeTuner(std::span<const PluginFile> libraries, const std::atomic<bool>* abort_flag);
  Status MakeSymmetricMemory();
  bool HasOneSidedNetwork() const;
  void UseInOperations(const Window& window, bool is_symmetric);
  // Ends a step of joint calls. Returns the refusal, the same on all ranks, or stops the
  // communicator where the ranks could not talk.
  Status Concluded(Result<Agreement> agreed);
  Result<Agreement> GiveBackMemory(const Status& wrong);
  Result<Agreement> TakeBackMemory();
  Result<SymmetricMemory::Outcome> Register(const SymmetricMemory::Request& request, WindowUse use);
  Result<Agreement> ShareWithOthers(const Window& window, WindowUse use, const JointRanks& ranks);
  Status MakeOneSided(const JointRanks& ranks);
  Status MakeGpuOneSided();
  void LogTransports() const;

  Process& process_;
  const Settings settings_;
  const std::string name_;
  const std::unique_ptr<RankDevice> device_;
  // The record of this communicator for other processes, until the watch takes it.
  observe::OwnedRecord record_;
  const Deadline init_deadline_;  // The deadline of all steps of initialisation together.
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Watch> watch_;
  std::vector<PeerInfo> peers_;
  std::vector<int> shown_ranks_;              // As in InitOptions.
  std::vector<NetworkInterface> interfaces_;  // This host's interfaces, read once.
  RemoteToken probe_token_ = {};        // Peers find the token as proof of reading this memory.
  std::unique_ptr<TunerPlugin> tuner_;  // Advises the operations. Null: no tuner.
  std::unique_ptr<Operations> operations_;
  std::unique_ptr<SymmetricMemory> symmetric_;
  DeviceCommunicators device_communicators_{*this};
  Mutex registrations_mutex_;
  // Made with the first window; lives until the end.
  std::unique_ptr<OneSided> one_sided_ TUTTI_GUARDED_BY(registrations_mutex_);
  Status why_no_one_sided_ TUTTI_GUARDED_BY(registrations_mutex_);
  std::atomic<OneSided*> calls_on_streams_ = nullptr;  // one_sided_ of GPUs, without the lock.
  // The tokens of Operations::Register, by window.
  std::map<ncclWindow_t, const void*> registrations_ TUTTI_GUARDED_BY(registrations_mutex_);
  std::atomic<bool> suspended_ = false;
  uint64_t children_ = 0;
  // How often a shrink left out each sorted set of ranks.
  std::map<std::vector<int>, uint64_t> shrinks_;
  std::unique_ptr<SlowRankFinder> slow_ranks_;  // Null: TUTTI_FIND_SLOW_RANKS is 0, or no others.
};

}  // namespace tutti
