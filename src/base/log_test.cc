#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/log_settings.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

LogSettings Parse(const char* debug, const char* subsystems = nullptr, const char* file = nullptr) {
  return ParseLogSettings(debug, subsystems, file, "alpha", 42);
}

TEST(LogSettingsTest, WarningsAreSeenWhenNothingIsSet) {
  const LogSettings settings = Parse(nullptr);
  EXPECT_EQ(settings.level, LogLevel::kWarn);
  EXPECT_EQ(settings.subsystems, kDefaultLogSubsystems);
  EXPECT_THAT(settings.file, IsEmpty());
  EXPECT_THAT(settings.complaints, IsEmpty());
}

TEST(LogSettingsTest, EveryLevelIsReadInAnyCase) {
  EXPECT_EQ(Parse("NONE").level, LogLevel::kNone);
  EXPECT_EQ(Parse("version").level, LogLevel::kVersion);
  EXPECT_EQ(Parse("WARN").level, LogLevel::kWarn);
  EXPECT_EQ(Parse("Info").level, LogLevel::kInfo);
  EXPECT_EQ(Parse("TRACE").level, LogLevel::kTrace);
}

TEST(LogSettingsTest, AnUnknownLevelIsSaidAloud) {
  const LogSettings settings = Parse("LOUD");
  EXPECT_EQ(settings.level, LogLevel::kWarn);
  EXPECT_THAT(settings.complaints, ElementsAre(HasSubstr("LOUD")));
}

TEST(LogSettingsTest, SubsystemsAreAListOrAnExclusion) {
  EXPECT_EQ(Parse("INFO", "NET,coll").subsystems, kLogNet | kLogColl);
  EXPECT_EQ(Parse("INFO", "ALL").subsystems, kLogAll);
  EXPECT_EQ(Parse("INFO", "^NET,SHM").subsystems, ~(kLogNet | kLogShm));
  EXPECT_EQ(Parse("INFO", ",,P2P,").subsystems, kLogP2p);
}

TEST(LogSettingsTest, AnUnknownSubsystemIsSaidAloudAndTheOthersStay) {
  const LogSettings settings = Parse("INFO", "NET,NETT");
  EXPECT_EQ(settings.subsystems, kLogNet);
  EXPECT_THAT(settings.complaints, ElementsAre(HasSubstr("NETT")));
}

TEST(LogSettingsTest, FileNamesCarryHostAndProcess) {
  EXPECT_EQ(Parse("INFO", nullptr, "/tmp/t.%h.%p.log").file, "/tmp/t.alpha.42.log");
  EXPECT_EQ(Parse("INFO", nullptr, "a%%p%x%").file, "a%p%x%");
}

TEST(LogLineTest, CarriesHostProcessThreadRankAndLevel) {
  EXPECT_EQ(FormatLogLine(LogLevel::kInfo, "alpha", 1, 2, 3, "hello"),
            "alpha:1:2 [3] tutti INFO hello\n");
  EXPECT_EQ(FormatLogLine(LogLevel::kWarn, "alpha", 1, 2, -1, "hello"),
            "alpha:1:2 tutti WARN hello\n");
}

// Points the process's log at a file of its own for the life of this object, and afterwards back at
// the standard error stream.
class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() : path_(::testing::TempDir() + "/tutti_log_test." + std::to_string(getpid())) {
    unlink(path_.c_str());
  }
  ~LogFileTest() override {
    log::SetThreadRank(-1);
    log::Configure(LogSettings{});
    unlink(path_.c_str());
  }

  void Use(LogLevel level, uint32_t subsystems) {
    log::Configure({.level = level, .subsystems = subsystems, .file = path_, .complaints = {}});
  }
  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  std::string path_;
};

TEST_F(LogFileTest, LevelAndSubsystemChooseTheLines) {
  Use(LogLevel::kInfo, kLogNet);
  log::SetThreadRank(7);
  TUTTI_WARN("a warning of {}", 1);
  TUTTI_INFO(kLogNet, "net");
  TUTTI_INFO(kLogShm | kLogNet, "both");
  TUTTI_INFO(kLogShm, "shm");
  TUTTI_TRACE(kLogNet, "trace");
  EXPECT_THAT(Lines(),
              ElementsAre(MatchesRegex(".*:.*:.* \\[7\\] tutti WARN a warning of 1"),
                          MatchesRegex(".* tutti INFO net"), MatchesRegex(".* tutti INFO both")));
}

TEST_F(LogFileTest, NoneSilencesWarnings) {
  Use(LogLevel::kNone, kLogAll);
  TUTTI_WARN("unseen");
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(LogFileTest, ArgumentsOfASilentLineAreNotEvaluated) {
  Use(LogLevel::kWarn, kLogAll);
  int evaluated = 0;
  TUTTI_INFO(kLogNet, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  TUTTI_WARN("{}", ++evaluated);
  EXPECT_EQ(evaluated, 1);
}

TEST_F(LogFileTest, LinesOfManyThreadsDoNotMix) {
  Use(LogLevel::kInfo, kLogAll);
  constexpr int kThreads = 4;
  constexpr int kLinesEach = 200;
  const std::string body(300, 'x');
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kLinesEach; ++i) TUTTI_INFO(kLogNet, "{}", body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), size_t{kThreads} * kLinesEach);
  for (const std::string& line : lines) ASSERT_THAT(line, MatchesRegex("[^x]*tutti INFO x+"));
}

TEST_F(LogFileTest, AFileThatCannotBeOpenedIsSaidOnStderr) {
  ::testing::internal::CaptureStderr();
  log::Configure({.level = LogLevel::kInfo,
                  .subsystems = kLogAll,
                  .file = "/nonexistent-directory/log",
                  .complaints = {}});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("/nonexistent-directory/log (NCCL_DEBUG_FILE) cannot be opened"));
}

}  // namespace
}  // namespace tutti
