#pragma once

// The common parts of the tests of the watch.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/testing/idle_bootstrap.h"
#include "watch/watch.h"

namespace tutti::testing {

// Ranks in a single process, whose bootstraps know nothing but control messages: the sender's
// thread hands them to the receiver at once, except between Hold and Deliver.
class WatchNetwork {
 public:
  explicit WatchNetwork(int num_ranks, int64_t timeout_ns = 0,
                        int64_t explain_ns = Watch::kExplainBrokenNs,
                        const std::function<void(Watch&)>& prepare = nullptr,
                        WaitBoard* board = nullptr, uint64_t id = 1)
      : num_ranks_(num_ranks), id_(id) {
    std::vector<std::string> names;
    for (int r = 0; r < num_ranks; ++r) names.push_back("rank " + std::to_string(r));
    for (int r = 0; r < num_ranks; ++r) {
      bootstraps_.push_back(std::make_unique<Node>(*this, r));
      watches_.push_back(
          std::make_unique<Watch>(*bootstraps_.back(), Watch::Options{.timeout_ns = timeout_ns,
                                                                      .rank_names = names,
                                                                      .name = "tp",
                                                                      .board = board,
                                                                      .explain_ns = explain_ns}));
      if (prepare) prepare(*watches_.back());
      watches_.back()->Start();
    }
  }

  Watch& watch(int rank) { return *watches_[static_cast<size_t>(rank)]; }
  Bootstrap::Events& events(int rank) { return bootstraps_[static_cast<size_t>(rank)]->events; }

  // Leaves only these links. By default all ranks are linked.
  void SetLinked(std::function<bool(int, int)> linked) { linked_ = std::move(linked); }
  // Drops all messages of `rank` from now on, as if it were stopped.
  void Silence(int rank) { silent_ = rank; }
  void Hold() { holds_ = true; }
  // Returns how many ranks have sent a message that is held.
  size_t HeldSenders() {
    const std::lock_guard lock(held_mutex_);
    std::set<int> senders;
    for (const Held& one : held_) senders.insert(one.from);
    return senders.size();
  }
  void Deliver() {
    holds_ = false;
    std::vector<Held> held;
    {
      const std::lock_guard lock(held_mutex_);
      held.swap(held_);
    }
    for (const Held& one : held) events(one.to).control(one.from, one.payload);
  }

 private:
  struct Held {
    int from;
    int to;
    Bytes payload;
  };
  void Send(int from, int to, std::span<const std::byte> payload) {
    if (from == silent_) return;
    if (!holds_) return events(to).control(from, payload);
    const std::lock_guard lock(held_mutex_);
    held_.push_back({from, to, Bytes(payload.begin(), payload.end())});
  }

  class Node final : public IdleBootstrap {
   public:
    Node(WatchNetwork& network, int rank) : network_(network), rank_(rank) {}
    int rank() const override { return rank_; }
    int num_ranks() const override { return network_.num_ranks_; }
    uint64_t id() const override { return network_.id_; }
    void SendControl(int peer, std::span<const std::byte> payload) override {
      network_.Send(rank_, peer, payload);
    }
    std::vector<int> LinkedRanks() const override {
      std::vector<int> ranks;
      for (int r = 0; r < num_ranks(); ++r)
        if (r != rank_ && network_.linked_(rank_, r)) ranks.push_back(r);
      return ranks;
    }
    void SetEvents(Events to) override { events = std::move(to); }

    Events events;

   private:
    WatchNetwork& network_;
    const int rank_;
  };

  const int num_ranks_;
  const uint64_t id_;
  std::function<bool(int, int)> linked_ = [](int, int) { return true; };
  std::atomic<int> silent_ = -1;
  std::atomic<bool> holds_ = false;
  std::mutex held_mutex_;
  std::vector<Held> held_;
  std::vector<std::unique_ptr<Node>> bootstraps_;
  std::vector<std::unique_ptr<Watch>> watches_;
};

inline OpSignature AllReduceOf(uint64_t count) {
  OpSignature signature;
  signature.count = count;
  signature.type = DataType::kFloat32;
  return signature;
}

// Launches the collective, as a GPU does: the collective goes on when its thread has left it.
inline void Launch(Watch& watch, OpSignature signature,
                   const std::shared_ptr<const VariableParts>& parts = nullptr) {
  const Watch::Operation begun(watch, signature, parts);
}

inline MessageCall MessageOf(int peer, bool is_send, uint64_t count,
                             DataType type = DataType::kFloat32) {
  MessageCall message;
  message.signature.collective = Collective::kSendRecv;
  message.signature.root = peer;
  message.signature.count = count;
  message.signature.type = type;
  message.is_send = is_send;
  return message;
}

inline void ExpectWords(const Status& status, const std::vector<std::string>& all) {
  for (const std::string& words : all)
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos)
        << words << " is not in: " << status.message();
}

}  // namespace tutti::testing
