// Tests the bounds of what rank 0 decides for all ranks: values beyond the settings, and libraries.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/coordinator.h"
#include "coordinator/testing/job.h"

namespace tutti::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Makes the coordinators of two ranks. `change` may change the options of each rank. Returns what
// each rank says of the job.
std::array<Status, 2> MakeBoth(const std::function<void(int, Coordinator::Options&)>& change) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::array<Status, 2> made;
  std::atomic<int> done{0};
  testing::RunRankThreads(2, [&](int rank) {
    Coordinator::Options options;
    options.rank = rank;
    options.num_ranks = 2;
    options.id = *UniqueId::Decode(id.internal);
    options.settings = *ReadProcessSettings();
    change(rank, options);
    const auto coordinator = Coordinator::Create(options);
    made[static_cast<size_t>(rank)] = coordinator.status();
    ++done;
    EXPECT_TRUE(Await(done, 2));
  });
  return made;
}

// The settings of rank 0 count for all ranks. Each rank refuses values that no setting allows.
TEST(AgreedSettingsTest, ValuesBeyondTheirBoundsAreRefusedOnEveryRank) {
  const std::array<std::function<void(Settings&)>, 4> changes = {
      [](Settings& s) { s.fusion_threshold = -1; },
      [](Settings& s) { s.fusion_threshold = Tuning::kMostFusionBytes + 1; },
      [](Settings& s) { s.cycle_time_ms = 1e9; },
      [](Settings& s) { s.cache_capacity = int64_t{1} << 40; },
  };
  for (const auto& change : changes) {
    const auto made = MakeBoth([&](int rank, Coordinator::Options& options) {
      if (rank == 0) change(options.settings);
    });
    for (const Status& status : made)
      EXPECT_THAT(status.message(), HasSubstr("rank 0 sent settings beyond their bounds"));
  }
}

TEST(AgreedSettingsTest, TheLargestValuesOfTheSettingsAreTaken) {
  const auto read = [](const char* name, const std::string& text) {
    return ReadSettings([&](const char* asked) {
      return std::string_view(asked) == name ? text.c_str() : nullptr;
    });
  };
  const auto fusion = read("HOROVOD_FUSION_THRESHOLD", std::to_string(Tuning::kMostFusionBytes));
  EXPECT_TRUE(fusion.ok());
  EXPECT_FALSE(read("HOROVOD_FUSION_THRESHOLD", std::to_string(Tuning::kMostFusionBytes + 1)).ok());
  EXPECT_TRUE(read("HOROVOD_CYCLE_TIME", "10000").ok());
  EXPECT_FALSE(read("HOROVOD_CYCLE_TIME", "10001").ok());
  EXPECT_FALSE(read("HOROVOD_CACHE_CAPACITY", "1048577").ok());
  const auto made = MakeBoth([&](int, Coordinator::Options& options) {
    options.settings.fusion_threshold = Tuning::kMostFusionBytes;
    options.settings.cycle_time_ms = 10000;
    options.settings.cache_capacity = 1048576;
  });
  for (const Status& status : made) EXPECT_TRUE(status.ok()) << status.message();
}

// Counts the plugins for which each rank looks. No plugin is there.
std::array<std::atomic<int>, 2> looked_for;
FindPluginFor CountPlugins() {
  for (auto& count : looked_for) count = 0;
  return [](const std::string& name, int rank, int) -> Result<std::shared_ptr<OperationsPlugin>> {
    ++looked_for[static_cast<size_t>(rank)];
    return InvalidUsage("there is no {}", name);
  };
}

TEST(AgreedPluginsTest, ALibraryIsLoadedOnlyWhereTheRanksOwnListNamesIt) {
  const FindPluginFor find = CountPlugins();
  ::testing::internal::CaptureStderr();
  const auto made = MakeBoth([&](int rank, Coordinator::Options& options) {
    options.settings.cpu_operations = rank == 0 ? "nccl:/tmp/of rank 0.so" : "nccl:/tmp/other.so";
    options.find_plugin = find;
  });
  for (const Status& status : made) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(looked_for[0], 1);
  EXPECT_EQ(looked_for[1], 0);
  static_cast<void>(::testing::internal::GetCapturedStderr());
}

TEST(AgreedPluginsTest, ARankThatMayNotLoadALibrarySaysWhy) {
  const auto may = [](const char* name, const char* own) {
    return MayLoad(name, "HOROVOD_CONTROLLER", own);
  };
  EXPECT_THAT(may("nccl:/a.so", "mpi,nccl:/b.so").message(),
              AllOf(HasSubstr("HOROVOD_CONTROLLER of this rank's environment does not name "
                              "nccl:/a.so"),
                    HasSubstr("set HOROVOD_CONTROLLER alike on all ranks")));
  EXPECT_FALSE(may("nccl:/a.so", "").ok());
  EXPECT_TRUE(may("nccl:/a.so", "mpi, NCCL:/a.so").ok());
  EXPECT_TRUE(may("mpi", "").ok()) << "plugins of Tutti have fixed names";
}

TEST(AgreedPluginsTest, WithEncryptionAListWithTuttiLeavesPluginsOut) {
  const FindPluginFor find = CountPlugins();
  ::testing::internal::CaptureStderr();
  const auto made = MakeBoth([&](int, Coordinator::Options& options) {
    options.settings.encrypt = true;
    options.settings.cpu_operations = "mpi,tutti";
    options.settings.gpu_operations = "mpi,tutti";
    options.find_plugin = find;
  });
  for (const Status& status : made) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("HOROVOD_CPU_OPERATIONS asks for mpi,tutti, which cannot be had"),
                    HasSubstr("only Tutti's own operations encrypt")));
}

TEST(AgreedPluginsTest, WithEncryptionAListWithoutTuttiInsists) {
  const FindPluginFor find = CountPlugins();
  ::testing::internal::CaptureStderr();
  MakeBoth([&](int, Coordinator::Options& options) {
    options.settings.encrypt = true;
    options.settings.cpu_operations = "mpi";
    options.find_plugin = find;
  });
  EXPECT_EQ(looked_for[0], 1);
  EXPECT_EQ(looked_for[1], 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("there is no mpi"));
}

}  // namespace
}  // namespace tutti::coordinator
