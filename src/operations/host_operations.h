#pragma once

// HostOperations runs the operations of ranks on hosts. It owns an executor and the executor's
// connections, stages and shared memory. Tasks run one at a time on the threads that call Run, in
// the order of their tickets.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "operations/connections.h"
#include "operations/executor.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "operations/pull.h"
#include "operations/ticket_order.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"
#include "transport/net/net.h"
#include "transport/shm/arena.h"
#include "transport/shm/registry.h"
#include "watch/watch.h"

namespace tutti {

// Holds this rank's view of the arena that the ranks of one host share. The destructor withdraws
// the offer of the arena.
struct SharedArena {
  SharedArena() = default;
  SharedArena(SharedArena&& other) noexcept
      : memory(std::move(other.memory)),
        arena(other.arena),
        fd_server(std::exchange(other.fd_server, nullptr)),
        offer(other.offer),
        numa(other.numa) {}
  SharedArena& operator=(SharedArena&&) = delete;
  ~SharedArena() { Withdraw(); }
  void Withdraw() {
    if (FdServer* const server = std::exchange(fd_server, nullptr)) server->Withdraw(offer);
  }

  SharedMemory memory;  // Empty where the rank is alone on its host.
  Arena arena;
  FdServer* fd_server = nullptr;  // The server that offers the arena to peers. Null: no offer.
  uint64_t offer = 0;
  int numa = -1;  // The NUMA node for this rank's part of the arena; -1: any node
};

class HostOperations final : public Operations {
 public:
  struct Parts {
    int rank = 0;
    // The peers and all objects behind pointers must outlive the operations.
    std::span<const PeerInfo> peers;
    MachineMap machines;
    SharedArena arena;
    PlanContext plan;
    std::vector<int> ring;              // The ranks in ring order.
    std::unique_ptr<NetConnector> net;  // Null when all ranks share the arena.
    std::shared_ptr<Net> network;       // The network of `net`.
    OneSidedNetwork one_sided_network;
    HostMemory* memory = nullptr;  // The process's memory, and the server of its descriptors.
    FdServer* fd_server = nullptr;
    Watch* watch = nullptr;
    CostAdviser* tuner = nullptr;  // Null: no tuner advises the ranks.
    // Null: no profiler. The network may report to the profiler too.
    std::shared_ptr<Profiler> profiler;
    WaitPolicy wait_policy;
    bool may_pull = true;  // Peers may read user buffers where they lie.
    // The permit for copies between processes, where ranks copy (transport/shm/remote_copy.h).
    std::shared_ptr<void> copy_permit;
    double timeout_s = 0;  // The longest wait of a ticket for its turn while no operation runs.
    double connect_timeout_s = 0;
  };
  explicit HostOperations(Parts parts);

  Status CheckTasks(std::span<const IssuedTask> tasks) const override;
  Status CheckWishes(const CollectiveTask& task) const override {
    return executor_->CheckWishes(task);
  }
  uint64_t TakeTicket() override { return order_.Take(); }
  void DropTicket(uint64_t ticket) noexcept override;
  Status Run(uint64_t ticket, std::span<const IssuedTask> tasks) override;
  Status WaitForAll() override { return order_.AwaitAll(); }
  void Finish() override;

  Status CheckBuffer(const void* begin, size_t bytes, const char* what) const override;
  double PredictUs(const Task& task) const override { return executor_->PredictUs(task); }
  std::string Describe(const CollectiveTask& task) const override {
    return executor_->Describe(task);
  }
  std::string_view RankKind() const override { return "host ranks"; }
  std::string DescribeTransports() const override;
  std::string_view TransportTo(int peer) const override;
  const MachineMap& machines() const override { return machines_; }
  uint64_t MemoryBytes() const override { return arena_.memory.size(); }
  bool MapsPeerMemory() const override { return true; }
  WaitPolicy wait_policy() const override { return wait_policy_; }
  OneSidedNetwork one_sided_network() const override { return one_sided_network_; }
  NetworkNames network_names() const override { return network_; }

  // Give back the pages of the arena that hold only data. Each rank gives back its own stage and
  // the FIFOs that it reads. The kernel provides new, zeroed pages at the next access. FIFOs before
  // a network keep their pages, because networks have registered the pages.
  uint64_t SuspendableBytes() const override;
  uint64_t PersistentBytes() const override { return MemoryBytes() - SuspendableBytes(); }
  Status CheckIdle() const override;
  Status CheckNothingWaits() override;
  Status GiveBackMemory() override;
  Result<Agreement> TakeBackMemory(Deadline, const std::atomic<bool>*) override {
    return Agreement();
  }

 private:
  Status RunInTurn(std::span<const IssuedTask> tasks);
  // Returns this rank's number in the arena.
  int PlaceInArena() const;
  // Runs the sends and receives among `tasks`.
  Status RunMessages(std::span<const IssuedTask> tasks);

  const int rank_;
  const std::span<const PeerInfo> peers_;
  const MachineMap machines_;
  Watch& watch_;
  const WaitPolicy wait_policy_;
  const OneSidedNetwork one_sided_network_;
  const NetworkNames network_;  // empty when all ranks share the arena
  TicketOrder order_;
  const std::shared_ptr<Profiler> profiler_;
  SharedArena arena_;
  std::unique_ptr<Connections> connections_;
  std::optional<StageGroup> stages_;  // Present where all ranks share the arena.
  const std::shared_ptr<void> copy_permit_;
  std::optional<PullReach> pull_;  // Present where peers may read user buffers.
  std::unique_ptr<Executor> executor_;
};

}  // namespace tutti
