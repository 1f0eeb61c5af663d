#include "sys/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <thread>

#include "base/log.h"

namespace tutti {
namespace {

TEST(Host, HashIsStableAndCanBeOverridden) {
  EXPECT_EQ(HostHash(""), HostHash(""));
  EXPECT_EQ(HostHash("node1"), HostHash("node1"));
  EXPECT_NE(HostHash("node1"), HostHash("node2"));
  EXPECT_NE(HostHash("node1"), HostHash(""));
  EXPECT_FALSE(HostName().empty());
  EXPECT_EQ(HostName().find('.'), std::string::npos);
}

TEST(Host, UsableCpusFollowTheAffinity) {
  EXPECT_GE(UsableCpuCount(), 1);
  // In a thread of its own, so that the rest of the program keeps its cores.
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    int first = 0;
    while (!CPU_ISSET(static_cast<size_t>(first), &before)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(first), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(UsableCpuCount(), 1);
  }).join();
}

TEST(Host, KnowsItsMemory) {
  EXPECT_GT(HostMemoryBytes(), uint64_t{64} << 20);
  EXPECT_LT(HostMemoryBytes(), uint64_t{1} << 50);
}

TEST(Host, DescriptorLimitRisesToTheHardOne) {
  const auto limit = RaiseDescriptorLimit();
  ASSERT_TRUE(limit.ok()) << limit.status().message();
  rlimit now = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, now.rlim_max);
  EXPECT_EQ(*limit, now.rlim_max);
}

}  // namespace
}  // namespace tutti
