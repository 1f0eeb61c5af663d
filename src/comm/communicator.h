#pragma once

// A communicator: the ranks that work together, how they are joined, and the one place where their
// operations run.
//
// Made in named steps (init.cc): bootstrap → who is where → shared memory → network → what the
// hosts are made of (topology_step.h) → connections → executor. A communicator owns everything
// below it and is owned by the handle that the API gave out (comm/handle.h).
//
// Operations run one at a time, in the order in which tickets were taken, on whatever thread
// Execute is called from. A failure stops the communicator for good (watch.h): later operations
// return the first reason.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "comm/process.h"
#include "comm/topology_step.h"
#include "config/settings.h"
#include "gpu/gpu_operations.h"
#include "gpu/windows.h"
#include "operations/connections.h"
#include "operations/executor.h"
#include "operations/peer_info.h"
#include "operations/pull.h"
#include "plan/task.h"
#include "sys/network_interface.h"
#include "sys/shared_memory.h"
#include "transport/net/net.h"
#include "transport/shm/remote_copy.h"
#include "watch/call_checker.h"
#include "watch/watch.h"

namespace tutti {

class Communicator {
 public:
  struct InitOptions {
    std::vector<UniqueId> ids;
    int rank = 0;
    int num_ranks = 1;
    std::string name;      // for logs; may be empty
    int cuda_device = -1;  // this rank's GPU; -1: a host device
    // As in Bootstrap::Options: it ends initialisation early, and is raised when that fails for
    // all.
    std::atomic<bool>* abort_flag = nullptr;
    std::function<Status()> abort_reason = {};
  };

  // Blocks until all ranks are there. Fails on every rank with the same reason where that is
  // possible.
  static Result<std::unique_ptr<Communicator>> Init(Process& process, const Settings& settings,
                                                    const InitOptions& options);
  // The communicator of `parent_ranks` (which include this rank), known to all of them.
  // `abort_flag` and `abort_reason` are as in InitOptions.
  static Result<std::unique_ptr<Communicator>> InitChild(
      Communicator& parent, uint64_t child_id, std::vector<int> parent_ranks, std::string name,
      std::atomic<bool>* abort_flag, const std::function<Status()>& abort_reason);
  // REQUIRES: every call has returned, and every ticket was executed (ncclComm::AwaitRest).
  ~Communicator();

  int rank() const { return bootstrap_->rank(); }
  int num_ranks() const { return bootstrap_->num_ranks(); }
  const std::string& name() const { return name_; }
  int cuda_device() const { return cuda_device_; }  // -1: this rank is a host device
  const Settings& settings() const { return settings_; }
  Process& process() { return process_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  Watch& watch() { return *watch_; }
  const std::vector<PeerInfo>& peers() const { return peers_; }
  // For what is beginning now and is done together by all ranks.
  Deadline InitDeadline() const { return Deadline::AfterSeconds(settings_.init_timeout_s); }

  // Children that all ranks make are numbered alike on all of them, since all make them in the same
  // order.
  uint64_t NextChildNumber() { return ++children_; }
  // The ranks that a shrink leaves out know nothing of it and must not count differently ever
  // after: those that stay count the shrinks without just these ranks.
  uint64_t NextShrinkNumber(const std::vector<int>& excluded) { return ++shrinks_[excluded]; }

  // Operations take a ticket when they are issued and run in that order.
  uint64_t TakeTicket() { return next_ticket_.fetch_add(1, std::memory_order_relaxed); }
  // Waits for the ticket's turn, runs the tasks (collectives in order, then all messages together),
  // and passes the turn on. Every ticket taken must be executed, also after a failure.
  //
  // Timeout when the turn does not come because nobody executes the ticket whose turn it is, for
  // TUTTI_TIMEOUT_S; that stops the communicator, here and on the other ranks.
  Status Execute(uint64_t ticket, std::span<const Task> tasks);
  // Until everything issued so far has run. Timeout as above, but stops nothing. With a GPU, until
  // that has done all that is queued on it.
  Status WaitForTickets();

  // Whether this rank is a GPU. Its operations take no tickets: LaunchOnDevice queues them on their
  // streams, in the order of the calls, and returns.
  bool on_device() const { return gpu_ != nullptr; }
  Status LaunchOnDevice(std::span<const DeviceTask> tasks);

  // All ranks call it together, with buffers of one length and the same flags (NCCL_WIN_*): with
  // kSymmetricWindow, GPUs that reach one another's memory work in these buffers from now on.
  // `*registration`, for ForgetBuffer, is null on every rank where nothing is gained. Fails alike
  // on all ranks, with InvalidArgument, where lengths or flags differ; any other failure stops the
  // communicator.
  static constexpr int kSymmetricWindow = 1;
  Status RegisterBuffer(std::span<std::byte> buffer, int flags, const void** registration);
  // Waits until the GPU has done all that is queued on it.
  Status ForgetBuffer(const void* registration) {
    return registration != nullptr ? gpu_->Forget(registration) : Status::Ok();
  }

  // Ends all waits, here and (if `tell`) on the other ranks.
  void Stop(const Status& reason, bool tell) { watch_->Stop(reason, tell); }

  // In words, for the log; and as the JSON object of tuttiCommDescribe.
  std::string DescribeTransports() const;
  std::string DescribeAsJson() const;
  std::string DescribePlan(const Task& task) const {
    return gpu_ ? gpu_->Describe(task) : executor_->Describe(task);
  }
  // Before it is aborted by its user: whether all that was called was done by then.
  void NoteEnd() {
    done_at_end_ = gpu_ && !watch_->stopped() && gpu_->State() == QueueState::kDone;
  }
  double PredictUs(const Task& task) const {
    return gpu_ ? gpu_->PredictUs(task) : executor_->PredictUs(task);
  }
  // This rank's place among those of its machine.
  int LocalRank() const;
  // Bytes of memory that only this communicator needs.
  uint64_t MemoryBytes() const { return gpu_ ? gpu_->DeviceBytes() : arena_memory_.size(); }

 private:
  Communicator(Process& process, const Settings& settings, std::string name, int cuda_device)
      : process_(process),
        settings_(settings),
        name_(std::move(name)),
        cuda_device_(cuda_device),
        init_deadline_(InitDeadline()) {}

  // The steps of initialisation, in order (init.cc).
  static Result<std::unique_ptr<Communicator>> Built(std::unique_ptr<Communicator> comm,
                                                     std::atomic<bool>* abort_flag,
                                                     const std::function<Status()>& abort_reason);
  Status Build(std::atomic<bool>* abort_flag);
  // The last step: the communicator is made, and the watch listens.
  Status Open();
  // Instead of the steps from ShareMemory on, where ranks are GPUs.
  Status JoinGpus(std::atomic<bool>* abort_flag);
  Result<GpuPeers> DescribeGpus(Deadline deadline, const std::atomic<bool>* abort_flag);
  // Kernels that work in one another's windows, where those can be had; else null, and why.
  Status MakeMesh(const GpuPeers& peers, Status* why);
  // Else the hosts' communicators of the same ranks, which carry the data of GPUs.
  Status MakeRelay(const cuda::Device& device, std::atomic<bool>* abort_flag);
  Status ExchangePeers();
  void WarnOfEmptyLists() const;
  Status AttachArena(int leader, uint64_t offer, const ArenaLayout& layout, HugePages huge,
                     const std::atomic<bool>* abort_flag);
  Status ShareMemory(const std::atomic<bool>* abort_flag);
  bool CanReadPeers(std::span<const int> group) const;
  Status OpenNetwork();
  // With init_topology.cc: ring order, this rank's port, what the network costs.
  Status ChooseByTopology();
  HostQuestion AskAboutHost(std::span<const int> ranks) const;
  Result<HostAnswer> AnswerAboutHost(const HostQuestion& question);
  Status TellDifference(const Disagreement& disagreement, std::span<const int32_t> order);
  void LogChoice(const HostQuestion& question, const HostAnswer& answer) const;
  void PlaceMemory(int place);
  void MakeExecutor();
  void LogTransports() const;
  std::string DescribeHosts() const;  // how host ranks are joined
  Status AwaitTurn(uint64_t ticket);
  void PassTurn(uint64_t ticket);
  Status ExecuteInTurn(std::span<const Task> tasks);
  void Abandon(uint64_t ticket);
  void SkipAbandoned();

  Process& process_;
  const Settings settings_;
  const std::string name_;
  const int cuda_device_;
  bool is_lane_ = false;          // of a relay
  bool done_at_end_ = false;      // see NoteEnd
  const Deadline init_deadline_;  // for all steps of initialisation together
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Watch> watch_;
  std::vector<PeerInfo> peers_;
  // Of this host, read once while the communicator comes to life.
  std::vector<NetworkInterface> interfaces_;

  SharedMemory arena_memory_;
  uint64_t arena_offer_ = 0;
  Arena arena_;
  std::vector<int> local_ranks_;   // ranks that share this rank's arena, in rank order
  std::vector<int> arena_leader_;  // by rank: the leader of its arena; itself when alone
  PlanContext plan_;
  std::unique_ptr<Net> network_;  // until the connector has it; null when all ranks are local
  std::vector<int> ring_;         // until the executor has it
  bool topology_matters_ = true;  // for any rank; the same on all
  int device_ = 0;                // of the network, by which this rank sends and receives
  int memory_numa_ = -1;          // where this rank's part of the arena is to lie; -1: anywhere
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<StageGroup> stages_;
  RemoteToken probe_token_ =
      {};  // what peers look for to prove that they can read this process's memory
  std::unique_ptr<PullReach> pull_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<GpuOperations> gpu_;                // instead of the above from arena_ on
  std::vector<std::unique_ptr<Communicator>> lanes_;  // of a relay, besides this one's own executor
  std::unique_ptr<CallChecker> calls_;                // of operations that no executor checks

  std::atomic<uint64_t> next_ticket_ = 0;
  std::atomic<uint64_t> turn_ = 0;
  SleepFlag turn_sleepers_ = 0;
  std::atomic<bool> running_ = false;  // somebody executes the ticket whose turn it is
  // Tickets whose turn came too late: whoever passes the turn on skips them.
  std::mutex abandoned_mutex_;
  std::set<uint64_t> abandoned_;
  std::atomic<uint64_t> num_abandoned_ = 0;
  uint64_t children_ = 0;
  std::map<std::vector<int>, uint64_t> shrinks_;  // by the ranks left out, sorted
};

}  // namespace tutti
