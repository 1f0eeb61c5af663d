#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tutti/launch.h"

namespace {

using testing::HasSubstr;

// Hides every launcher from the tests; environment_test.cc tests the environment.
class LaunchCApi : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HOROVOD_RANK", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                             "PMI_RANK", "PMI_PORT", "SLURM_PROCID"}) {
      if (std::getenv(name)) GTEST_SKIP() << "a launcher started this test: " << name;
    }
  }
};

TEST_F(LaunchCApi, OneRankWithoutALauncher) {
  tuttiLaunch_t launch = nullptr;
  ASSERT_EQ(tuttiLaunchRead(&launch, 0), ncclSuccess) << tuttiLaunchLastError();
  tuttiLaunchInfo_t info = {};
  info.size = sizeof(info);
  ASSERT_EQ(tuttiLaunchDescribe(launch, &info), ncclSuccess);
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.nranks, 1);
  EXPECT_STREQ(info.launcher, "no launcher");
  tuttiLaunchPlace_t place = {};
  EXPECT_EQ(tuttiLaunchPlaces(launch, &place, 1), ncclInvalidUsage);
  char value[8] = "abc";
  size_t size = 0;
  ASSERT_EQ(tuttiLaunchMeet(launch, value, 4, value, sizeof(value), &size, 0), ncclSuccess);
  EXPECT_EQ(size, 4u);
  EXPECT_STREQ(value, "abc");
  ASSERT_EQ(tuttiLaunchPlaces(launch, &place, 1), ncclSuccess);
  EXPECT_EQ(place.local_size, 1);
  EXPECT_EQ(place.cross_size, 1);
  EXPECT_EQ(tuttiLaunchPlaces(launch, &place, 2), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchMeet(launch, value, 4, value, 3, &size, 0), ncclInvalidArgument);
  EXPECT_THAT(tuttiLaunchLastError(), HasSubstr("there is room for 3"));
  EXPECT_EQ(tuttiLaunchClose(launch), ncclSuccess);
}

TEST_F(LaunchCApi, PartsAreLaunchesOfTheirOwn) {
  tuttiLaunch_t launch = nullptr;
  ASSERT_EQ(tuttiLaunchRead(&launch, 0), ncclSuccess);
  const int alone = 0;
  tuttiLaunch_t part = nullptr;
  ASSERT_EQ(tuttiLaunchPart(launch, &alone, 1, &part), ncclSuccess) << tuttiLaunchLastError();
  EXPECT_EQ(tuttiLaunchClose(launch), ncclSuccess);
  size_t size = 0;
  EXPECT_EQ(tuttiLaunchMeet(part, nullptr, 0, nullptr, 0, &size, 0), ncclSuccess);
  const int wrong = 1;
  EXPECT_EQ(tuttiLaunchPart(part, &wrong, 1, &launch), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchClose(part), ncclSuccess);
}

TEST_F(LaunchCApi, WrongArgumentsAreSentences) {
  tuttiLaunch_t launch = nullptr;
  EXPECT_EQ(tuttiLaunchRead(nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchRead(&launch, 2), ncclInvalidArgument);
  EXPECT_THAT(tuttiLaunchLastError(), HasSubstr("tuttiLaunchRead: flags=2"));
  ASSERT_EQ(tuttiLaunchRead(&launch, TUTTI_LAUNCH_MAY_JOIN_PMI), ncclSuccess);
  tuttiLaunchInfo_t info = {};
  EXPECT_EQ(tuttiLaunchDescribe(launch, &info), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchMeet(launch, nullptr, 1, &info, 1, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchInterrupt(nullptr), ncclInvalidArgument);
  EXPECT_EQ(tuttiLaunchClose(launch), ncclSuccess);
  EXPECT_EQ(tuttiLaunchClose(nullptr), ncclSuccess);
  char name[2];
  EXPECT_EQ(tuttiLaunchMachine(name, 0), ncclInvalidArgument);
}

TEST(LaunchPlaces, RanksOfNamedMachinesAreCounted) {
  const char* const machines[] = {"a", "b", "a"};
  tuttiLaunchPlace_t places[3] = {};
  ASSERT_EQ(tuttiLaunchCountPlaces(machines, places, 3), ncclSuccess);
  EXPECT_EQ(places[2].machine, 0);
  EXPECT_EQ(places[2].local_rank, 1);
  EXPECT_EQ(places[1].cross_rank, 1);
  EXPECT_EQ(tuttiLaunchCountPlaces(machines, places, 0), ncclInvalidArgument);
  char name[512];
  ASSERT_EQ(tuttiLaunchMachine(name, sizeof(name)), ncclSuccess);
  EXPECT_STRNE(name, "");
}

}  // namespace
