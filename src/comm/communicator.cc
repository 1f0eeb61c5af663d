#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"

namespace tutti {

Communicator::~Communicator() {
  // Whoever still waits (another thread of a careless caller) must not outlive what it waits on.
  if (executor_) WaitForTickets();
  executor_.reset();
  if (connections_ && watch_->stopped()) connections_->Close(watch_->StopReason());
  connections_.reset();
  if (arena_offer_ != 0) process_.fd_server().Withdraw(arena_offer_);
  if (watch_) watch_->StopListening(process_.loop());
  watch_.reset();
  bootstrap_.reset();
}

void Communicator::AwaitTurn(uint64_t ticket) {
  const WaitPolicy policy;
  Backoff backoff(policy);
  while (true) {
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    if (turn == ticket) return;
    if (!backoff.Pause()) SleepUntilChanged(turn_, turn, turn_sleepers_, 100'000'000);
  }
}

void Communicator::PassTurn(uint64_t ticket) {
  turn_.store(ticket + 1, std::memory_order_release);
  WakeSleepers(turn_, turn_sleepers_);
}

Status Communicator::Execute(uint64_t ticket, std::span<const Task> tasks) {
  if (turn_.load(std::memory_order_acquire) != ticket) AwaitTurn(ticket);
  Status status;
  size_t num_messages = 0;
  for (const Task& task : tasks) {
    if (task.collective == Collective::kSendRecv) {
      ++num_messages;
      continue;
    }
    status = executor_->RunCollective(task);
    if (!status.ok()) break;
  }
  if (status.ok() && num_messages == tasks.size()) {
    if (num_messages > 0) status = executor_->RunMessages(tasks);
  } else if (status.ok() && num_messages > 0) {
    std::vector<Task> messages;
    for (const Task& task : tasks)
      if (task.collective == Collective::kSendRecv) messages.push_back(task);
    status = executor_->RunMessages(messages);
  }
  PassTurn(ticket);
  return status;
}

int Communicator::LocalRank() const {
  const auto place = std::find(local_ranks_.begin(), local_ranks_.end(), rank());
  return static_cast<int>(place - local_ranks_.begin());
}

void Communicator::WaitForTickets() { AwaitTurn(next_ticket_.load(std::memory_order_relaxed)); }

std::string Communicator::DescribeTransports() const {
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
  return text;
}

std::string Communicator::DescribeAsJson() const {
  std::string peers;
  for (int r = 0; r < num_ranks(); ++r) {
    const PeerInfo& peer = peers_[static_cast<size_t>(r)];
    const bool local =
        arena_leader_[static_cast<size_t>(r)] == arena_leader_[static_cast<size_t>(rank())];
    const char* transport = r == rank() ? "self" : local ? "shm" : "socket";
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
