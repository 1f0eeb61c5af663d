#include "operations/host_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/exceptions.h"
#include "plan/ranks_by_host.h"
#include "sys/mapped.h"

namespace tutti {
namespace {

// Returns each rank's place in the arena, the place among the ranks of its host, or -1 for ranks of
// other hosts.
std::vector<int> PlacesInArena(int rank, const MachineMap& machines) {
  std::vector<int> places(machines.leader.size(), -1);
  const int leader = machines.leader[static_cast<size_t>(rank)];
  for (size_t i = 0; i < machines.here.size(); ++i) {
    const auto r = static_cast<size_t>(machines.here[i]);
    if (machines.leader[r] == leader) places[r] = static_cast<int>(i);
  }
  return places;
}

}  // namespace

HostOperations::HostOperations(Parts parts)
    : Operations(HandOver::kInTurn),
      rank_(parts.rank),
      peers_(parts.peers),
      machines_(std::move(parts.machines)),
      watch_(*parts.watch),
      wait_policy_(parts.wait_policy),
      one_sided_network_(std::move(parts.one_sided_network)),
      network_(NetworkNames::Of(parts.network.get())),
      order_(parts.rank, parts.timeout_s),
      profiler_(std::move(parts.profiler)),
      arena_(std::move(parts.arena)),
      copy_permit_(std::move(parts.copy_permit)) {
  const auto num_ranks = static_cast<int>(peers_.size());
  connections_ = std::make_unique<Connections>(rank_, PlacesInArena(rank_, machines_), arena_.arena,
                                               std::move(parts.net),
                                               static_cast<int64_t>(parts.connect_timeout_s * 1e9));
  if (parts.plan.host.one_host && num_ranks > 1) {
    std::vector<StageView> stages;
    for (int i = 0; i < num_ranks; ++i) stages.push_back(arena_.arena.stage(i));
    stages_.emplace(std::move(stages), machines_.here, rank_);
    std::vector<bool> same_process;
    std::vector<int> pids;
    for (const PeerInfo& info : peers_) {
      same_process.push_back(SameProcess(info, peers_[static_cast<size_t>(rank_)]));
      pids.push_back(info.pid);
    }
    if (parts.may_pull)
      pull_.emplace(*parts.memory, *parts.fd_server, parts.plan.host.can_pull,
                    std::move(same_process), std::move(pids));
  }
  executor_ = std::make_unique<Executor>(Executor::Parts{
      .rank = rank_,
      .num_ranks = num_ranks,
      .plan = parts.plan,
      .ring = std::move(parts.ring),
      .leader = machines_.leader,
      .connections = connections_.get(),
      .stages = stages_ ? &*stages_ : nullptr,
      .pull = pull_ ? &*pull_ : nullptr,
      .watch = parts.watch,
      .adviser = parts.tuner,
      .profiler = profiler_.get(),
      .wait_policy = parts.wait_policy,
  });
}

Status HostOperations::CheckTasks(std::span<const IssuedTask> tasks) const {
  std::vector<MessageTask> own;
  for (const IssuedTask& issued : tasks)
    if (const auto* const message = std::get_if<MessageTask>(&issued.task))
      if (message->peer == rank_) own.push_back(*message);
  return OwnCopies(own, rank_, RankKind::kHost).status();
}

void HostOperations::DropTicket(uint64_t ticket) noexcept {
  const Status noted = WithoutExceptions([&] {
    order_.GiveUp(ticket);
    return Status::Ok();
  });
  // Without memory for the note the ticket passes in its turn. The turn comes soon, because every
  // operation before the ticket ends once the communicator has stopped.
  if (noted.ok()) return;
  [[maybe_unused]] const Status passed = WithoutExceptions([&] { return Run(ticket, {}); });
}

// Once begun, the ticket passes its turn in every case, also after an exception: later tickets wait
// for the turn.
Status HostOperations::Run(uint64_t ticket, std::span<const IssuedTask> tasks) {
  Status status = order_.Begin(ticket);
  if (!status.ok()) [[unlikely]] {
    watch_.Stop(status, /*tell=*/true);
    return status;
  }
  try {
    for (const IssuedTask& issued : tasks)
      if (const auto* const task = std::get_if<CollectiveTask>(&issued.task))
        if (task->extras && task->extras->on_begin) [[unlikely]]
          task->extras->on_begin();
    status = RunInTurn(tasks);
  } catch (...) {  // The operation has begun, and the peers cannot finish it.
    status = StatusOfException();
    [[maybe_unused]] const Status told = WithoutExceptions([&] {
      watch_.Stop(status, /*tell=*/true);
      return Status::Ok();
    });
  }
  order_.Pass(ticket);
  return status;
}

// Runs collectives and one-sided calls in order, then all messages together.
Status HostOperations::RunInTurn(std::span<const IssuedTask> tasks) {
  const Profiler::Span group = Profiler::OfGroup(profiler_.get(), tasks.size());
  bool has_messages = false;
  for (const IssuedTask& issued : tasks) {
    if (const auto* const task = std::get_if<CollectiveTask>(&issued.task)) {
      const Profiler::Span call = Profiler::OfCall(profiler_.get(), issued);
      TUTTI_TRY(executor_->RunCollective(*task));
    } else if (const auto* const one_sided = std::get_if<OneSidedTask>(&issued.task)) {
      if (!one_sided->call->waits()) TUTTI_TRY(one_sided->call->Run(issued.stream));
    } else {
      has_messages = true;
    }
  }
  if (has_messages) TUTTI_TRY(RunMessages(tasks));
  return RunOneSided(tasks, /*waits=*/true);
}

Status HostOperations::RunMessages(std::span<const IssuedTask> tasks) {
  std::vector<MessageTask> messages;
  std::vector<Profiler::Span> told;
  for (const IssuedTask& issued : tasks) {
    const auto* const message = std::get_if<MessageTask>(&issued.task);
    if (message == nullptr) continue;
    messages.push_back(*message);
    if (!profiler_) continue;
    told.push_back(Profiler::OfCall(profiler_.get(), issued));
    told.push_back(Profiler::OfMessage(profiler_.get(), *message));
  }
  return executor_->RunMessages(messages);
}

void HostOperations::Finish() {
  executor_.reset();
  // Peers may still be taking data for their last operations. Nothing is flushed if the
  // communicator has stopped, or stops meanwhile.
  if (const Status flushed = connections_->Flush(watch_.stop_flag()); !flushed.ok())
    connections_->Close(watch_.stopped() ? watch_.StopReason() : flushed);
  connections_.reset();
  arena_.Withdraw();
}

Status HostOperations::CheckBuffer(const void* begin, size_t bytes, const char* what) const {
  if (IsMapped(begin, bytes)) return Status::Ok();
  return InvalidArgument("the {} of {} bytes at {} is not all mapped memory", what, bytes,
                         fmt::ptr(begin));
}

std::string HostOperations::DescribeTransports() const {
  const auto machines = RanksByHost(std::span<const int>(machines_.leader));
  std::string text;
  for (const std::vector<int>& ranks : machines) {
    if (!text.empty()) text += "; ";
    std::string list;
    for (const int r : ranks) list += fmt::format("{}{}", list.empty() ? "" : ",", r);
    const PeerInfo& peer = peers_[static_cast<size_t>(ranks.front())];
    text += ranks.size() > 1 ? fmt::format("ranks {} on {} by shared memory", list, peer.host)
                             : fmt::format("rank {} on {} alone", list, peer.host);
  }
  if (machines.size() > 1) text += fmt::format("; between these by the network {}", network_.name);
  if (arena_.numa >= 0) text += fmt::format("; memory of this rank on NUMA node {}", arena_.numa);
  return text;
}

std::string_view HostOperations::TransportTo(int peer) const {
  const auto& leader = machines_.leader;
  const bool here = leader[static_cast<size_t>(peer)] == leader[static_cast<size_t>(rank_)];
  return here ? std::string_view("shm") : std::string_view(network_.name);
}

}  // namespace tutti
