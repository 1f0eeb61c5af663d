// Kernels of hosts that drive a card (nccl_device/impl/gin_gdaki.h), and the card that is none: a
// thread of the test, or a process of its own (card_process.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "fakecard/card_process.h"
#include "tutti/host_kernel.h"
// Behind the words of kernels.
#include "nccl_device/impl/gin_gdaki.h"

namespace tutti::testing {
namespace {

using device::Gdaki;
using device::mlx5::Place;
using device::mlx5::SendQueue;
using device::mlx5::Sharing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kWindowBytes = 1 << 20;
constexpr uint32_t kNumWords = 8;
constexpr Gdaki::Signal kNoSignal = {};

// Ranks of one process with a context each, as the host makes it: queue pairs that join all of them
// and their companions, tables, a sink and one window.
class CardWorld {
 public:
  CardWorld(int num_ranks, uint16_t depth, uint32_t most_delay = 4)
      : card_(/*seed=*/7, most_delay), ranks_(static_cast<size_t>(num_ranks)) {
    std::vector<uint32_t> windows, signals;
    for (int r = 0; r < num_ranks; ++r) {
      Rank& rank = ranks_[static_cast<size_t>(r)];
      rank.window = card_.Take(kWindowBytes);
      rank.signals = TakeWords(kNumWords + 1);
      rank.counters = TakeWords(kNumWords + 2);
      rank.sink = TakeWords(1);
      windows.push_back(card_.Register(r, rank.window));
      signals.push_back(card_.Register(r, AsBytes(rank.signals)));
      rank.counter_keys.assign(ranks_.size(), card_.Register(r, AsBytes(rank.counters)));
      rank.context.sink_buffer_lkey = card_.Register(r, AsBytes(rank.sink));
      for (int peer = 0; peer <= num_ranks; ++peer)  // the last answers the rank itself
        rank.main_numbers.push_back(card_.MakeQueue(r, depth));
      for (int i = 0; i < 2 * num_ranks; ++i)
        rank.companion_numbers.push_back(card_.MakeQueue(r, depth));
    }
    for (size_t r = 0; r < ranks_.size(); ++r) Finish(r, windows, signals);
    card_.Start();
  }

  CardProcess& card() { return card_; }
  std::span<std::byte> window(int rank) { return Of(rank).window; }
  device::mlx5::QueuePair& main(int rank, int peer) {
    return Of(rank).main[static_cast<size_t>(peer)];
  }
  Gdaki On(int rank, Sharing sharing, uint32_t* abort_flag = nullptr) {
    return Gdaki(&Of(rank).context, rank, sharing, abort_flag);
  }
  // The same with puts and gets in pieces of so many bytes.
  Gdaki InPieces(int rank, Sharing sharing, uint64_t piece_bytes) {
    return Gdaki(&Of(rank).context, rank, sharing, nullptr, piece_bytes);
  }
  // A put from one offset of this rank's window to one of the peer's.
  Gdaki::Data Data(int rank, int peer, uint64_t to, uint64_t from, uint64_t bytes) {
    const Gdaki gin = On(rank, Sharing::kGpu);
    const device::GdakiMemory& memory = Of(rank).memory;
    return {gin.Remote(memory, peer, to), gin.Local(memory, from), bytes, 0, false};
  }
  Gdaki::Data Value(int rank, int peer, uint64_t to, uint64_t value, uint64_t bytes) {
    return {On(rank, Sharing::kGpu).Remote(Of(rank).memory, peer, to), {}, bytes, value, true};
  }

 private:
  struct Rank {
    std::span<std::byte> window;
    std::span<uint64_t> signals, counters, sink;
    std::vector<uint32_t> main_numbers, companion_numbers;
    std::vector<uint32_t> window_keys, signal_keys, counter_keys;
    std::vector<device::mlx5::QueuePair> main, companion;
    std::vector<uint64_t> last_issued_get, last_visible_get;
    device::GdakiMemory memory = {};
    device::GdakiContext context = {};
  };

  std::span<uint64_t> TakeWords(size_t count) {
    const std::span<std::byte> bytes = card_.Take(count * sizeof(uint64_t));
    return {reinterpret_cast<uint64_t*>(bytes.data()), count};
  }
  static std::span<std::byte> AsBytes(std::span<uint64_t> words) {
    return std::as_writable_bytes(words);
  }
  Rank& Of(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void Finish(size_t r, const std::vector<uint32_t>& windows,
              const std::vector<uint32_t>& signals) {
    Rank& rank = ranks_[r];
    const size_t n = ranks_.size();
    for (size_t peer = 0; peer < n; ++peer) {
      card_.Connect(rank.main_numbers[peer],
                    peer == r ? rank.main_numbers[n] : ranks_[peer].main_numbers[r]);
      if (peer == r) card_.Connect(rank.main_numbers[n], rank.main_numbers[peer]);
      card_.Connect(rank.companion_numbers[peer], rank.companion_numbers[peer + n]);
      card_.Connect(rank.companion_numbers[peer + n], rank.companion_numbers[peer]);
      rank.main.push_back(card_.Export(rank.main_numbers[peer]));
      rank.companion.push_back(card_.Export(rank.companion_numbers[peer]));
    }
    rank.window_keys = windows;
    rank.signal_keys = signals;
    rank.last_issued_get.resize(n);
    rank.last_visible_get.resize(n);
    rank.memory = {rank.window_keys.data(), windows[r]};
    rank.context.gdqp = rank.main.data();
    rank.context.companion_gdqp = rank.companion.data();
    // The words of the context do not begin with the first of their table.
    rank.context.signals_table = {rank.signals.data(), rank.signal_keys.data(), signals[r], 1};
    rank.context.counters_table = {rank.counters.data(), rank.counter_keys.data(),
                                   rank.counter_keys[r], 2};
    rank.context.last_issued_get = rank.last_issued_get.data();
    rank.context.last_visible_get = rank.last_visible_get.data();
  }

  CardProcess card_;
  std::vector<Rank> ranks_;
};

void AwaitWord(uint64_t* word, uint64_t least) {
  for (uint32_t round = 0; std::atomic_ref(*word).load(std::memory_order_acquire) < least; ++round)
    tuttiHostPause(round);
}

std::byte ByteOf(int from, int round, size_t i) {
  return static_cast<std::byte>(static_cast<size_t>(from * 31 + round * 7) + i * 13);
}

class GdakiTest : public ::testing::TestWithParam<Sharing> {};

// Each rank puts to the next one, itself among them where it is alone, and reuses its source as
// soon as its counter says so. Queues wrap around many times.
void PutRoundARing(CardWorld& world, int rank, int num_ranks, Sharing sharing, int rounds) {
  constexpr size_t kSizes[] = {0, 1, 4, 8, 4095, 4096, 70'001};
  constexpr size_t kSource = kWindowBytes / 2;
  const Gdaki gin = world.On(rank, sharing);
  const int next = (rank + 1) % num_ranks, last = (rank + num_ranks - 1) % num_ranks;
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = kSizes[static_cast<size_t>(round) % std::size(kSizes)];
    // A rank is ahead of the next one by as many rounds as there are others between them, at most.
    const uint64_t to = static_cast<uint64_t>(round % 4) * (kWindowBytes / 8) + 3;
    std::byte* const source = world.window(rank).data() + kSource;
    for (size_t i = 0; i < bytes; ++i) source[i] = ByteOf(rank, round, i);
    ASSERT_TRUE(gin.Put(next, world.Data(rank, next, to, kSource, bytes),
                        {true, gin.SignalOf(next, 1), 1}, /*counter=*/2, {}));
    const auto so_far = static_cast<uint64_t>(round) + 1;
    AwaitWord(gin.SignalWord(1), so_far);
    const std::byte* const got = world.window(rank).data() + to;
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += got[i] != ByteOf(last, round, i);
    ASSERT_EQ(wrong, 0u) << "round " << round << " of rank " << rank;
    AwaitWord(gin.CounterWord(2), so_far);
  }
  EXPECT_TRUE(gin.Await(next, gin.Posted(next)));
}

TEST_P(GdakiTest, PutsAreThereWhenTheirSignalsAre) {
  for (const int num_ranks : {1, 2, 3}) {
    CardWorld world(num_ranks, /*depth=*/4);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < num_ranks; ++rank)
      ranks.emplace_back([&, rank] { PutRoundARing(world, rank, num_ranks, GetParam(), 100); });
    for (std::thread& rank : ranks) rank.join();
    EXPECT_THAT(world.card().complaints(), IsEmpty());
  }
}

// A put of more pieces than the queue has entries, and a get of as many.
TEST_P(GdakiTest, LongOnesGoInPieces) {
  constexpr size_t kBytes = 10'500, kPiece = 1000, kTo = 5, kBack = kWindowBytes / 2;
  constexpr uint16_t kDepths[] = {2, 4, 16};
  for (const uint16_t depth : kDepths) {
    SCOPED_TRACE(depth);
    CardWorld world(2, depth);
    const Gdaki gin = world.InPieces(0, GetParam(), kPiece);
    for (size_t i = 0; i < kBytes; ++i) world.window(0)[i] = ByteOf(0, 1, i);
    // The doorbell can be held back only where all of it has room.
    const Gdaki::Manner manner = {.rings_later = true, .has_room = false};
    ASSERT_TRUE(gin.Put(1, world.Data(0, 1, kTo, 0, kBytes), {true, gin.SignalOf(1, 1), 1},
                        Gdaki::kNoCounter, manner));
    EXPECT_EQ(gin.Posted(1), 12u) << "11 pieces and a signal, taken at once";
    ASSERT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 1), 1}, /*counter=*/2, {}));
    AwaitWord(world.On(1, GetParam()).SignalWord(1), 2);
    EXPECT_TRUE(std::equal(world.window(0).begin(), world.window(0).begin() + kBytes,
                           world.window(1).begin() + kTo));
    EXPECT_EQ(world.window(1)[kTo + kBytes], std::byte{0});
    AwaitWord(gin.CounterWord(2), 1);
    const Gdaki::Data back = world.Data(0, 1, kTo, kBack, kBytes);
    ASSERT_TRUE(gin.Get(1, back.to, back.from, kBytes, {}));
    EXPECT_EQ(gin.Posted(1), 24u);
    ASSERT_TRUE(gin.Await(1, gin.Posted(1)));
    EXPECT_TRUE(std::equal(world.window(0).begin(), world.window(0).begin() + kBytes,
                           world.window(0).begin() + kBack));
    EXPECT_THAT(world.card().complaints(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, GdakiTest,
                         ::testing::Values(Sharing::kGpu, Sharing::kBlock, Sharing::kThread));

// Threads of a GPU post to one queue, which has less room than they need.
TEST(GdakiQueueTest, ManyThreadsShareOne) {
  constexpr int kThreads = 4, kPuts = 300;
  CardWorld world(2, /*depth=*/8, /*most_delay=*/1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Gdaki gin = world.On(0, Sharing::kGpu);
      for (int i = 0; i < kPuts; ++i) {
        const auto place = static_cast<uint64_t>(t * kPuts + i);
        EXPECT_TRUE(gin.Put(1, world.Value(0, 1, place * 8, place + 1, 8),
                            {true, gin.SignalOf(1, 0), place + 1}, Gdaki::kNoCounter, {}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = kThreads * kPuts;
  AwaitWord(world.On(1, Sharing::kGpu).SignalWord(0), kAll * (kAll + 1) / 2);
  std::vector<uint64_t> got(kAll);
  std::memcpy(got.data(), world.window(1).data(), kAll * 8);
  for (uint64_t i = 0; i < kAll; ++i) ASSERT_EQ(got[i], i + 1);
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

// Of an index a card sees 16 bits.
TEST(GdakiQueueTest, GoesOnBehind65536Entries) {
  constexpr uint64_t kSignals = 70'000;
  CardWorld world(1, /*depth=*/128, /*most_delay=*/0);
  const Gdaki gin = world.On(0, Sharing::kThread);
  for (uint64_t i = 0; i < kSignals; ++i)
    ASSERT_TRUE(gin.Put(0, {}, {true, gin.SignalOf(0, 3), 1}, Gdaki::kNoCounter, {}));
  EXPECT_TRUE(gin.Await(0, gin.Posted(0)));
  EXPECT_EQ(*gin.SignalWord(3), kSignals);
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

// Behind many puts without a signal, one signal says that all have come.
TEST(GdakiOrderTest, ASignalComesBehindAllEarlierPuts) {
  constexpr int kPuts = 12, kRounds = 60;
  constexpr size_t kBytes = 4096;
  CardWorld world(2, /*depth=*/32, /*most_delay=*/2);
  std::atomic<int> seen = 0;
  std::thread receiver([&] {
    const Gdaki gin = world.On(1, Sharing::kGpu);
    for (int round = 1; round <= kRounds; ++round) {
      AwaitWord(gin.SignalWord(0), static_cast<uint64_t>(round));
      const std::span<const std::byte> window = world.window(1);
      const auto wrong = std::count_if(window.begin(), window.begin() + kPuts * kBytes,
                                       [&](std::byte b) { return b != std::byte(round); });
      EXPECT_EQ(wrong, 0) << "in round " << round;
      seen = round;
      seen.notify_all();
    }
  });
  const Gdaki gin = world.On(0, Sharing::kGpu);
  for (int round = 1; round <= kRounds; ++round) {
    std::fill_n(world.window(0).begin(), kBytes, std::byte(round));
    for (uint64_t put = 0; put < kPuts; ++put)
      EXPECT_TRUE(
          gin.Put(1, world.Data(0, 1, put * kBytes, 0, kBytes), kNoSignal, Gdaki::kNoCounter, {}));
    EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
    for (int now = seen; now < round; now = seen) seen.wait(now);
  }
  receiver.join();
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

// Looks at a word that the card may be writing.
__attribute__((no_sanitize("thread"))) uint64_t Peek(const std::byte* at) {
  return *reinterpret_cast<const volatile uint64_t*>(at);
}

// Without a signal nothing says that puts have arrived, nor in which order: programs that take
// completions, or each other's words, for that are wrong, and the card lets them notice it.
TEST(GdakiOrderTest, PutsWithoutASignalComeLateAndPassOneAnother) {
  constexpr int kMostRounds = 20'000;
  CardWorld world(2, /*depth=*/8);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  const std::byte* const first = world.window(1).data();
  const std::byte* const second = first + 4096;
  int late = 0, passed = 0;
  for (uint64_t round = 1; round <= kMostRounds && (late == 0 || passed == 0); ++round) {
    for (const uint64_t to : {uint64_t{0}, uint64_t{4096}})
      ASSERT_TRUE(gin.Put(1, world.Value(0, 1, to, round, 8), kNoSignal, Gdaki::kNoCounter, {}));
    ASSERT_TRUE(gin.Await(1, gin.Posted(1)));
    const bool second_is_there = Peek(second) == round;
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool first_is_there = Peek(first) == round;
    late += !first_is_there || !second_is_there;
    passed += second_is_there && !first_is_there;
    // A signal behind them, as a program has it.
    ASSERT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
    AwaitWord(world.On(1, Sharing::kGpu).SignalWord(0), round);
    ASSERT_EQ(Peek(first), round);
    ASSERT_EQ(Peek(second), round);
  }
  EXPECT_GT(late, 0);
  EXPECT_GT(passed, 0);
}

// The card holds back what it has read. That a READ is done does not show it, a wait does.
TEST(GdakiOrderTest, AGetIsVisibleBehindAWaitOnly) {
  CardWorld world(2, /*depth=*/8);
  std::fill_n(world.window(1).begin(), 100, std::byte{9});
  const Gdaki gin = world.On(0, Sharing::kGpu);
  const Gdaki::Data places = world.Data(0, 1, 0, 500, 100);
  ASSERT_TRUE(gin.Get(1, places.to, places.from, 100, {}));
  ASSERT_TRUE(SendQueue(&world.main(0, 1), Sharing::kGpu, nullptr).AwaitDone(0));
  EXPECT_EQ(world.window(0)[500], std::byte{0}) << "the emulated card shows gets too early";
  ASSERT_TRUE(gin.Await(1, gin.Posted(1)));
  EXPECT_EQ(std::count(world.window(0).begin() + 500, world.window(0).begin() + 600, std::byte{9}),
            100);
  const uint64_t posted = gin.Posted(1);
  EXPECT_TRUE(gin.Await(1, posted));
  EXPECT_EQ(gin.Posted(1), posted) << "a get is made visible once";
}

// Others post in between, and nobody's pieces are torn apart.
TEST(GdakiQueueTest, ManyThreadsPutInPieces) {
  constexpr int kThreads = 4, kPuts = 25;
  constexpr size_t kBytes = 1500, kPiece = 100;
  CardWorld world(2, /*depth=*/8, /*most_delay=*/1);
  for (size_t i = 0; i < kBytes; ++i) world.window(0)[i] = ByteOf(0, 2, i);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Gdaki gin = world.InPieces(0, Sharing::kGpu, kPiece);
      for (int i = 0; i < kPuts; ++i) {
        const uint64_t to = static_cast<uint64_t>(t * kPuts + i) * kBytes;
        EXPECT_TRUE(gin.Put(1, world.Data(0, 1, to, 0, kBytes), {true, gin.SignalOf(1, 0), 1},
                            Gdaki::kNoCounter, {}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitWord(world.On(1, Sharing::kGpu).SignalWord(0), kThreads * kPuts);
  for (size_t put = 0; put < kThreads * kPuts; ++put)
    EXPECT_TRUE(std::equal(world.window(0).begin(), world.window(0).begin() + kBytes,
                           world.window(1).begin() + static_cast<ptrdiff_t>(put * kBytes)))
        << put;
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

#if TUTTI_CHECKED_KERNELS
// A call that has rung returns when the card has done what it posted, and says whether it could.
TEST(GdakiCheckedTest, EachCallWaits) {
  CardWorld world(2, /*depth=*/8);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  for (uint64_t round = 1; round <= 50; ++round) {
    ASSERT_TRUE(gin.Put(1, world.Value(0, 1, 0, round, 8), {true, gin.SignalOf(1, 0), 1},
                        /*counter=*/1, {}));
    EXPECT_EQ(world.main(0, 1).completions.done, 2 * round);
    EXPECT_EQ(*gin.CounterWord(1), round);
    EXPECT_EQ(*world.On(1, Sharing::kGpu).SignalWord(0), round);
  }
  Gdaki::Data beyond = world.Data(0, 1, kWindowBytes - 8, 0, 16);
  EXPECT_FALSE(gin.Put(1, beyond, kNoSignal, Gdaki::kNoCounter, {}));
  EXPECT_EQ(world.main(0, 1).syndrome, 0x13u);
}
#endif

TEST(GdakiMannerTest, ALaterCallRingsForAll) {
  CardWorld world(2, /*depth=*/8);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  EXPECT_TRUE(gin.Put(1, world.Value(0, 1, 0, 5, 4), kNoSignal, Gdaki::kNoCounter,
                      {.rings_later = true, .has_room = false}));
  EXPECT_EQ(world.main(0, 1).rung, 0u);
  EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
  EXPECT_EQ(world.main(0, 1).rung, 2u);
  EXPECT_TRUE(gin.Await(1, 2));
  EXPECT_EQ(world.window(1)[0], std::byte{5});
  // A counter rises whether the later call has one or not.
  EXPECT_TRUE(gin.Put(1, world.Value(0, 1, 0, 6, 4), kNoSignal, /*counter=*/1,
                      {.rings_later = true, .has_room = false}));
  EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
  AwaitWord(gin.CounterWord(1), 1);
}

// Waits until the card has written the completion of an entry, without the queue's taking notice.
void AwaitCompletion(const device::mlx5::CompletionQueue& completions, uint64_t index) {
  auto* const word = reinterpret_cast<uint32_t*>(
      completions.entries + (index & completions.mask) * device::mlx5::kEntryBytes +
      device::mlx5::kCompletionWordAt);
  const uint32_t owner = index / completions.size % 2;
  for (uint32_t round = 0;; ++round) {
    const uint32_t seen = std::atomic_ref(*word).load(std::memory_order_acquire);
    if (device::mlx5::OwnerOf(seen) == owner &&
        device::mlx5::OpcodeOf(seen) != device::mlx5::kInvalid)
      return;
    tuttiHostPause(round);
  }
}

// Who knows otherwise that there is room need never wait, and may at last.
TEST(GdakiMannerTest, SkippedWaitsForRoomAreNoTrouble) {
  constexpr uint32_t kDepth = 8, kPuts = 5 * kDepth + 3;
  CardWorld world(2, kDepth);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  for (uint32_t i = 0; i < kPuts; ++i) {
    EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter,
                        {.rings_later = false, .has_room = true}));
    AwaitCompletion(world.main(0, 1).completions, i);
  }
  EXPECT_TRUE(gin.Await(1, kPuts));
  EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

// The card is told when the queue is full: that of the puts, and that of their counters, which is
// so sooner and waits for the first.
TEST(GdakiMannerTest, AnAggregateMayBeLongerThanItsQueue) {
  constexpr uint64_t kPuts = 100;
  constexpr Gdaki::Manner kLater = {.rings_later = true, .has_room = false};
  for (const Sharing sharing : {Sharing::kGpu, Sharing::kBlock, Sharing::kThread}) {
    for (const uint32_t counter : {Gdaki::kNoCounter, 2u}) {
      CardWorld world(2, /*depth=*/4);
      const Gdaki gin = world.On(0, sharing);
      for (uint64_t i = 0; i < kPuts; ++i)
        ASSERT_TRUE(gin.Put(1, world.Value(0, 1, i * 8, i + 1, 8), kNoSignal, counter, kLater));
      ASSERT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, counter, {}));
      AwaitWord(world.On(1, sharing).SignalWord(0), 1);
      if (counter != Gdaki::kNoCounter) AwaitWord(gin.CounterWord(counter), kPuts + 1);
      std::vector<uint64_t> got(kPuts);
      std::memcpy(got.data(), world.window(1).data(), kPuts * 8);
      for (uint64_t i = 0; i < kPuts; ++i) EXPECT_EQ(got[i], i + 1);
      EXPECT_THAT(world.card().complaints(), IsEmpty());
    }
  }
}

TEST(GdakiMannerTest, AggregatesOfManyThreadsMayBeLongerThanTheirQueue) {
  constexpr int kThreads = 4;
  constexpr uint64_t kPuts = 100;
  CardWorld world(2, /*depth=*/4, /*most_delay=*/1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const Gdaki gin = world.On(0, Sharing::kGpu);
      for (uint64_t i = 0; i < kPuts; ++i) {
        const bool is_last = i + 1 == kPuts;
        EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, /*counter=*/2,
                            {.rings_later = !is_last, .has_room = false}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitWord(world.On(1, Sharing::kGpu).SignalWord(0), kThreads * kPuts);
  AwaitWord(world.On(0, Sharing::kGpu).CounterWord(2), kThreads * kPuts);
  EXPECT_THAT(world.card().complaints(), IsEmpty());
}

// A wait for what was aggregated is as good as a later call.
TEST(GdakiMannerTest, AWaitRings) {
  CardWorld world(2, /*depth=*/8);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  EXPECT_TRUE(gin.Put(1, world.Value(0, 1, 0, 5, 4), kNoSignal, Gdaki::kNoCounter,
                      {.rings_later = true, .has_room = false}));
  EXPECT_TRUE(gin.Await(1, gin.Posted(1)));
  // A completion does not say that the bytes have landed. Without a doorbell they never land.
  for (uint32_t round = 0; Peek(world.window(1).data()) != 5; ++round) tuttiHostPause(round);
}

// -------------------------------------------------------------------------------------------------
// Faults

TEST(GdakiFaultTest, AnEntryThatFailsEndsWaitsForItAndAllBehindIt) {
  CardWorld world(2, /*depth=*/4);
  const uint32_t queue = world.main(0, 1).number;
  world.card().FailEntry(queue, 6, 0x15);
  const Gdaki gin = world.On(0, Sharing::kGpu);
  bool posted = true;
  int puts = 0;
  for (; posted && puts < 100; ++puts)
    posted = gin.Put(1, world.Value(0, 1, 0, 1, 8), kNoSignal, Gdaki::kNoCounter, {});
  EXPECT_FALSE(posted) << "there was room behind an entry that failed";
  EXPECT_TRUE(gin.Await(1, 6));
  EXPECT_FALSE(gin.Await(1, 7));
  EXPECT_FALSE(gin.Await(1, gin.Posted(1)));
  EXPECT_EQ(world.main(0, 1).failed, 7u);
  EXPECT_EQ(world.main(0, 1).syndrome, 0x15u);
  // Nothing else stops.
  EXPECT_TRUE(gin.Put(0, {}, {true, gin.SignalOf(0, 0), 1}, Gdaki::kNoCounter, {}));
  EXPECT_TRUE(gin.Await(0, 1));
}

TEST(GdakiFaultTest, WhatIsNotThereIsAnError) {
  const auto syndrome_of = [](auto spoil) {
    CardWorld world(2, /*depth=*/4);
    const Gdaki gin = world.On(0, Sharing::kGpu);
    Gdaki::Data data = world.Data(0, 1, 0, 0, 16);
    spoil(data);
    EXPECT_TRUE(gin.Put(1, data, kNoSignal, Gdaki::kNoCounter, {}));
    EXPECT_FALSE(gin.Await(1, 1));
    EXPECT_EQ(std::count(world.window(1).begin(), world.window(1).end(), std::byte{0}),
              static_cast<ptrdiff_t>(kWindowBytes));
    return world.main(0, 1).syndrome;
  };
  constexpr uint32_t kLocal = 0x04, kRemote = 0x13;
  EXPECT_EQ(syndrome_of([](Gdaki::Data& data) { data.to.key = 0; }), kRemote);
  EXPECT_EQ(syndrome_of([](Gdaki::Data& data) { data.to.key = data.from.key; }), kRemote);
  EXPECT_EQ(syndrome_of([](Gdaki::Data& data) { data.to.address = kWindowBytes - 8; }), kRemote);
  EXPECT_EQ(syndrome_of([](Gdaki::Data& data) { data.from.key = data.to.key; }), kLocal);
  EXPECT_EQ(syndrome_of([](Gdaki::Data& data) { data.from.address = UINT64_MAX; }), kLocal);
}

// A doorbell tells of all entries so far, so the next one makes up for one that was lost; where
// none follows, an abort ends the wait.
TEST(GdakiFaultTest, ALostDoorbellIsMadeUpForByTheNext) {
  CardWorld world(2, /*depth=*/4);
  uint32_t aborted = 0;
  const Gdaki gin = world.On(0, Sharing::kGpu, &aborted);
  const auto signal = [&] {
    EXPECT_TRUE(gin.Put(1, {}, {true, gin.SignalOf(1, 0), 1}, Gdaki::kNoCounter, {}));
  };
  const auto lose_one = [&](int so_far) {
    world.card().LoseDoorbell(world.main(0, 1).number);
    signal();
    while (world.card().lost_doorbells() < so_far) std::this_thread::yield();
  };
  lose_one(1);
  signal();
  AwaitWord(world.On(1, Sharing::kGpu).SignalWord(0), 2);
  lose_one(2);
  std::thread stop([&] { std::atomic_ref(aborted).store(1); });
  EXPECT_FALSE(gin.Await(1, gin.Posted(1)));
  stop.join();
  EXPECT_EQ(world.card().done(world.main(0, 1).number), 2u);
}

// -------------------------------------------------------------------------------------------------
// What the card would say of a program that does it wrong

std::vector<std::string> ComplaintsAbout(void (*spoil)(device::mlx5::Entry& entry)) {
  CardWorld world(2, /*depth=*/4);
  const SendQueue queue(&world.main(0, 1), Sharing::kGpu, nullptr);
  device::mlx5::Position at;
  EXPECT_TRUE(queue.Reserve(1, false, &at));
  const Gdaki::Data data = world.Data(0, 1, 0, 0, 16);
  device::mlx5::Entry entry = MakeTransfer(at, device::mlx5::kWrite, data.to, data.from, 16);
  spoil(entry);
  queue.Write(at.index, entry);
  EXPECT_TRUE(queue.Submit(at, 1, true));
  queue.AwaitDone(at.index);
  return world.card().complaints();
}

TEST(FakeCardTest, ComplainsAboutEachField) {
  using device::mlx5::BigEndian;
  using device::mlx5::Entry;
  EXPECT_THAT(ComplaintsAbout([](Entry&) {}), IsEmpty());
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[0] ^= BigEndian(1 << 8); }),
              ElementsAre(HasSubstr("it says that it is 1")));
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[1] ^= BigEndian(1 << 8); }),
              ElementsAre(HasSubstr("of another queue")));
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[1] ^= BigEndian(1); }),
              ElementsAre(HasSubstr("operation 0x8 with 2 segments")));
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[2] = 0; }),
              ElementsAre(HasSubstr("modifier or flags")));
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[7] = 1; }),
              ElementsAre(HasSubstr("reserved")));
  EXPECT_THAT(ComplaintsAbout([](Entry& e) { e.words[0] |= BigEndian(0x77); }),
              Contains(HasSubstr("operation 0x7f")));
}

TEST(FakeCardTest, ComplainsAboutADoorbellBeforeItsRecord) {
  CardWorld world(2, /*depth=*/4);
  device::mlx5::QueuePair& pair = world.main(0, 1);
  pair.entries[0] = device::mlx5::MakeNop({pair.number, 0});
  std::atomic_ref(*pair.doorbell).store(device::mlx5::Doorbell(pair.number, 1));
  while (world.card().done(pair.number) == 0) std::this_thread::yield();
  EXPECT_THAT(world.card().complaints(), ElementsAre(HasSubstr("before its record")));
}

}  // namespace
}  // namespace tutti::testing
