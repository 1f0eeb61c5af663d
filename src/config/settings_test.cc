#include "config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/config_file.h"
#include "config/setting_ranks.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

Environment Fake(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// Reads a variable and expects success.
Settings With(const std::string& variable, const std::string& text) {
  Result<Settings> settings = ReadSettings(Fake({{variable, text}}));
  EXPECT_TRUE(settings.ok()) << settings.status().message();
  return settings.ok() ? *settings : Settings{};
}

// The sentence that refuses a variable; empty when the variable was accepted.
std::string Refusal(const std::string& variable, const std::string& text) {
  const Result<Settings> settings = ReadSettings(Fake({{variable, text}}));
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), Code::kInvalidUsage);
  return std::string(settings.status().message());
}

TEST(SettingsTest, AnEmptyEnvironmentGivesTheDefaults) {
  const Result<Settings> settings = ReadSettings(Fake({}));
  ASSERT_TRUE(settings.ok());
  for (const SettingInfo& setting : AllSettings()) {
    EXPECT_EQ(setting.format(*settings), setting.default_text) << setting.variable;
  }
}

TEST(SettingsTest, AnEmptyTextCountsAsNotSet) {
  EXPECT_EQ(With("NCCL_UID_STAGGER_RATE", "").uid_stagger_rate, 7000);
}

// Reading the text of a default or a value must give the value back.
TEST(SettingsTest, EveryDefaultIsAllowedAndReadsBack) {
  for (const SettingInfo& setting : AllSettings()) {
    if (setting.default_text.empty()) continue;
    Settings settings;
    const Status status = setting.read(setting.default_text, settings);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(setting.format(settings), setting.default_text) << setting.variable;
  }
}

TEST(SettingsTest, FlagsTakeTheUsualWords) {
  EXPECT_TRUE(With("NCCL_SHM_DISABLE", "1").shm_disable);
  EXPECT_TRUE(With("NCCL_SHM_DISABLE", "Yes").shm_disable);
  EXPECT_FALSE(With("TUTTI_HUGE_PAGES", "0").huge_pages);
  EXPECT_FALSE(With("TUTTI_HUGE_PAGES", "off").huge_pages);
  EXPECT_EQ(Refusal("NCCL_SHM_DISABLE", "2"), "NCCL_SHM_DISABLE is \"2\", but must be 0 or 1");
}

TEST(SettingsTest, IntegersAreBounded) {
  EXPECT_EQ(With("NCCL_SOCKET_NTHREADS", "8").socket_nthreads, 8);
  EXPECT_EQ(With("NCCL_SOCKET_NTHREADS", "0x10").socket_nthreads, 16);
  EXPECT_EQ(With("TUTTI_SPIN_US", "-1").spin_us, -1);
  EXPECT_EQ(Refusal("NCCL_SOCKET_NTHREADS", "17"),
            "NCCL_SOCKET_NTHREADS is \"17\", but must be a whole number from 0 to 16 threads");
  for (const char* text : {"-1", "eight", "8 ", "8x", "1K", "99999999999999999999", "1.5"}) {
    EXPECT_THAT(Refusal("NCCL_SOCKET_NTHREADS", text), HasSubstr(text));
  }
}

TEST(SettingsTest, BytesTakeSuffixes) {
  EXPECT_EQ(With("NCCL_BUFFSIZE", "4194304").buffsize, 4194304);
  EXPECT_EQ(With("NCCL_BUFFSIZE", "512K").buffsize, 524288);
  EXPECT_EQ(With("NCCL_BUFFSIZE", "4m").buffsize, 4194304);
  EXPECT_EQ(With("NCCL_BUFFSIZE", "1G").buffsize, 1073741824);
  for (const char* text : {"2G", "K", "-1K", "9223372036854775807G", "4MB"}) {
    EXPECT_THAT(Refusal("NCCL_BUFFSIZE", text), HasSubstr(text));
  }
}

TEST(SettingsTest, NumbersAreBounded) {
  EXPECT_DOUBLE_EQ(With("TUTTI_INIT_TIMEOUT_S", "0.5").init_timeout_s, 0.5);
  EXPECT_DOUBLE_EQ(With("TUTTI_TIMEOUT_S", "0").timeout_s, 0);
  for (const char* text : {"0", "-1", "nan", "inf", "5s", "1e7"}) {
    EXPECT_THAT(Refusal("TUTTI_INIT_TIMEOUT_S", text), HasSubstr("0.01 to 1000000 seconds"))
        << text;
  }
}

TEST(SettingsTest, ChoicesComeInTheSpellingOfTheList) {
  EXPECT_EQ(With("NCCL_SOCKET_FAMILY", "af_inet6").socket_family, "AF_INET6");
  EXPECT_EQ(With("TUTTI_BACKEND", "HOST").backend, "host");
  EXPECT_EQ(Refusal("NCCL_SOCKET_FAMILY", "AF_UNIX"),
            "NCCL_SOCKET_FAMILY is \"AF_UNIX\", but must be AF_INET or AF_INET6");
}

TEST(SettingsTest, PortsAreARangeOrOne) {
  EXPECT_EQ(With("TUTTI_PORT_RANGE", "50000-50099").port_range, (PortRange{50000, 50099}));
  EXPECT_EQ(With("TUTTI_PORT_RANGE", "7").port_range, (PortRange{7, 7}));
  EXPECT_TRUE(Settings{}.port_range.any());
  for (const char* text : {"0", "0-7", "9-8", "1-65536", "-", "1-", "-5", "1-2-3", "a-b"}) {
    EXPECT_THAT(Refusal("TUTTI_PORT_RANGE", text), HasSubstr("TUTTI_PORT_RANGE")) << text;
  }
}

TEST(SettingsTest, SecretsAreReadButNotShown) {
  const Settings settings = With("TUTTI_COMM_KEY", "hunter2");
  EXPECT_EQ(settings.comm_key, "hunter2");
  for (const SettingInfo& setting : AllSettings()) {
    EXPECT_THAT(setting.format(settings), Not(HasSubstr("hunter2")));
    if (setting.variable == "TUTTI_COMM_KEY") {
      EXPECT_EQ(setting.format(settings), "(set)");
    }
  }
}

TEST(SettingsTest, TheTableIsInOrder) {
  std::set<std::string_view> seen;
  for (const SettingInfo& setting : AllSettings()) {
    EXPECT_TRUE(seen.insert(setting.variable).second) << setting.variable << " stands twice";
    EXPECT_TRUE(setting.variable.starts_with("NCCL_") || setting.variable.starts_with("TUTTI_") ||
                setting.variable.starts_with("HOROVOD_"));
    EXPECT_TRUE(setting.why.ends_with('.')) << setting.variable;
    EXPECT_GT(setting.why.size(), 20u) << setting.variable;
  }
}

TEST(SettingsTest, RanksHaveShortNames) {
  EXPECT_EQ(RanksText("NCCL_DEBUG"), "all");
  EXPECT_EQ(RanksText("NCCL_MIN_CTAS"), "GPUs");
  EXPECT_EQ(RanksText("NCCL_NET"), "hosts, channels");
  EXPECT_EQ(RanksText("HOROVOD_TIMELINE"), "coordinator");
  EXPECT_EQ(RanksText("NCCL_NO_SUCH_NAME"), "");
}

std::vector<std::string> Set(std::vector<std::string> names) {
  for (std::string& name : names) name += "=17";
  return names;
}

TEST(ReviewNamesTest, NamesThatWorkAndForeignNamesAreLeftAlone) {
  EXPECT_THAT(ReviewNames(Set(
                  {"PATH", "NCCL_ALGO", "TUTTI_SPIN_US", "NCCL_VERSION", "TUTTI_ADDR", "NCCL"})),
              IsEmpty());
}

TEST(ReviewNamesTest, NamesWithoutMeaningSayWhy) {
  EXPECT_THAT(
      ReviewNames(Set({"NCCL_IB_ECE_ENABLE"})),
      ElementsAre("NCCL_IB_ECE_ENABLE is set but ignored: the network over InfiniBand has no "
                  "such choice yet"));
}

TEST(ReviewNamesTest, ValuesThatAskForWhatIsSoAnywayAreNoNews) {
  const std::vector<std::string> off = {"NCCL_NVLS_ENABLE=0", "NCCL_IB_DATA_DIRECT=0",
                                        "NCCL_GIN_PLUGIN=none", "NCCL_IB_ECE_ENABLE="};
  EXPECT_THAT(ReviewNames(off), IsEmpty());
  const std::vector<std::string> on = {"NCCL_NVLS_ENABLE=1", "NCCL_IB_DATA_DIRECT=1"};
  EXPECT_EQ(ReviewNames(on).size(), 2u);
}

TEST(ReviewNamesTest, UnknownNamesComeWithTheNearestOne) {
  EXPECT_THAT(
      ReviewNames(Set({"TUTTI_SPIN_USEC", "NCCL_SOCKET_IFNAMES", "TUTTI_WHATEVER"})),
      ElementsAre(HasSubstr("is TUTTI_SPIN_US meant?"), HasSubstr("is NCCL_SOCKET_IFNAME meant?"),
                  AllOf(HasSubstr("TUTTI_WHATEVER"), Not(HasSubstr("meant?")))));
}

TEST(ReviewNamesTest, NoNameIsBothASettingAndIgnored) {
  std::vector<std::string> names;
  for (const SettingInfo& setting : AllSettings()) names.emplace_back(setting.variable);
  EXPECT_THAT(ReviewNames(Set(names)), IsEmpty());
  for (const std::string& name : names) {
    EXPECT_THAT(SettingsMarkdown(), HasSubstr("\n| `" + name + "` | "));
    EXPECT_THAT(SettingsMarkdown(), Not(HasSubstr(" `" + name + "`,")));
  }
}

TEST(ConfigFileTest, ReadsNamesAndValues) {
  const ConfigFile file = ParseConfigFile(
      "# comment\n\n NCCL_DEBUG = INFO \r\nNCCL_ALGO=ring,tree\nNCCL_ALGO=tree\nTUTTI_COMM_KEY=a=b",
      "f");
  EXPECT_THAT(file.complaints, IsEmpty());
  EXPECT_EQ(file.values,
            (std::map<std::string, std::string, std::less<>>{
                {"NCCL_DEBUG", "INFO"}, {"NCCL_ALGO", "ring,tree"}, {"TUTTI_COMM_KEY", "a=b"}}));
}

TEST(ConfigFileTest, LinesThatAreNoneAreSaidWithTheirNumber) {
  const ConfigFile file = ParseConfigFile("A=1\nhello\n=x\n", "/etc/f");
  EXPECT_THAT(file.complaints, ElementsAre(HasSubstr("line 2 of /etc/f"), HasSubstr("line 3")));
  EXPECT_EQ(file.values.size(), 1u);
}

TEST(ConfigFileTest, TheNamedFileReplacesTheOneAtHome) {
  EXPECT_THAT(ConfigFilePaths(Fake({{"HOME", "/h"}})),
              ElementsAre("/h/.nccl.conf", "/etc/nccl.conf"));
  EXPECT_THAT(ConfigFilePaths(Fake({{"HOME", "/h"}, {"NCCL_CONF_FILE", "/x"}})),
              ElementsAre("/x", "/etc/nccl.conf"));
  EXPECT_THAT(ConfigFilePaths(Fake({})), ElementsAre("/etc/nccl.conf"));
}

TEST(ConfigFileTest, TheEnvironmentWinsThenTheFirstFile) {
  const Environment overlaid =
      Overlay(Fake({{"A", "environment"}}), {ParseConfigFile("A=first\nB=first", "1"),
                                             ParseConfigFile("A=second\nB=second\nC=second", "2")});
  EXPECT_STREQ(overlaid("A"), "environment");
  EXPECT_STREQ(overlaid("B"), "first");
  EXPECT_STREQ(overlaid("C"), "second");
  EXPECT_EQ(overlaid("D"), nullptr);
}

TEST(ProcessSettingsTest, FileAndEnvironmentMeet) {
  const std::string path = ::testing::TempDir() + "tutti_settings_test." + std::to_string(getpid());
  std::ofstream(path) << "NCCL_SOCKET_NTHREADS=3\nNCCL_NSOCKS_PERTHREAD=5\n";
  setenv("NCCL_CONF_FILE", path.c_str(), 1);
  setenv("NCCL_NSOCKS_PERTHREAD", "7", 1);
  const Result<Settings> settings = ReadProcessSettings();
  unsetenv("NCCL_CONF_FILE");
  unsetenv("NCCL_NSOCKS_PERTHREAD");
  std::remove(path.c_str());
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings.value().socket_nthreads, 3);
  EXPECT_EQ(settings.value().nsocks_perthread, 7);
}

// `make docs` runs this test with WRITE_DOCS set: the test then writes the page instead of
// comparing the page.
TEST(SettingsDocsTest, ThePageIsUpToDate) {
  const std::string path = TUTTI_SOURCE_DIR "/docs/settings.md";
  if (std::getenv("WRITE_DOCS") != nullptr) std::ofstream(path) << SettingsMarkdown();
  std::ifstream file(path);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(page, SettingsMarkdown()) << "run `make docs`";
}

}  // namespace
}  // namespace tutti
