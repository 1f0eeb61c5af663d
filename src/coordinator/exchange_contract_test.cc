// What every Exchange must do; a new one is added to the list at the end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/communicator.h"
#include "coordinator/nccl_exchange.h"
#include "coordinator/simulated_network.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

// Runs `body` on every rank's thread with its exchange.
using Runner = std::function<void(int num_ranks, const std::function<void(Exchange&)>& body)>;

void RunSimulated(int num_ranks, const std::function<void(Exchange&)>& body) {
  SimulatedNetwork network({.num_ranks = num_ranks});
  testing::RunRankThreads(num_ranks, [&](int rank) { body(*network.Join(rank)); });
}

void RunNccl(int num_ranks, const std::function<void(Exchange&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(num_ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess);
    const Communicator owner(comm);
    body(*MakeNcclExchange(comm, rank, num_ranks));
  });
}

struct Kind {
  std::string name;
  Runner run;
};

class ExchangeContractTest : public ::testing::TestWithParam<Kind> {};

Bytes Pattern(int from, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = std::byte((i * 7 + static_cast<size_t>(from) * 31) & 0xff);
  }
  return bytes;
}

TEST_P(ExchangeContractTest, SwapsAnyLengthAroundTheRing) {
  for (const int n : {2, 3, 5}) {
    GetParam().run(n, [n](Exchange& exchange) {
      const int above = (exchange.rank() + 1) % n;
      const int below = (exchange.rank() + n - 1) % n;
      for (const size_t size : {0u, 1u, 1015u, 1016u, 1017u, 5000u, 1'000'000u}) {
        // Lengths differ from rank to rank.
        const auto length = [&](int rank) { return size + static_cast<size_t>(rank); };
        const auto got =
            exchange.Swap(above, Pattern(exchange.rank(), length(exchange.rank())), below);
        ASSERT_TRUE(got.ok()) << got.status().message();
        ASSERT_EQ(*got, Pattern(below, length(below))) << size;
      }
    });
  }
}

TEST_P(ExchangeContractTest, MinTakesTheSmallestOfEachPlace) {
  for (const int n : {1, 2, 3, 6}) {
    GetParam().run(n, [n](Exchange& exchange) {
      EXPECT_EQ(exchange.num_ranks(), n);
      for (const size_t size : {1u, 5u, 300u, 4096u}) {
        std::vector<uint8_t> values(size);
        const auto at = [&](int rank, size_t i) {
          return static_cast<uint8_t>((i * 13 + static_cast<size_t>(rank) * 101) % 251);
        };
        for (size_t i = 0; i < size; ++i) values[i] = at(exchange.rank(), i);
        const Status status = exchange.Min(values);
        ASSERT_TRUE(status.ok()) << status.message();
        for (size_t i = 0; i < size; ++i) {
          uint8_t least = 255;
          for (int rank = 0; rank < n; ++rank) least = std::min(least, at(rank, i));
          ASSERT_EQ(values[i], least) << size << ' ' << i;
        }
      }
    });
  }
}

TEST_P(ExchangeContractTest, MergeFromAllReachesEveryRank) {
  for (const int n : {1, 2, 3, 4, 5, 7}) {
    GetParam().run(n, [n](Exchange& exchange) {
      Bytes seen(static_cast<size_t>(n));
      seen[static_cast<size_t>(exchange.rank())] = std::byte{1};
      const Status status = MergeFromAll(
          exchange, [&] { return seen; },
          [&](std::span<const std::byte> theirs) -> Status {
            for (size_t i = 0; i < seen.size(); ++i) seen[i] |= theirs[i];
            return Status::Ok();
          });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_THAT(seen, ::testing::Each(std::byte{1})) << n;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ExchangeContractTest,
                         ::testing::Values(Kind{"simulated", RunSimulated}, Kind{"tutti", RunNccl}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace tutti::coordinator
