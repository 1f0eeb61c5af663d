#include "backend/host/block_primitives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/counting.h"
#include "kernels/recursive_doubling.h"
#include "kernels/recursive_halving.h"
#include "kernels/two_level_blocks.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 64;
constexpr uint32_t kTag = 0x2a;

// A watcher for tests without failures.
struct PatientWatcher final : WaitWatcher {
  Status OnLongWait(std::span<const int>, LongWait&) override { return Status::Ok(); }
  Status StopReason() override { return InternalError("nobody stops"); }
  Status OnForeignChunk(int, uint32_t, uint32_t) override {
    return InternalError("a foreign chunk");
  }
};

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// A FIFO in shared memory from every rank to every peer.
class Fifos {
 public:
  explicit Fifos(int num_ranks) : n_(static_cast<size_t>(num_ranks)), links_(n_ * n_) {
    const size_t bytes = FifoView::BytesFor(kSlotBytes);
    for (Link& link : links_) {
      link.memory.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
      std::memset(link.memory.get(), 0, bytes);
      link.sender = FifoSender({link.memory.get(), kSlotBytes});
      link.receiver = FifoReceiver({link.memory.get(), kSlotBytes});
    }
  }
  SendLink SendTo(int from, int to) { return {.peer = to, .fifo = &At(from, to).sender}; }
  RecvLink RecvFrom(int at, int from) { return {.peer = from, .fifo = &At(from, at).receiver}; }

 private:
  struct Link {
    std::unique_ptr<std::byte, Freed> memory;
    FifoSender sender;
    FifoReceiver receiver;
  };
  Link& At(int from, int to) {
    return links_[static_cast<size_t>(from) * n_ + static_cast<size_t>(to)];
  }
  size_t n_;
  std::vector<Link> links_;
};

struct LinksOf {
  Fifos& fifos;
  int rank;
  SendLink SendTo(int peer) { return fifos.SendTo(rank, peer); }
  RecvLink RecvFrom(int peer) { return fifos.RecvFrom(rank, peer); }
};

struct TestParts {
  std::vector<size_t> counts;
  size_t Offset(int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
  }
  size_t Size(int rank) const { return counts[static_cast<size_t>(rank)]; }
};

// Returns the work of all tests: elements are ints, and reductions add them.
HostWork SumsOfInts() {
  HostWork work;
  work.elem_bytes = sizeof(int);
  work.slice_elems = kSlotBytes / sizeof(int);
  work.op_tag = kTag;
  work.reduce.fn = FindReduce(DataType::kInt32, ReduceKind::kSum);
  return work;
}

int Input(int rank, size_t i) { return static_cast<int>(i % 97) * (rank + 1); }

// Gathers, or scatters sums, on as many threads as there are ranks; `first` is the rank at place 0.
void Check(const TestParts& parts, int first, bool reduce) {
  const int n = static_cast<int>(parts.counts.size());
  const size_t total = parts.Offset(n);
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[static_cast<size_t>(i)] = (first + i) % n;
  Fifos fifos(n);
  std::vector<std::vector<int>> areas(static_cast<size_t>(n), std::vector<int>(total, -1));
  std::vector<std::thread> threads;
  for (int place = 0; place < n; ++place) {
    threads.emplace_back([&, place] {
      const int rank = ranks[static_cast<size_t>(place)];
      std::vector<int>& area = areas[static_cast<size_t>(rank)];
      const size_t begin = reduce ? 0 : parts.Offset(rank);
      const size_t end = reduce ? total : begin + parts.Size(rank);
      for (size_t i = begin; i < end; ++i) area[i] = Input(rank, i);
      const std::atomic<bool> stop = false;
      PatientWatcher watcher;
      WaitContext wait(stop, {.spin_ns = 0, .yield_ns = 100'000}, watcher);
      const HostWork work = SumsOfInts();
      HostBlockPrimitives p(wait, work, reinterpret_cast<std::byte*>(area.data()),
                            LinksOf{fifos, rank});
      const RingView ring = {place, n, ranks.data()};
      if (reduce)
        kernels::HalvingReduceScatter(p, ring, parts);
      else
        kernels::DoublingAllGather(p, ring, parts);
      EXPECT_FALSE(wait.failed()) << wait.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < n; ++rank) {
    for (int owner = reduce ? rank : 0; owner < (reduce ? rank + 1 : n); ++owner) {
      const size_t begin = parts.Offset(owner);
      for (size_t i = begin; i < begin + parts.Size(owner); ++i) {
        const int all = static_cast<int>(i % 97) * n * (n + 1) / 2;
        ASSERT_EQ(areas[static_cast<size_t>(rank)][i], reduce ? all : Input(owner, i))
            << "rank " << rank << " of " << n << ", element " << i;
      }
    }
  }
}

TEST(BlockPrimitivesTest, GatherAndScatterSumsOfAnyNumberOfRanks) {
  for (const bool reduce : {false, true}) {
    for (int n = 2; n <= 9; ++n) {
      Check({std::vector<size_t>(static_cast<size_t>(n), 3)}, 0, reduce);
      // A block has more bytes than the FIFOs between two ranks hold. No rank may therefore send
      // all its data before it receives.
      Check({std::vector<size_t>(static_cast<size_t>(n), 1001)}, n - 1, reduce);
    }
    Check({{0, 5, 0, 700, 1}}, 2, reduce);
    Check({{0, 0, 9}}, 1, reduce);
  }
}

// Ranks of several hosts, whose numbers go round the hosts in turn.
struct DealtHosts {
  explicit DealtHosts(std::vector<int> sizes) {
    const int n = std::accumulate(sizes.begin(), sizes.end(), 0);
    std::vector<std::vector<int>> of_host(sizes.size());
    for (int rank = 0; rank < n;) {
      for (size_t h = 0; h < sizes.size(); ++h)
        if (static_cast<int>(of_host[h].size()) < sizes[h]) of_host[h].push_back(rank++);
    }
    for (const auto& here : of_host) {
      begins.push_back(static_cast<int>(ranks.size()));
      ranks.insert(ranks.end(), here.begin(), here.end());
    }
    begins.push_back(n);
  }
  int num_ranks() const { return begins.back(); }
  // Returns the view of the rank at `place` of `ranks`.
  kernels::HostsView At(int place, int owners) const {
    const auto after = std::upper_bound(begins.begin(), begins.end(), place);
    const auto host = static_cast<int>(after - begins.begin()) - 1;
    return {host, place - begins[static_cast<size_t>(host)], owners, ranks, begins};
  }
  std::vector<int> ranks, begins;
};

// Finds the FIFOs of the ranks of a rail by their hosts.
struct RailOf {
  Fifos& fifos;
  const kernels::HostsView& view;
  int mine() const { return view.Rank(view.host, view.local); }
  SendLink SendTo(int host) { return fifos.SendTo(mine(), view.Rank(host, view.local)); }
  RecvLink RecvFrom(int host) { return fifos.RecvFrom(mine(), view.Rank(host, view.local)); }
};

enum class TwoLevels { kAllReduce, kAllGather, kReduceScatter };

// Runs the operation on a thread for each rank, and checks each rank's result.
void CheckTwoLevels(const DealtHosts& hosts, int owners, const TestParts& parts, TwoLevels what) {
  const int n = hosts.num_ranks();
  const size_t total = parts.Offset(n);
  Fifos fifos(n);
  std::vector<std::vector<int>> areas(static_cast<size_t>(n), std::vector<int>(total, -1));
  std::vector<std::vector<int>> inputs = areas;
  std::vector<std::thread> threads;
  for (int place = 0; place < n; ++place) {
    threads.emplace_back([&, place] {
      const kernels::HostsView view = hosts.At(place, owners);
      const int rank = hosts.ranks[static_cast<size_t>(place)];
      std::vector<int>& area = areas[static_cast<size_t>(rank)];
      // Gathered data lie in the work area. Inputs of a reduction lie there only with few ranks.
      const bool gathers = what == TwoLevels::kAllGather;
      std::vector<int>& input = gathers || n <= 4 ? area : inputs[static_cast<size_t>(rank)];
      const size_t begin = gathers ? parts.Offset(rank) : 0;
      const size_t end = gathers ? begin + parts.Size(rank) : total;
      for (size_t i = begin; i < end; ++i) input[i] = Input(rank, i);
      const std::atomic<bool> stop = false;
      PatientWatcher watcher;
      WaitContext wait(stop, {.spin_ns = 0, .yield_ns = 100'000}, watcher);
      const HostWork work = SumsOfInts();
      auto* const bytes = reinterpret_cast<std::byte*>(area.data());
      HostBlockPrimitives p(wait, work, bytes, LinksOf{fifos, rank},
                            reinterpret_cast<const std::byte*>(input.data()));
      if (gathers) {
        kernels::TwoLevelBlocksAllGather(p, view, parts);
      } else if (what == TwoLevels::kReduceScatter) {
        kernels::TwoLevelBlocksReduceScatter(p, view, parts);
      } else {
        kernels::TwoLevelBlocksAllReduce(
            p, view, kernels::OwnerParts{total, 16, owners}, [&](Block block) {
              HostWork part = work;
              part.input = part.output = bytes + block.at * sizeof(int);
              HostExchangePrimitives rail(wait, part, RailOf{fifos, view});
              kernels::RecursiveDoublingAllReduce(rail, view.host, view.num_hosts(), block.size);
            });
      }
      EXPECT_FALSE(wait.failed()) << wait.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < n; ++rank) {
    const bool scatters = what == TwoLevels::kReduceScatter;
    for (int owner = scatters ? rank : 0; owner < (scatters ? rank + 1 : n); ++owner) {
      const size_t begin = parts.Offset(owner);
      for (size_t i = begin; i < begin + parts.Size(owner); ++i) {
        const int all = static_cast<int>(i % 97) * n * (n + 1) / 2;
        const int expected = what == TwoLevels::kAllGather ? Input(owner, i) : all;
        ASSERT_EQ(areas[static_cast<size_t>(rank)][i], expected)
            << "rank " << rank << " of " << n << ", " << owners << " owners, element " << i;
      }
    }
  }
}

TEST(TwoLevelBlocksTest, WorkForAnyHostsAndNumberOfOwners) {
  const std::vector<std::vector<int>> all_sizes = {{2, 2}, {4, 4}, {3, 5}, {1, 3, 2}, {2, 2, 2, 2}};
  for (const std::vector<int>& sizes : all_sizes) {
    const DealtHosts hosts(sizes);
    const auto n = static_cast<size_t>(hosts.num_ranks());
    for (int owners = 1; owners <= *std::min_element(sizes.begin(), sizes.end()); ++owners) {
      for (const TwoLevels what :
           {TwoLevels::kAllReduce, TwoLevels::kAllGather, TwoLevels::kReduceScatter}) {
        CheckTwoLevels(hosts, owners, {std::vector<size_t>(n, 1)}, what);
        // More than the FIFOs between two ranks hold.
        CheckTwoLevels(hosts, owners, {std::vector<size_t>(n, 501)}, what);
        std::vector<size_t> lengths(n, 0);
        for (size_t r = 0; r < n; r += 2) lengths[r] = 40 * r + 3;
        CheckTwoLevels(hosts, owners, {lengths}, what);
      }
    }
  }
}

// Every rank sends different data to every peer.
void CheckTwoLevelAlltoAll(const DealtHosts& hosts, int owners, size_t count) {
  const auto n = static_cast<size_t>(hosts.num_ranks());
  const auto sent = [](size_t from, size_t to, size_t i) {
    return static_cast<int>(from * 1'000'000 + to * 10'000 + i);
  };
  Fifos fifos(hosts.num_ranks());
  std::vector<std::vector<int>> areas(n, std::vector<int>(n * n * count, -1));
  std::vector<std::thread> threads;
  for (size_t place = 0; place < n; ++place) {
    threads.emplace_back([&, place] {
      const kernels::HostsView view = hosts.At(static_cast<int>(place), owners);
      const auto me = static_cast<size_t>(hosts.ranks[place]);
      for (size_t to = 0; to < n; ++to)
        for (size_t i = 0; i < count; ++i) areas[me][(me * n + to) * count + i] = sent(me, to, i);
      const std::atomic<bool> stop = false;
      PatientWatcher watcher;
      WaitContext wait(stop, {.spin_ns = 0, .yield_ns = 100'000}, watcher);
      const HostWork work = SumsOfInts();
      HostBlockPrimitives p(wait, work, reinterpret_cast<std::byte*>(areas[me].data()),
                            LinksOf{fifos, static_cast<int>(me)});
      kernels::TwoLevelBlocksAlltoAll(p, view, count);
      EXPECT_FALSE(wait.failed()) << wait.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t me = 0; me < n; ++me)
    for (size_t from = 0; from < n; ++from)
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(areas[me][(from * n + me) * count + i], sent(from, me, i))
            << "from " << from << " to " << me << " of " << n << ", " << owners << " owners";
}

TEST(TwoLevelBlocksTest, ExchangeBetweenAllRanksOfAnyHosts) {
  const std::vector<std::vector<int>> all_sizes = {{2, 2}, {4, 4}, {3, 5}, {1, 3, 2}, {2, 2, 2, 2}};
  for (const std::vector<int>& sizes : all_sizes) {
    for (int owners = 1; owners <= *std::min_element(sizes.begin(), sizes.end()); ++owners)
      for (const size_t count : {1u, 7u, 150u})
        CheckTwoLevelAlltoAll(DealtHosts(sizes), owners, count);
  }
}

// Between two hosts passes one vector each way, or each host's blocks, with any number of ranks.
TEST(TwoLevelBlocksTest, SendEveryByteToTheOtherHostOnce) {
  const DealtHosts hosts({4, 4});
  const kernels::EqualParts parts{10};
  for (const int owners : {1, 2, 3, 4}) {
    size_t reduced = 0, gathered = 0, scattered = 0, exchanged = 0, messages = 0;
    for (int place = 0; place < 4; ++place) {
      const kernels::HostsView view = hosts.At(place, owners);
      const auto sent_out = [&](const kernels::BlockCounting& count) {
        size_t elems = 0;
        for (const auto& [peer, is_send, traffic] : count.messages()) {
          if (!is_send || peer % 2 == 0) continue;  // The ranks of this host have even numbers.
          elems += traffic.elems;
          ++messages;
        }
        return elems;
      };
      kernels::BlockCounting reduce(1000), gather(1000), scatter(1000), exchange(1000);
      kernels::TwoLevelBlocksAllReduce(reduce, view, kernels::OwnerParts{80, 1, owners},
                                       [&](Block block) { reduced += block.size; });
      kernels::TwoLevelBlocksAllGather(gather, view, parts);
      kernels::TwoLevelBlocksReduceScatter(scatter, view, parts);
      kernels::TwoLevelBlocksAlltoAll(exchange, view, 10);
      EXPECT_EQ(sent_out(reduce), 0u) << "the rail is the caller's";
      gathered += sent_out(gather);
      scattered += sent_out(scatter);
      exchanged += sent_out(exchange);
    }
    EXPECT_EQ(reduced, 80u);
    EXPECT_EQ(gathered, 40u);
    EXPECT_EQ(scattered, 40u);
    EXPECT_EQ(exchanged, 4u * 40u);
    EXPECT_EQ(messages, 3u * static_cast<size_t>(owners));
  }
}

// A rank sends as many bytes as round a ring, in ⌈log2 n⌉ messages.
TEST(BlockPrimitivesTest, FewMessagesCarryWhatARingCarries) {
  for (int n = 2; n <= 17; ++n) {
    std::vector<int> ranks(static_cast<size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    const kernels::EqualParts parts{10};
    for (const bool reduce : {false, true}) {
      kernels::BlockCounting count(1000);
      const RingView ring = {n / 2, n, ranks.data()};
      if (reduce)
        kernels::HalvingReduceScatter(count, ring, parts);
      else
        kernels::DoublingAllGather(count, ring, parts);
      size_t sends = 0, sent = 0, received = 0;
      for (const auto& [peer, is_send, traffic] : count.messages()) {
        sends += is_send ? 1 : 0;
        (is_send ? sent : received) += traffic.elems;
      }
      EXPECT_EQ(sends, static_cast<size_t>(std::bit_width(static_cast<unsigned>(n - 1))));
      EXPECT_EQ(sent, 10u * static_cast<size_t>(n - 1));
      EXPECT_EQ(received, sent);
    }
  }
}

// Hosts have two and four ranks. Only the exchanges at this distance and above leave a host.
TEST(BlockPrimitivesTest, PairsOfPlacesCrossTheNetworkOnceForEachDoublingOfHosts) {
  const auto check = [](int n, int here, bool reduce, size_t crossings) {
    std::vector<int> ranks(static_cast<size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int me = 0; me < n; ++me) {
      kernels::BlockCounting count(1000);
      const RingView ring = {me, n, ranks.data()};
      if (reduce)
        kernels::HalvingReduceScatter(count, ring, kernels::EqualParts{10});
      else
        kernels::DoublingAllGather(count, ring, kernels::EqualParts{10});
      size_t sent = 0;
      for (const auto& [peer, is_send, traffic] : count.messages())
        sent += is_send && peer / here != me / here ? 1 : 0;
      EXPECT_EQ(sent, crossings) << me << " of " << n;
    }
  };
  for (const bool reduce : {false, true}) {
    check(4, 2, reduce, 1);
    check(8, 4, reduce, 1);
    check(8, 2, reduce, 2);
    check(16, 4, reduce, 2);
  }
}

}  // namespace
}  // namespace tutti
