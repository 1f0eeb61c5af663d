#include "transport/net/socket/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using ::testing::ElementsAre;

constexpr SocketPaths::Times kTimes = {100, 1000};

SocketPaths Make(size_t paths, size_t together, size_t data_sockets) {
  PathAddresses addresses;
  for (size_t i = 0; i < paths; ++i) {
    addresses.all.push_back(ParseSocketAddress("10.0." + std::to_string(i) + ".1:7").value());
  }
  addresses.together = together;
  return SocketPaths(addresses, data_sockets, kTimes);
}

TEST(SocketPathsTest, DataSocketsTakeTheFirstPathsInTurns) {
  EXPECT_THAT(Make(1, 1, 2).Spread(), ElementsAre(0, 0, 0));
  EXPECT_THAT(Make(3, 2, 5).Spread(), ElementsAre(0, 0, 1, 0, 1, 0));
  EXPECT_THAT(Make(3, 3, 0).Spread(), ElementsAre(0));
}

TEST(SocketPathsTest, ALostPathIsLeftOutUntilItIsRestored) {
  SocketPaths paths = Make(2, 2, 2);
  paths.GiveUp(0, 5);
  EXPECT_THAT(paths.Spread(), ElementsAre(1, 1, 1));
  EXPECT_THAT(paths.Spread(0), ElementsAre(0, 0, 1));
  EXPECT_TRUE(paths.AnyToRetry());
  EXPECT_EQ(paths.Due(5 + 999), std::nullopt);
  EXPECT_EQ(paths.Due(5 + 1000), 0u);
  paths.Postpone(0, 2000);
  EXPECT_EQ(paths.Due(2999), std::nullopt);
  EXPECT_EQ(paths.Due(3000), 0u);
  paths.Restore(0);
  EXPECT_FALSE(paths.AnyToRetry());
  EXPECT_THAT(paths.Spread(), ElementsAre(0, 0, 1));
}

TEST(SocketPathsTest, SparesCarryWhatTheFirstPathsCannot) {
  SocketPaths paths = Make(3, 1, 1);
  paths.GiveUp(0, 5);
  EXPECT_THAT(paths.Spread(), ElementsAre(1, 1));
  EXPECT_THAT(paths.Spread(0), ElementsAre(0, 0));
  // A lost spare is not tried while there is another spare.
  paths.GiveUp(1, 6);
  EXPECT_THAT(paths.Spread(), ElementsAre(2, 2));
  EXPECT_EQ(paths.Due(5 + 1000), 0u);
  paths.Restore(0);
  EXPECT_FALSE(paths.AnyToRetry());
}

TEST(SocketPathsTest, WithoutDataSocketsOnePathCarriesAll) {
  SocketPaths paths = Make(2, 2, 0);
  paths.GiveUp(1, 5);
  EXPECT_FALSE(paths.AnyToRetry());
  EXPECT_THAT(paths.Spread(), ElementsAre(0));
}

TEST(SocketPathsTest, TheLastGoodPathIsLeftForTheOthers) {
  SocketPaths paths = Make(2, 2, 2);
  paths.GiveUp(0, 5);
  paths.GiveUp(1, 6);
  EXPECT_THAT(paths.Spread(), ElementsAre(0, 0, 0));
  paths.GiveUp(0, 7);
  EXPECT_THAT(paths.Spread(), ElementsAre(1, 1, 1));
  SocketPaths only = Make(1, 1, 0);
  only.GiveUp(0, 5);
  EXPECT_THAT(only.Spread(), ElementsAre(0));
}

TEST(SocketPathsTest, APathThatIsLostAgainWaitsLonger) {
  SocketPaths paths = Make(2, 2, 2);
  int64_t now_ns = 0;
  for (int64_t wait_ns : {1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000}) {
    paths.GiveUp(1, now_ns);
    EXPECT_EQ(paths.Due(now_ns + wait_ns - 1), std::nullopt);
    EXPECT_EQ(paths.Due(now_ns + wait_ns), 1u);
    paths.Restore(1);
    now_ns += wait_ns;
  }
}

TEST(SocketPathsTest, IsHopelessOnlyWhenThereIsAnother) {
  for (const size_t number : {1, 2}) {
    SocketPaths paths = Make(number, number, 2);
    paths.NoteTry(0, 10);
    paths.NoteTry(0, 100);
    EXPECT_FALSE(paths.IsHopeless(0, 110));
    EXPECT_EQ(paths.IsHopeless(0, 111), number == 2);
    paths.NoteReached(0);
    EXPECT_TRUE(paths.WasReached(0));
    EXPECT_FALSE(paths.IsHopeless(0, 1000));
  }
}

TEST(SocketPathsTest, TellsEachChangeOnce) {
  SocketPaths paths = Make(3, 3, 3);
  EXPECT_EQ(paths.TakeNotice(), "");
  paths.GiveUp(1, 5);
  EXPECT_EQ(paths.TakeNotice(), "goes on without 10.0.1.1, which does not answer");
  EXPECT_EQ(paths.TakeNotice(), "");
  paths.GiveUp(2, 6);
  paths.Restore(1);
  EXPECT_EQ(paths.TakeNotice(),
            "goes on without 10.0.2.1, which does not answer, and goes by 10.0.1.1 again");
}

}  // namespace
}  // namespace tutti
