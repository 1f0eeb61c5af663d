// Runs GIN direct over made-up cards. Checks the pairs of joined queue pairs, the contexts of
// kernels, and the sentences about stopped queue pairs.

#include "gin_direct/gin_direct.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "operations/testing/local_bootstrap.h"

namespace tutti {
namespace {

using testing::LocalBootstrap;
using testing::LocalJob;

constexpr uint32_t kDepth = 8;

size_t At(int rank) { return static_cast<size_t>(rank); }

// The queue pairs of a made-up card. The test stops queue pairs and completes entries.
class MadeQueues final : public CardQueues {
 public:
  MadeQueues(size_t count, uint32_t first_number) : number_(first_number), joined(count) {}

  uint32_t NumberOf(size_t queue) const override { return number_ + static_cast<uint32_t>(queue); }
  Status Join(size_t queue, const CardEnd& end, uint32_t number) override {
    EXPECT_EQ(joined.at(queue).second, 0u) << "queue pair " << queue << " is joined twice";
    joined.at(queue) = {end.lid, number};
    return refuses ? SystemError("the card refuses") : Status::Ok();
  }
  device::mlx5::QueuePair Export(size_t queue) const override {
    return device::mlx5::MakeQueuePair(NumberOf(queue), nullptr, kDepth, nullptr, nullptr, nullptr,
                                       0, kDepth);
  }
  Result<bool> HasStopped(size_t queue) const override {
    return all_stopped || stopped.count(queue) != 0;
  }
  Result<CardCompletion> Completion(size_t queue, uint64_t index) const override {
    const auto found = completions.find({queue, index % kDepth});
    return found == completions.end() ? CardCompletion{0xf1000000, 0} : found->second;
  }
  std::span<std::byte> memory() const override { return {}; }
  std::span<std::byte> RegisterPage(size_t) const override { return {}; }

 private:
  const uint32_t number_;

 public:
  std::vector<std::pair<uint16_t, uint32_t>> joined;  // The LID and the number of each peer.
  std::set<size_t> stopped;
  std::atomic<bool> all_stopped = false;
  std::map<std::pair<size_t, uint64_t>, CardCompletion> completions;
  bool refuses = false;
};

class MadeMemory final : public CardMemory {
 public:
  explicit MadeMemory(uint32_t key) : key_(key) {}
  uint32_t local_key() const override { return key_; }
  uint32_t remote_key() const override { return key_ + 1; }

 private:
  const uint32_t key_;
};

// The card of a rank, whose LID is the rank's number.
class MadeCard final : public Card {
 public:
  explicit MadeCard(int rank) : rank_(rank) { end_.lid = static_cast<uint16_t>(rank); }

  const std::string& name() const override { return name_; }
  const CardEnd& end() const override { return end_; }
  Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t,
                                               CardOrdering ordering) override {
    EXPECT_EQ(ordering, CardOrdering::kStrict) << "kernels wait for these words";
    registered.push_back(memory);
    return std::unique_ptr<CardMemory>(new MadeMemory(
        static_cast<uint32_t>(rank_ * 1000 + 10 * static_cast<int>(registered.size()))));
  }
  Result<std::unique_ptr<CardMemory>> RegisterGpu(std::span<std::byte>, uint64_t, CardOrdering, int,
                                                  uint64_t) override {
    return InternalError("there is no GPU");
  }
  bool takes_dmabuf() const override { return false; }
  std::vector<std::byte> QueueImage(size_t, uint32_t) const override { return {}; }
  Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte>, int,
                                                          uint64_t) override {
    return InternalError("there is no GPU");
  }
  Result<std::unique_ptr<CardQueues>> MakeQueues(size_t count, uint32_t depth,
                                                 std::unique_ptr<CardQueueMemory>) override {
    EXPECT_EQ(depth, kDepth);
    queues = new MadeQueues(count, 100 * static_cast<uint32_t>(rank_ + 1));
    return std::unique_ptr<CardQueues>(queues);
  }

  MadeQueues* queues = nullptr;
  std::vector<std::span<std::byte>> registered;

 private:
  const int rank_;
  const std::string name_ = "card0:1";
  CardEnd end_;
};

struct Rank {
  Rank(LocalJob& job, int number)
      : bootstrap(job, number),
        watch(bootstrap, {.rank_names = std::vector<std::string>(At(job.num_ranks()), "a rank")}),
        card(number) {}
  LocalBootstrap bootstrap;
  Watch watch;
  MadeCard card;
  std::unique_ptr<GinDirect> direct;

  device::GdakiContext& context(size_t number) const {
    return static_cast<device::GdakiContext*>(direct->handle())[number];
  }
  std::string StopReason() {
    EXPECT_TRUE(watch.stopped());
    return watch.stopped() ? std::string(watch.StopReason().message()) : std::string();
  }
};

class GinDirectTest : public ::testing::Test {
 protected:
  // Makes all ranks and lets them join. Teams of two ranks.
  void Make(int num_ranks, ncclGinConnectionType_t connection, uint32_t num_counters,
            int64_t query_ns = 0) {
    ASSERT_TRUE(loop_.ok());
    plan_.connection = connection;
    plan_.num_contexts = 2;
    plan_.queue_depth = kDepth;
    plan_.num_signals = 5;
    plan_.num_counters = num_counters;
    job_ = std::make_unique<LocalJob>(num_ranks);
    ranks_.clear();
    for (int r = 0; r < num_ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>(*job_, r));
      GinDirect::Parts parts;
      parts.rank = r;
      parts.num_ranks = num_ranks;
      parts.team = LsaTeamOf(r, 2);
      parts.plan = plan_;
      parts.loop = loop_->get();
      parts.watch = &ranks_.back()->watch;
      parts.name_of = [](int rank) { return "rank " + std::to_string(rank); };
      parts.card = &ranks_.back()->card;
      parts.query_ns = query_ns;
      Result<std::unique_ptr<GinDirect>> made = GinDirect::Create(std::move(parts));
      ASSERT_TRUE(made.ok()) << made.status().message();
      ranks_.back()->direct = std::move(made).value();
    }
    offers_.clear();
    for (const auto& rank : ranks_) {
      offers_.emplace_back(GinDirect::OfferBytes(plan_, At(num_ranks)));
      rank->direct->Offer(offers_.back());
    }
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->direct->Join(Offers()).ok());
  }
  std::vector<std::span<const std::byte>> Offers() const {
    return {offers_.begin(), offers_.end()};
  }
  bool Joins(int a, int b) const {
    return plan_.connection == NCCL_GIN_CONNECTION_FULL || a % 2 == b % 2;
  }
  // Stands for a kernel on `rank`: tells the card of `count` entries toward `peer`.
  void Ring(int rank, size_t context, int peer, uint64_t count) {
    std::atomic_ref<uint64_t>(ranks_[At(rank)]->context(context).gdqp[peer].rung).store(count);
  }
  // Returns the queue pair of `rank` toward `peer` in a context, counted from 0.
  size_t QueueToward(int rank, size_t context, int peer) const {
    return ranks_[At(rank)]->context(context).gdqp[peer].number -
           100 * static_cast<uint32_t>(rank + 1);
  }

  Result<std::unique_ptr<EventLoop>> loop_ = EventLoop::Create("gin_direct");
  GinPlan plan_;
  std::unique_ptr<LocalJob> job_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::vector<std::byte>> offers_;
};

// Each queue pair is joined once, and both ends name each other.
TEST_F(GinDirectTest, QueuePairsAreJoinedInPairs) {
  for (const auto connection : {NCCL_GIN_CONNECTION_FULL, NCCL_GIN_CONNECTION_RAIL})
    for (const uint32_t counters : {0u, 3u}) {
      const int n = 4;
      Make(n, connection, counters);
      for (int r = 0; r < n; ++r) {
        const MadeQueues& queues = *ranks_[At(r)]->card.queues;
        int peers = 0;
        for (int p = 0; p < n; ++p) peers += Joins(r, p) ? 1 : 0;
        EXPECT_EQ(queues.joined.size(), 2 * At(peers + 1 + (counters > 0 ? 2 * peers : 0)));
        for (size_t q = 0; q < queues.joined.size(); ++q) {
          const auto [lid, number] = queues.joined[q];
          const MadeQueues& others = *ranks_[lid]->card.queues;
          const size_t theirs = number - others.NumberOf(0);
          ASSERT_LT(theirs, others.joined.size()) << "rank " << r << ", queue pair " << q;
          EXPECT_EQ(others.joined[theirs],
                    (std::pair<uint16_t, uint32_t>(static_cast<uint16_t>(r), queues.NumberOf(q))));
        }
      }
      // The queue pair of a context toward a rank is joined with a queue pair of the same context.
      for (size_t context = 0; context < 2; ++context)
        for (int r = 0; r < n; ++r)
          for (int p = 0; p < n; ++p) {
            const device::GdakiContext& mine = ranks_[At(r)]->context(context);
            if (!Joins(r, p)) {
              EXPECT_EQ(mine.gdqp[p].number, 0u);
              continue;
            }
            const auto joined = ranks_[At(r)]->card.queues->joined[QueueToward(r, context, p)];
            EXPECT_EQ(joined.first, p);
            if (p != r) {
              EXPECT_EQ(joined.second, ranks_[At(p)]->context(context).gdqp[r].number);
            }
            EXPECT_EQ(mine.companion_gdqp[p].number != 0, counters > 0);
          }
    }
}

TEST_F(GinDirectTest, ContextsNameTheTablesAndKeysOfAllRanks) {
  Make(3, NCCL_GIN_CONNECTION_FULL, 3);
  for (int r = 0; r < 3; ++r) {
    const std::vector<std::span<std::byte>>& tables = ranks_[At(r)]->card.registered;
    ASSERT_EQ(tables.size(), 3u);
    EXPECT_EQ(tables[0].size(), 2 * 5 * sizeof(uint64_t));
    EXPECT_EQ(tables[1].size(), 2 * 3 * sizeof(uint64_t));
    for (size_t c = 0; c < 2; ++c) {
      const device::GdakiContext& context = ranks_[At(r)]->context(c);
      EXPECT_EQ(reinterpret_cast<std::byte*>(context.signals_table.buffer), tables[0].data());
      EXPECT_EQ(reinterpret_cast<std::byte*>(context.counters_table.buffer), tables[1].data());
      EXPECT_EQ(context.signals_table.offset, 5 * c);
      EXPECT_EQ(context.counters_table.offset, 3 * c);
      EXPECT_EQ(context.signals_table.lkey, static_cast<uint32_t>(1000 * r + 10));
      EXPECT_EQ(context.counters_table.lkey, static_cast<uint32_t>(1000 * r + 20));
      EXPECT_EQ(context.sink_buffer_lkey, static_cast<uint32_t>(1000 * r + 30));
      for (int p = 0; p < 3; ++p) {
        EXPECT_EQ(context.signals_table.rkeys[p], static_cast<uint32_t>(1000 * p + 11));
        EXPECT_EQ(context.counters_table.rkeys[p], static_cast<uint32_t>(1000 * r + 21))
            << "counters are this rank's own";
      }
    }
    for (const std::byte word : tables[0]) EXPECT_EQ(word, std::byte{0});
  }
}

TEST_F(GinDirectTest, AStoppedQueuePairStopsTheCommunicatorWithItsReason) {
  struct Case {
    uint8_t syndrome;
    const char* part;
  };
  for (const Case& c : {Case{0x04, "memory of this rank"}, Case{0x13, "memory of that rank"},
                        Case{0x15, "does not answer"}, Case{0x77, "has stopped it"}}) {
    Make(3, NCCL_GIN_CONNECTION_FULL, 0);
    Rank& rank = *ranks_[1];
    const size_t queue = QueueToward(1, 1, 2);
    rank.card.queues->stopped.insert(queue);
    rank.direct->NoteFailed();
    EXPECT_FALSE(rank.watch.stopped()) << "a queue pair that nobody has used may be stopped";
    Ring(1, 1, 2, 4);
    // The entries behind the failed one are flushed.
    rank.card.queues->completions[{queue, 1}] = {device::mlx5::kRequesterError << 28, 0x05};
    rank.card.queues->completions[{queue, 2}] = {device::mlx5::kRequesterError << 28, c.syndrome};
    rank.direct->NoteFailed();
    const std::string reason = rank.StopReason();
    EXPECT_NE(reason.find("card0:1 has stopped the queue pair toward rank 2"), std::string::npos)
        << reason;
    EXPECT_NE(reason.find(c.part), std::string::npos) << reason;
    EXPECT_EQ(rank.watch.StopReason().code(), Code::kRemoteError);
  }
}

// Kernels of GPUs tell nobody: the card is asked from time to time.
TEST_F(GinDirectTest, TheTimerFindsAStoppedQueuePair) {
  Make(2, NCCL_GIN_CONNECTION_FULL, 0, /*query_ns=*/1'000);
  ranks_[0]->card.queues->all_stopped = true;
  Ring(0, 0, 1, 1);
  while (!ranks_[0]->watch.stopped()) std::this_thread::yield();
  EXPECT_NE(ranks_[0]->StopReason().find("toward rank 1"), std::string::npos);
  EXPECT_FALSE(ranks_[1]->watch.stopped());
}

TEST_F(GinDirectTest, FinishWaitsForTheLastEntryOfEachQueuePair) {
  Make(2, NCCL_GIN_CONNECTION_FULL, 0);
  Rank& rank = *ranks_[0];
  EXPECT_TRUE(rank.direct->Finish(Deadline::After(0)).ok()) << "nothing was posted";
  const size_t queue = QueueToward(0, 0, 1);
  // In the first round of the ring a completion has owner 0, in the second owner 1.
  for (const uint64_t posted : {uint64_t{3}, uint64_t{kDepth}, uint64_t{kDepth + 3}}) {
    Ring(0, 0, 1, posted);
    rank.card.queues->completions.clear();
    EXPECT_EQ(rank.direct->Finish(Deadline::After(0)).code(), Code::kTimeout) << posted;
    const uint32_t owner = (posted - 1) / kDepth % 2 == 0 ? 0 : 1;
    CardCompletion& last = rank.card.queues->completions[{queue, (posted - 1) % kDepth}];
    last = {device::mlx5::kDone << 28 | (1 - owner) << 24, 0};
    EXPECT_EQ(rank.direct->Finish(Deadline::After(0)).code(), Code::kTimeout)
        << "an entry of the round before";
    last = {device::mlx5::kDone << 28 | owner << 24, 0};
    EXPECT_TRUE(rank.direct->Finish(Deadline::After(0)).ok()) << posted;
  }
  rank.card.queues->completions.clear();
  rank.card.queues->stopped.insert(queue);
  EXPECT_EQ(rank.direct->Finish(Deadline::Never()).code(), Code::kRemoteError);
}

TEST_F(GinDirectTest, MistakesOfKernelsStopTheCommunicator) {
  Make(4, NCCL_GIN_CONNECTION_RAIL, 3);
  EXPECT_EQ(ranks_[0]->direct->AsProxy(), nullptr);
  EXPECT_NE(ranks_[0]->StopReason().find("NCCL_GIN_GDAKI_ENABLE"), std::string::npos);
  ranks_[1]->direct->NoteMissing(/*is_signal=*/true, 9);
  EXPECT_NE(ranks_[1]->StopReason().find("no signal 9"), std::string::npos);
  ranks_[2]->direct->NoteUnreached(3);
  EXPECT_NE(ranks_[2]->StopReason().find("rank 3 is not on the rail"), std::string::npos);
  EXPECT_FALSE(ranks_[3]->watch.stopped());
}

TEST_F(GinDirectTest, ARefusedJoinNamesTheRank) {
  Make(3, NCCL_GIN_CONNECTION_FULL, 0);
  Rank fresh(*job_, 0);
  GinDirect::Parts parts;
  parts.num_ranks = 3;
  parts.team = LsaTeamOf(0, 2);
  parts.plan = plan_;
  parts.loop = loop_->get();
  parts.watch = &fresh.watch;
  parts.name_of = [](int rank) { return "rank " + std::to_string(rank); };
  parts.card = &fresh.card;
  Result<std::unique_ptr<GinDirect>> made = GinDirect::Create(std::move(parts));
  ASSERT_TRUE(made.ok());
  fresh.card.queues->refuses = true;
  std::vector<std::span<const std::byte>> offers = Offers();
  const Status refused = (*made)->Join(offers);
  EXPECT_NE(refused.message().find("the card refuses"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace tutti
