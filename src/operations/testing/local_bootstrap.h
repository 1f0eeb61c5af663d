#pragma once

// A bootstrap for ranks that are threads of one test: exchanges and messages go through memory.
// Ranks cannot be lost, and control messages go nowhere.

#include <cstring>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/testing/idle_bootstrap.h"

namespace tutti::testing {

// The memory that the ranks of a job share. Any thread may call.
class LocalJob {
 public:
  explicit LocalJob(int num_ranks) : num_ranks_(num_ranks) {}

  int num_ranks() const { return num_ranks_; }

  // Brings a rank's bytes to the present exchange, and returns the bytes of all ranks. The lengths
  // may differ. Fails with Timeout at the deadline.
  Result<std::vector<Bytes>> Exchange(int rank, Bytes mine, Deadline deadline) {
    MutexLock lock(mutex_);
    const uint64_t number = exchanges_;
    coming_.resize(static_cast<size_t>(num_ranks_));
    coming_[static_cast<size_t>(rank)] = std::move(mine);
    if (++come_ == num_ranks_) {
      gone_ = std::exchange(coming_, {});
      come_ = 0;
      ++exchanges_;
      changed_.NotifyAll();
    }
    while (exchanges_ == number)
      if (!Wait(lock, deadline)) return Timeout("a rank does not come to an exchange");
    return gone_;
  }
  void Send(int from, int to, uint32_t tag, std::span<const std::byte> payload) {
    const MutexLock lock(mutex_);
    messages_[{from, to, tag}].emplace_back(payload.begin(), payload.end());
    changed_.NotifyAll();
  }
  Result<Bytes> Recv(int from, int to, uint32_t tag, Deadline deadline) {
    MutexLock lock(mutex_);
    std::vector<Bytes>& queue = messages_[{from, to, tag}];
    while (queue.empty())
      if (!Wait(lock, deadline)) return Timeout("no message has come");
    Bytes message = std::move(queue.front());
    queue.erase(queue.begin());
    return message;
  }

 private:
  // Returns false where the deadline has passed.
  bool Wait(MutexLock& lock, Deadline deadline) TUTTI_REQUIRES(mutex_) {
    if (deadline.Passed()) return false;
    changed_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    return true;
  }

  const int num_ranks_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t exchanges_ TUTTI_GUARDED_BY(mutex_) = 0;
  int come_ TUTTI_GUARDED_BY(mutex_) = 0;
  // What the ranks bring to the present exchange, and what they brought to the exchange before.
  // The next exchange cannot end before all ranks have taken the results of the last.
  std::vector<Bytes> coming_ TUTTI_GUARDED_BY(mutex_), gone_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::tuple<int, int, uint32_t>, std::vector<Bytes>> messages_ TUTTI_GUARDED_BY(mutex_);
};

class LocalBootstrap final : public IdleBootstrap {
 public:
  LocalBootstrap(LocalJob& job, int rank) : job_(job), rank_(rank) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return job_.num_ranks(); }
  Status AllGather(void* data, size_t bytes_per_rank, Deadline deadline,
                   const std::atomic<bool>* = nullptr) override {
    auto* const parts = static_cast<std::byte*>(data);
    const auto part = [&](size_t rank) { return parts + rank * bytes_per_rank; };
    const std::byte* const own = part(static_cast<size_t>(rank_));
    TUTTI_ASSIGN(const std::vector<Bytes> all,
                 job_.Exchange(rank_, Bytes(own, own + bytes_per_rank), deadline));
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != bytes_per_rank) return RemoteError("the ranks exchange other lengths");
      std::memcpy(part(r), all[r].data(), bytes_per_rank);
    }
    return Status::Ok();
  }
  Result<std::vector<Bytes>> AllGatherV(std::span<const std::byte> mine,
                                        Deadline deadline) override {
    return job_.Exchange(rank_, Bytes(mine.begin(), mine.end()), deadline);
  }
  Status Barrier(Deadline deadline) override { return job_.Exchange(rank_, {}, deadline).status(); }
  Status Send(int peer, uint32_t tag, std::span<const std::byte> payload) override {
    job_.Send(rank_, peer, tag, payload);
    return Status::Ok();
  }
  Result<Bytes> Recv(int peer, uint32_t tag, Deadline deadline) override {
    return job_.Recv(peer, rank_, tag, deadline);
  }

 private:
  LocalJob& job_;
  const int rank_;
};

}  // namespace tutti::testing
