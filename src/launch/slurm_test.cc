#include "launch/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Slurm, FirstHostOfAList) {
  EXPECT_EQ(FirstHost("node07"), "node07");
  EXPECT_EQ(FirstHost("node07,node09"), "node07");
  EXPECT_EQ(FirstHost("node07,b[1-2]"), "node07");
  EXPECT_EQ(FirstHost("node[07-12,20]"), "node07");
  EXPECT_EQ(FirstHost("n[07-12,20]x,m"), "n07x");
  EXPECT_EQ(FirstHost("n-1,n-2"), "n-1");
  EXPECT_EQ(FirstHost("a[3]-ib,b"), "a3-ib");
  EXPECT_EQ(FirstHost("a[3"), "a3");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(Slurm, TasksPerNode) {
  EXPECT_THAT(ReadTasksPerNode("2"), ElementsAre(NodeGroup{2, 1}));
  EXPECT_THAT(ReadTasksPerNode("4(x2),3"), ElementsAre(NodeGroup{4, 2}, NodeGroup{3, 1}));
  for (const char* wrong :
       {"", "many", "0", "-1", "2(x0)", "2(x3", "2(y3)", "2(x99999999999)", "2 "}) {
    EXPECT_THAT(ReadTasksPerNode(wrong), IsEmpty()) << wrong;
  }
}

TEST(Slurm, TasksOnANode) {
  const std::vector<NodeGroup> groups = ReadTasksPerNode("4(x2),3");
  EXPECT_EQ(TasksOnNode(groups, 0), 4);
  EXPECT_EQ(TasksOnNode(groups, 1), 4);
  EXPECT_EQ(TasksOnNode(groups, 2), 3);
  EXPECT_EQ(TasksOnNode(groups, 3), std::nullopt);
  EXPECT_EQ(TasksOnNode(groups, -1), std::nullopt);
  EXPECT_EQ(TasksOnNode({}, 0), std::nullopt);
}

}  // namespace
}  // namespace tutti::launch
