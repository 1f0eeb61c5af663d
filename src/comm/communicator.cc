#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"

namespace tutti {
namespace {

// How late a waiter for its turn notices that nobody runs.
constexpr int64_t kLookAgainNs = 100'000'000;

}  // namespace

Communicator::~Communicator() {
  if (gpu_) {
    // Kernels of a communicator that has stopped end by themselves; others end with their peers.
    const Status drained = gpu_->Drain();
    if (!drained.ok())
      TUTTI_WARN("a communicator is destroyed although its GPU fails: {}", drained.message());
    if (calls_)
      calls_->SayGoodbye(/*finished=*/done_at_end_ || (drained.ok() && !watch_->stopped()));
    gpu_->SetCalls(nullptr);
    gpu_->StopThreads();
  }
  calls_.reset();
  executor_.reset();
  if (connections_ && watch_->stopped()) connections_->Close(watch_->StopReason());
  connections_.reset();
  if (arena_offer_ != 0) process_.fd_server().Withdraw(arena_offer_);
  if (watch_) watch_->StopListening(process_.loop());
  lanes_.clear();  // the watch reaches into these until here
  gpu_.reset();
  watch_.reset();
  bootstrap_.reset();
}

// Until the turn is `ticket` or beyond. The operation that has the turn watches its own progress:
// only time in which nobody runs counts here.
Status Communicator::AwaitTurn(uint64_t ticket) {
  const WaitPolicy policy;
  Backoff backoff(policy);
  uint64_t seen = turn_.load(std::memory_order_acquire);
  int64_t idle_since_ns = 0;
  while (true) {
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    if (turn >= ticket) return Status::Ok();
    if (backoff.Pause()) continue;
    const int64_t now_ns = NowNs();
    if (turn != seen || idle_since_ns == 0 || running_.load(std::memory_order_relaxed)) {
      seen = turn;
      idle_since_ns = now_ns;
    } else if (now_ns - idle_since_ns > static_cast<int64_t>(settings_.timeout_s * 1e9)) {
      return Timeout(
          "rank {} issued an operation {:.1f} s ago on a stream that does not get to it, and what "
          "was issued after it cannot run before it",
          rank(), static_cast<double>(now_ns - idle_since_ns) / 1e9);
    }
    SleepUntilChanged(turn_, turn, turn_sleepers_, kLookAgainNs);
  }
}

void Communicator::PassTurn(uint64_t ticket) {
  running_.store(false, std::memory_order_relaxed);
  turn_.store(ticket + 1, std::memory_order_release);
  WakeSleepers(turn_, turn_sleepers_);
  // Abandon counts before it looks at the turn, and this looks at the count after it has changed
  // the turn (WakeSleepers has the fence): one of the two sees the other.
  if (num_abandoned_.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(abandoned_mutex_);
  SkipAbandoned();
}

void Communicator::Abandon(uint64_t ticket) {
  std::lock_guard lock(abandoned_mutex_);
  abandoned_.insert(ticket);
  num_abandoned_.fetch_add(1, std::memory_order_seq_cst);
  SkipAbandoned();
}

// REQUIRES: abandoned_mutex_ is held. Nobody else moves the turn on from an abandoned ticket.
void Communicator::SkipAbandoned() {
  uint64_t turn = turn_.load(std::memory_order_seq_cst);
  while (abandoned_.erase(turn) == 1) {
    num_abandoned_.fetch_sub(1, std::memory_order_relaxed);
    turn_.store(++turn, std::memory_order_release);
    WakeSleepers(turn_, turn_sleepers_);
    turn = turn_.load(std::memory_order_seq_cst);
  }
}

Status Communicator::Execute(uint64_t ticket, std::span<const Task> tasks) {
  Status status;
  if (turn_.load(std::memory_order_acquire) != ticket) status = AwaitTurn(ticket);
  if (status.ok()) {
    running_.store(true, std::memory_order_relaxed);
    try {
      status = ExecuteInTurn(tasks);
    } catch (...) {  // in the middle of an operation: the others cannot finish it
      status = StatusOfException();
      watch_->Stop(status, /*tell=*/true);
    }
    PassTurn(ticket);
  } else {
    watch_->Stop(status, /*tell=*/true);
    Abandon(ticket);
  }
  return status;
}

Status Communicator::ExecuteInTurn(std::span<const Task> tasks) {
  size_t num_messages = 0;
  for (const Task& task : tasks) {
    if (task.collective == Collective::kSendRecv)
      ++num_messages;
    else
      TUTTI_TRY(executor_->RunCollective(task));
  }
  if (num_messages == 0) return Status::Ok();
  if (num_messages == tasks.size()) return executor_->RunMessages(tasks);
  std::vector<Task> messages;
  for (const Task& task : tasks)
    if (task.collective == Collective::kSendRecv) messages.push_back(task);
  return executor_->RunMessages(messages);
}

int Communicator::LocalRank() const {
  const auto place = std::find(local_ranks_.begin(), local_ranks_.end(), rank());
  return static_cast<int>(place - local_ranks_.begin());
}

Status Communicator::LaunchOnDevice(std::span<const DeviceTask> tasks) {
  if (watch_->stopped()) return watch_->StopReason();
  bool begun = false;
  if (Status launched = gpu_->Launch(tasks, &begun); !launched.ok()) {
    if (!begun) return launched;
    // The others' operations would meet those that this rank calls next.
    watch_->Stop(
        Status(launched.code(), fmt::format("{} could not launch what the other ranks launch: {}",
                                            RankName(rank(), peers_[static_cast<size_t>(rank())]),
                                            launched.message())),
        /*tell=*/true);
    return watch_->StopReason();
  }
  return Status::Ok();
}

Status Communicator::WaitForTickets() {
  if (gpu_) {
    Status drained = gpu_->Drain();
    if (!drained.ok()) watch_->Stop(drained, /*tell=*/true);  // nothing works after such an error
    return drained;
  }
  return AwaitTurn(next_ticket_.load(std::memory_order_relaxed));
}

std::string Communicator::DescribeTransports() const {
  std::string text;
  if (gpu_)
    text =
        fmt::format("CUDA device {} of {}, {} ({} MiB of its memory, {} MiB pinned)", cuda_device_,
                    peers_[static_cast<size_t>(rank())].host, gpu_->DescribeTransport(),
                    gpu_->DeviceBytes() >> 20, gpu_->PinnedBytes() >> 20);
  if (executor_) text += (gpu_ ? ": " : "") + DescribeHosts();
  return text;
}

std::string Communicator::DescribeHosts() const {
  std::map<int, std::vector<int>> machines;
  for (int r = 0; r < num_ranks(); ++r)
    machines[arena_leader_[static_cast<size_t>(r)]].push_back(r);
  std::string text;
  for (const auto& [leader, ranks] : machines) {
    if (!text.empty()) text += "; ";
    std::string list;
    for (const int r : ranks) list += fmt::format("{}{}", list.empty() ? "" : ",", r);
    const PeerInfo& peer = peers_[static_cast<size_t>(leader)];
    text += ranks.size() > 1 ? fmt::format("ranks {} on {} by shared memory", list, peer.host)
                             : fmt::format("rank {} on {} alone", list, peer.host);
  }
  if (machines.size() > 1) text += "; between these by TCP sockets";
  if (memory_numa_ >= 0) text += fmt::format("; memory of this rank on NUMA node {}", memory_numa_);
  return text;
}

std::string Communicator::DescribeAsJson() const {
  std::string peers;
  for (int r = 0; r < num_ranks(); ++r) {
    const PeerInfo& peer = peers_[static_cast<size_t>(r)];
    const bool local =
        arena_leader_[static_cast<size_t>(r)] == arena_leader_[static_cast<size_t>(rank())];
    const char* transport = r == rank()          ? "self"
                            : gpu_ && !executor_ ? "gpu"
                            : local              ? "shm"
                                                 : "socket";
    // A host name has no characters that JSON would escape.
    peers += fmt::format("{}{{\"rank\": {}, \"host\": \"{}\", \"pid\": {}, \"transport\": \"{}\"}}",
                         r == 0 ? "" : ", ", r, peer.host, peer.pid, transport);
  }
  const std::set<int> hosts(arena_leader_.begin(), arena_leader_.end());
  return fmt::format("{{\"rank\": {}, \"ranks\": {}, \"hosts\": {}, \"peers\": [{}]}}", rank(),
                     num_ranks(), hosts.size(), peers);
}

void Communicator::LogTransports() const {
  TUTTI_INFO(kLogInit, "communicator {}{}{:016x}, rank {} of {}: {}", name_,
             name_.empty() ? "" : " ", bootstrap_->id(), rank(), num_ranks(), DescribeTransports());
}

}  // namespace tutti
