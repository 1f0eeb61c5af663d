#include "coordinator/testing/simulated_network.h"

#include <algorithm>
#include <utility>

namespace tutti::coordinator {

class SimulatedExchange final : public Exchange {
 public:
  SimulatedExchange(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}

  std::string_view name() const override { return "simulated"; }
  int rank() const override { return rank_; }
  int num_ranks() const override { return network_.options_.num_ranks; }

  Result<Bytes> Swap(int to, std::span<const std::byte> bytes, int from) override {
    const SimulatedNetwork::Options& options = network_.options_;
    SimulatedNetwork::Rank& self = *network_.ranks_[static_cast<size_t>(rank_)];
    int64_t delay_ns = options.delay_ns;
    if (options.jitter_ns > 0) {
      delay_ns += static_cast<int64_t>(self.random() % static_cast<uint64_t>(options.jitter_ns));
    }
    self.counts.clock_ns += options.handling_ns;
    ++self.counts.sent;
    Deliver(to, {Bytes(bytes.begin(), bytes.end()), self.counts.clock_ns + delay_ns});
    TUTTI_ASSIGN(SimulatedNetwork::Message message, Take(from, self));
    self.counts.clock_ns = std::max(self.counts.clock_ns, message.arrival_ns) + options.handling_ns;
    ++self.counts.received;
    return std::move(message.bytes);
  }

 private:
  void Deliver(int to, SimulatedNetwork::Message message) {
    SimulatedNetwork::Rank& peer = *network_.ranks_[static_cast<size_t>(to)];
    {
      const std::lock_guard lock(peer.mutex);
      peer.mail[rank_].push_back(std::move(message));
    }
    peer.arrived.notify_one();
  }

  Result<SimulatedNetwork::Message> Take(int from, SimulatedNetwork::Rank& self) {
    std::unique_lock lock(self.mutex);
    auto& mail = self.mail[from];
    self.arrived.wait(lock, [&] { return !mail.empty() || network_.dead_.load() >= 0; });
    const int dead = network_.dead_.load();
    if (dead >= 0) return RemoteError("rank {} is lost", dead);
    SimulatedNetwork::Message message = std::move(mail.front());
    mail.pop_front();
    return message;
  }

  SimulatedNetwork& network_;
  const int rank_;
};

SimulatedNetwork::SimulatedNetwork(const Options& options) : options_(options) {
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->random.seed(options.seed * 1'000'003 + static_cast<uint64_t>(rank));
  }
}

std::unique_ptr<Exchange> SimulatedNetwork::Join(int rank) {
  return std::make_unique<SimulatedExchange>(*this, rank);
}

void SimulatedNetwork::Kill(int rank) {
  int nobody = -1;
  dead_.compare_exchange_strong(nobody, rank);
  for (const auto& peer : ranks_) {
    const std::lock_guard lock(peer->mutex);
    peer->arrived.notify_all();
  }
}

SimulatedNetwork::Counts SimulatedNetwork::counts(int rank) const {
  return ranks_[static_cast<size_t>(rank)]->counts;
}

}  // namespace tutti::coordinator
