// The C++ header, used as a program would.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "testing/ranks.h"
#include "tutti/coordinator.h"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(coordinator_internal::kIsElement<long> && coordinator_internal::kIsElement<bool> &&
              coordinator_internal::kIsElement<double>);
static_assert(!coordinator_internal::kIsElement<long double> &&
              !coordinator_internal::kIsElement<__int128> &&
              !coordinator_internal::kIsElement<void*>);

TEST(CoordinatorClientTest, TheOperationsAndTheErrors) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(2, [&](int rank) {
    tuttiCoordinatorOptions_t options = {};
    options.size = sizeof(options);
    options.id = &id;
    options.rank = rank;
    options.nranks = 2;
    CoordinatorClient coordinator(options);
    std::vector<float> gradient(10, static_cast<float>(rank));
    coordinator.Allreduce("gradient", gradient.data(), gradient.size()).Wait();
    EXPECT_THAT(gradient, Each(0.5f));
    int64_t seed = rank == 1 ? 77 : 0;
    coordinator.Broadcast("seed", &seed, 1, 1).Wait();
    EXPECT_EQ(seed, 77);
    const std::vector<int32_t> rows(static_cast<size_t>(rank + 1), rank);
    CoordinatorHandle gathered = coordinator.Allgather("rows", rows.data(), rows.size());
    gathered.Wait();
    EXPECT_TRUE(gathered.Done());
    EXPECT_THAT(gathered.OutputShape(), ElementsAre(3));
    EXPECT_EQ(gathered.Output<int32_t>()[2], 1);
    coordinator.Barrier();
    try {
      coordinator.Allreduce("odd", gradient.data(), rank == 0 ? 4 : 5).Wait();
      ADD_FAILURE() << "the ranks disagree";
    } catch (const CoordinatorError& error) {
      EXPECT_THAT(error.what(), HasSubstr("(4) on rank 0, (5) on rank 1"));
      EXPECT_EQ(error.result(), ncclInvalidUsage);
    }
    CoordinatorHandle joined = coordinator.Join();
    joined.Wait();
    EXPECT_GE(joined.LastJoined(), 0);
  });
}

}  // namespace
}  // namespace tutti
