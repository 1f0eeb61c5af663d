// Environment plugins in both versions of the interface, and plugins that are missing or misbehave.
// tests/plugins/CMakeLists.txt has a whole program with one.

#include <gmock/gmock.h>

#include "config/env_plugin.h"
#include "example_library.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EnvVersionTest : public ::testing::TestWithParam<int> {};

TEST_P(EnvVersionTest, SaysWhatVariablesAre) {
  const WithVariable asked("EXAMPLE_ENV", "NCCL_ALGO=tree,NCCL_PROTO=");
  const WithVariable hidden("NCCL_PROTO", "LL");
  const WithVariable passed("NCCL_NET", "Socket");
  std::vector<std::string> complaints;
  const auto plugin = EnvPlugin::Load(ExampleFile("env", GetParam()), complaints);
  EXPECT_THAT(complaints, IsEmpty());
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->name(), "Example");
  EXPECT_STREQ(plugin->Get("NCCL_ALGO"), "tree");
  EXPECT_EQ(plugin->Get("NCCL_PROTO"), nullptr);
  EXPECT_STREQ(plugin->Get("NCCL_NET"), "Socket");
}

TEST_P(EnvVersionTest, IsNotUsedWhereItsInitFails) {
  const WithVariable fails("EXAMPLE_ENV_FAIL", "init");
  std::vector<std::string> complaints;
  EXPECT_EQ(EnvPlugin::Load(ExampleFile("env", GetParam()), complaints), nullptr);
  EXPECT_THAT(complaints, ElementsAre(HasSubstr("(Example) failed in init (result 2): variables "
                                                "are read without it")));
}

INSTANTIATE_TEST_SUITE_P(All, EnvVersionTest, ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

TEST(EnvPluginTest, TheNextOneIsTakenWhereOneCannotBeUsed) {
  std::vector<std::string> complaints;
  const auto plugin = EnvPlugin::Load(
      "there-is-none,/lib/x86_64-linux-gnu/libm.so.6," + ExampleFile("env", 2), complaints);
  EXPECT_NE(plugin, nullptr);
  EXPECT_THAT(
      complaints,
      ElementsAre(HasSubstr("libnccl-env-there-is-none.so cannot be loaded"),
                  HasSubstr("/lib/x86_64-linux-gnu/libm.so.6 has no table ncclEnvPlugin_v1 or")));
}

TEST(EnvPluginTest, NothingIsSaidWhereNoneIsNamed) {
  std::vector<std::string> complaints;
  EXPECT_EQ(EnvPlugin::Load("", complaints), nullptr);
  EXPECT_EQ(EnvPlugin::Load("none", complaints), nullptr);
  EXPECT_THAT(complaints, IsEmpty());
}

}  // namespace
}  // namespace tutti
