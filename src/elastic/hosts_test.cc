#include "elastic/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::elastic {
namespace {

using testing::ElementsAre;

TEST(ParseHosts, ReadsLinesAndFields) {
  const auto hosts = ParseHosts("a:4\n# a comment\n\n b-1.lan : 2 \r\nc", 3);
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 4}, HostSlots{"b-1.lan", 2}, HostSlots{"c", 3}));
  EXPECT_EQ(ParseHosts("x:1,y:0", 1)->size(), 2u);
  EXPECT_TRUE(ParseHosts("", 1)->empty());
}

TEST(ParseHosts, RefusesWhatSshCouldMistake) {
  for (const char* text : {"-oProxyCommand=x:1", "a b:1", "a;b", ":4", "a:", "a:-1", "a:x", "a:1x",
                           "a:99999", "a:1\na:2"}) {
    EXPECT_FALSE(ParseHosts(text, 1).ok()) << text;
  }
}

}  // namespace
}  // namespace tutti::elastic
