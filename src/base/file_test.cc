#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tutti {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kOther = 12345;  // a user who owns nothing

class FileTest : public ::testing::Test {
 protected:
  FileTest() { std::filesystem::create_directories(folder_); }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  static std::string TextOf(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const std::string folder_ = ::testing::TempDir() + "file_test." + std::to_string(getpid());
  const std::string path_ = folder_ + "/file";
};

TEST_F(FileTest, ReplacesAFileAndLeavesNoOther) {
  ASSERT_TRUE(ReplaceFile(path_, "one").ok());
  EXPECT_EQ(TextOf(path_), "one");
  ASSERT_TRUE(ReplaceFile(path_, "two").ok());
  EXPECT_EQ(TextOf(path_), "two");
  EXPECT_EQ(NumFiles(), 1u);
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0600, 0600u);
  EXPECT_EQ(file.st_mode & 0022, 0u);
}

// Names beside the file that another user could have taken before are not written to.
TEST_F(FileTest, WritesThroughNoLinkBesideTheFile) {
  const std::string target = folder_ + "/target";
  for (const char* name : {".part", ".new", ".tmp"})
    ASSERT_EQ(symlink(target.c_str(), (path_ + name).c_str()), 0);
  ASSERT_TRUE(ReplaceFile(path_, "text").ok());
  EXPECT_EQ(TextOf(path_), "text");
  EXPECT_FALSE(std::filesystem::exists(target));
}

TEST_F(FileTest, AFailureLeavesTheFileAndNoOther) {
  std::filesystem::create_directories(path_ + "/inside");  // A folder cannot be replaced by a file.
  const Status status = ReplaceFile(path_, "text");
  EXPECT_THAT(status.message(), HasSubstr("cannot write " + path_));
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_THAT(ReplaceFile(folder_ + "/none/file", "text").message(), HasSubstr("ENOENT"));
}

TEST_F(FileTest, ReplacesTheTargetOfALinkAndNoDevice) {
  const std::string target = folder_ + "/target";
  ASSERT_EQ(symlink(target.c_str(), path_.c_str()), 0);
  ASSERT_TRUE(ReplaceFile(path_, "a longer text").ok());
  ASSERT_TRUE(ReplaceFile(path_, "text").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_EQ(TextOf(target), "text");
  // A FIFO stands for /dev/stdout, which a defect would replace.
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const UniqueFd reader(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(ReplaceFile(fifo, "text").ok());
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  char read_text[8] = {};
  EXPECT_EQ(read(reader.get(), read_text, sizeof(read_text)), 4);
}

TEST_F(FileTest, KeepsTheModeOfTheFile) {
  ASSERT_TRUE(ReplaceFile(path_, "one").ok());
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  ASSERT_TRUE(ReplaceFile(path_, "two").ok());
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST_F(FileTest, WritesAFileInAFolderWithoutNewFiles) {
  ASSERT_TRUE(ReplaceFile(path_, "a longer text").ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0555), 0);
  // Root makes files anywhere, and becomes another user for a while.
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(path_.c_str(), kOther, kOther), 0);
    ASSERT_EQ(seteuid(kOther), 0);
  }
  const Status status = ReplaceFile(path_, "text");
  ASSERT_TRUE(!root || seteuid(0) == 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(TextOf(path_), "text");
}

TEST_F(FileTest, AFifoWithoutAReaderBlocksNobody) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(OpenToWrite(path_, O_WRONLY | O_APPEND).valid());
  EXPECT_EQ(errno, ENXIO);
  const UniqueFd reader(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const UniqueFd writer = OpenToWrite(path_, O_WRONLY | O_APPEND);
  ASSERT_TRUE(writer.valid());
  EXPECT_EQ(fcntl(writer.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(FileTest, RefusesFilesAndFifosOfOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  std::ofstream(path_) << "text";
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0666), 0);
  const UniqueFd reader(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  for (const std::string& path : {path_, fifo}) {
    ASSERT_EQ(chown(path.c_str(), kOther, kOther), 0);
    EXPECT_FALSE(OpenToWrite(path, O_WRONLY | O_TRUNC).valid()) << path;
    EXPECT_EQ(errno, EACCES);
  }
  EXPECT_EQ(TextOf(path_), "text");
}

TEST_F(FileTest, FollowsLinksOfThisUserAndOfRootOnly) {
  ASSERT_EQ(symlink((folder_ + "/target").c_str(), path_.c_str()), 0);
  EXPECT_TRUE(OpenToWrite(path_, O_WRONLY).valid());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/target"));
  if (lchown(path_.c_str(), kOther, kOther) != 0) GTEST_SKIP() << "only root gives links away";
  EXPECT_FALSE(OpenToWrite(path_, O_WRONLY).valid());
  EXPECT_EQ(errno, ELOOP);
}

TEST_F(FileTest, AppendsOrBeginsAnewByTheFlags) {
  for (const int flags : {O_TRUNC, O_APPEND, O_TRUNC}) {
    const UniqueFd fd = OpenToWrite(path_, O_WRONLY | flags);
    ASSERT_TRUE(fd.valid());
    ASSERT_TRUE(WriteAll(fd.get(), "ab").ok());
    EXPECT_EQ(TextOf(path_), flags == O_APPEND ? "abab" : "ab");
  }
}

}  // namespace
}  // namespace tutti
