#pragma once

// A network for fleets in one process: an Exchange for each of any number of ranks, links with a
// modelled delay, messages counted, ranks that can be killed.
//
// Time is a number that travels with the messages: a rank's clock advances by the cost of handling
// a message and is at least the arrival time of a received message. No real time passes: a thousand
// ranks on two cores report the times of a thousand machines.
//
// Threads: each rank's Exchange belongs to one thread; the rest may be called from any thread. The
// network outlives its exchanges.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "coordinator/exchange.h"

namespace tutti::coordinator {

class SimulatedNetwork {
 public:
  struct Options {
    int num_ranks = 2;
    int64_t delay_ns = 10'000;    // The time of a message from one rank to another.
    int64_t jitter_ns = 0;        // added to each delay, between 0 and this
    int64_t handling_ns = 1'000;  // the cost of sending or receiving a message
    uint64_t seed = 1;
  };
  explicit SimulatedNetwork(const Options& options);

  std::unique_ptr<Exchange> Join(int rank);
  // Ends every wait of every rank, now and later, with a RemoteError that names `rank`.
  void Kill(int rank);

  struct Counts {
    int64_t sent = 0;
    int64_t received = 0;
    int64_t clock_ns = 0;
  };
  // REQUIRES: the rank's thread is not in a Swap.
  Counts counts(int rank) const;

 private:
  friend class SimulatedExchange;
  struct Message {
    Bytes bytes;
    int64_t arrival_ns;
  };
  struct Rank {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<int, std::deque<Message>> mail;  // The key is the sender.
    Counts counts;                            // Only the rank's own thread uses them.
    std::mt19937_64 random;
  };

  const Options options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<int> dead_{-1};
};

}  // namespace tutti::coordinator
