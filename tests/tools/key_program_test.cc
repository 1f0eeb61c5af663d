#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

// The program runs in a home folder of the test's own.
class KeyProgram : public testing::Test {
 protected:
  KeyProgram() {
    std::string name = testing::TempDir() + "tutti-home-XXXXXX";
    home_ = mkdtemp(name.data());
  }
  ~KeyProgram() override { std::filesystem::remove_all(home_); }

  Outcome Key(std::vector<std::string> arguments = {}, Variables variables = {}) const {
    arguments.insert(arguments.begin(), "key");
    variables.emplace_back("HOME", home_);
    return Tutti(std::move(arguments), variables);
  }

  std::string path() const { return home_ + "/.tutti/key"; }
  std::string Read() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat found = {};
    EXPECT_EQ(stat(path.c_str(), &found), 0);
    return found.st_mode & 07777u;
  }

  std::string home_;
};

TEST_F(KeyProgram, MakesAKeyForThisUserAlone) {
  const Outcome outcome = Key();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string key = Read();
  EXPECT_THAT(key, testing::MatchesRegex("[0-9a-f]{64}\n"));
  EXPECT_EQ(ModeOf(path()), 0600u);
  EXPECT_EQ(ModeOf(home_ + "/.tutti"), 0700u);
  EXPECT_THAT(outcome.out, HasSubstr(path()));
  EXPECT_THAT(outcome.out, HasSubstr("ssh HOST"));
  EXPECT_THAT(outcome.out, Not(HasSubstr(key.substr(0, 16))));
}

TEST_F(KeyProgram, KeepsAnExistingKey) {
  ASSERT_EQ(Key().status, 0);
  const std::string first = Read();
  const Outcome again = Key();
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("--force"));
  EXPECT_EQ(Read(), first);
  EXPECT_EQ(Key({"--force"}).status, 0);
  EXPECT_NE(Read(), first);
  EXPECT_EQ(Read().size(), first.size());
}

// No file can grow here, as on a full disk.
TEST_F(KeyProgram, AFailedWriteLeavesTheOldKey) {
  ASSERT_EQ(Key().status, 0);
  const std::string first = Read();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // inherited, as the limit is
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const Outcome forced = Key({"--force"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(forced.status, 1) << forced.err;
  EXPECT_EQ(Read(), first);
}

// Drafts are removed in every case.
TEST_F(KeyProgram, LeavesNoOtherFile) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>(), std::vector<std::string>(), {"--force"}}) {
    static_cast<void>(Key(arguments));
    const std::filesystem::directory_iterator files(home_ + "/.tutti");
    EXPECT_EQ(std::distance(files, std::filesystem::directory_iterator()), 1);
  }
}

TEST_F(KeyProgram, FingerprintsCompareHosts) {
  const Outcome none = Key({"--fingerprint"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("there is no secret here"));
  const std::string made = Key().out;
  const std::string shown = Key({"--fingerprint"}).out;
  EXPECT_THAT(shown, testing::MatchesRegex("[0-9a-f]{16}  .*/.tutti/key\n"));
  EXPECT_THAT(made, HasSubstr("(fingerprint " + shown.substr(0, 16) + ")"));
  // The same secret from another source has the same fingerprint.
  const std::string key = Read().substr(0, 64);
  EXPECT_EQ(Key({"--fingerprint"}, {{"TUTTI_COMM_KEY", key}}).out,
            shown.substr(0, 16) + "  TUTTI_COMM_KEY\n");
  EXPECT_EQ(Key({"--fingerprint", "--force"}).status, 2);
  EXPECT_EQ(Read().substr(0, 64), key);
}

TEST_F(KeyProgram, FollowsNobodysLinks) {
  const std::string other = home_ + "/other";
  std::filesystem::create_directory(other);
  std::filesystem::create_symlink(other, home_ + "/.tutti");
  EXPECT_EQ(Key().status, 1);
  EXPECT_TRUE(std::filesystem::is_empty(other));
  std::filesystem::remove(home_ + "/.tutti");
  std::filesystem::create_directory(home_ + "/.tutti");
  std::filesystem::create_symlink(other + "/key", path());
  EXPECT_EQ(Key().status, 1);
  EXPECT_TRUE(std::filesystem::is_empty(other));
}

TEST_F(KeyProgram, AFolderThatOthersChangeIsRefused) {
  std::filesystem::create_directory(home_ + "/.tutti");
  ASSERT_EQ(chmod((home_ + "/.tutti").c_str(), 0770), 0);
  const Outcome outcome = Key();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("mode 0770"));
}

}  // namespace
}  // namespace tutti::tools
