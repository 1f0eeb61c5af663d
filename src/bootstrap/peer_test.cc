#include "bootstrap/peer.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace tutti {
namespace {

using State = Peer::State;
using News = Peer::News;

TEST(PeerTest, EveryNewsLeadsFromEveryStateToTheNext) {
  const std::vector<News> to_here = {};
  const std::vector<News> to_suspected = {News::kLinkBroke};
  const std::vector<News> to_ended = {News::kSaidEnd};
  const std::vector<News> to_both = {News::kLinkBroke, News::kSaidEnd};
  const std::vector<News> to_lost = {News::kDecidedLost};
  const std::vector<std::tuple<std::vector<News>, State, State, State, State>> table = {
      // from, its name, and the states after kLinkBroke, kSaidEnd and kDecidedLost
      {to_here, State::kHere, State::kSuspected, State::kEnded, State::kLost},
      {to_suspected, State::kSuspected, State::kSuspected, State::kEndedSuspected, State::kLost},
      {to_ended, State::kEnded, State::kEnded, State::kEnded, State::kLost},
      {to_both, State::kEndedSuspected, State::kEndedSuspected, State::kEndedSuspected,
       State::kLost},
      {to_lost, State::kLost, State::kLost, State::kLost, State::kLost},
  };
  for (const auto& [path, from, after_break, after_end, after_decision] : table) {
    const std::vector<std::pair<News, State>> steps = {{News::kLinkBroke, after_break},
                                                       {News::kSaidEnd, after_end},
                                                       {News::kDecidedLost, after_decision}};
    for (const auto& [news, to] : steps) {
      Peer peer;
      for (const News earlier : path) peer.Advance(earlier);
      ASSERT_EQ(peer.state(), from);
      EXPECT_EQ(peer.Advance(news), from != to);
      EXPECT_EQ(peer.state(), to);
    }
  }
}

TEST(PeerTest, OnlyABrokenLinkOrALossLeavesFramesMissing) {
  Peer peer;
  EXPECT_TRUE(peer.IsWhole());
  EXPECT_FALSE(peer.HasEnded());
  Peer ended;
  ended.Advance(News::kSaidEnd);
  EXPECT_TRUE(ended.IsWhole());
  EXPECT_TRUE(ended.HasEnded());
  peer.Advance(News::kLinkBroke);
  EXPECT_FALSE(peer.IsWhole());
  peer.Advance(News::kSaidEnd);
  EXPECT_FALSE(peer.IsWhole());
  EXPECT_TRUE(peer.HasEnded());
  peer.Advance(News::kDecidedLost);
  EXPECT_FALSE(peer.IsWhole());
  EXPECT_FALSE(peer.HasEnded());
}

TEST(PeersTest, DescribeSaysAsMuchAsIsKnown) {
  Peers peers;
  EXPECT_EQ(peers.Find(3), nullptr);
  EXPECT_EQ(peers.Describe(3), "not known yet");
  peers[3].identity.contact.address = *ParseSocketAddress("10.0.0.5:4000");
  EXPECT_EQ(peers.Describe(3), "at 10.0.0.5:4000");
  peers[3].identity.pid = 7;
  peers[3].identity.host = "node5";
  EXPECT_EQ(peers.Describe(3), "pid 7 on node5 at 10.0.0.5:4000");
}

}  // namespace
}  // namespace tutti
