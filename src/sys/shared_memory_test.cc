#include "sys/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>

namespace tutti {
namespace {

using ::testing::HasSubstr;

std::set<std::string> FilesIn(const char* path) {
  std::set<std::string> names;
  if (DIR* directory = opendir(path)) {
    while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
    closedir(directory);
  }
  return names;
}

// Runs `body` in a child process and returns its exit status; -1 when a signal ended it.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedMemory, IsZeroedAndWritable) {
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{5000}, kHugePageBytes, kHugePageBytes + 1}) {
    auto memory = SharedMemory::Create(bytes, HugePages::kAdvise);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ(memory->size(), bytes);
    for (size_t i = 0; i < bytes; i += 511) ASSERT_EQ(memory->data()[i], std::byte{0}) << i;
    std::memset(memory->data(), 0x5a, bytes);
    EXPECT_EQ(memory->data()[bytes - 1], std::byte{0x5a});
  }
}

TEST(SharedMemory, LargeRegionsAreAlignedForHugePages) {
  // Several at once: a single region could be aligned by luck.
  SharedMemory regions[5];
  for (SharedMemory& region : regions) {
    auto memory = SharedMemory::Create(kHugePageBytes + 4096, HugePages::kNo);
    ASSERT_TRUE(memory.ok());
    region = std::move(memory).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % kHugePageBytes, 0u);
  }
}

TEST(SharedMemory, IsSparseAndHasNoFile) {
  const auto before = FilesIn("/dev/shm");
  auto memory = SharedMemory::Create(size_t{1} << 32, HugePages::kNo);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  memory->data()[0] = std::byte{1};
  memory->data()[(size_t{1} << 32) - 1] = std::byte{1};
  struct stat file;
  ASSERT_EQ(fstat(memory->fd(), &file), 0);
  EXPECT_LE(file.st_blocks * 512, 4 << 20);  // two pages, or two huge ones
  for (const std::string& name : FilesIn("/dev/shm")) {
    EXPECT_TRUE(before.contains(name) || name.find("tutti") == name.npos) << name;
  }
  char target[64] = {};
  ASSERT_GT(readlink(("/proc/self/fd/" + std::to_string(memory->fd())).c_str(), target,
                     sizeof(target) - 1),
            0);
  EXPECT_STREQ(target, "/memfd:tutti (deleted)");
}

TEST(SharedMemory, SizeCannotBeChanged) {
  auto memory = SharedMemory::Create(8192, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(ftruncate(memory->fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(memory->fd(), 16384), -1);
  EXPECT_EQ(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
}

TEST(SharedMemory, SecondMappingSeesTheSameBytes) {
  auto memory = SharedMemory::Create(5000, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  auto other = SharedMemory::Map(UniqueFd(dup(memory->fd())), 5000);
  ASSERT_TRUE(other.ok()) << other.status().message();
  ASSERT_NE(other->data(), memory->data());
  memory->data()[4999] = std::byte{7};
  EXPECT_EQ(other->data()[4999], std::byte{7});
  other->CloseFd();
  EXPECT_EQ(other->fd(), -1);
  *memory = SharedMemory();  // the other object keeps the pages
  EXPECT_EQ(other->data()[4999], std::byte{7});
}

TEST(SharedMemory, MapRefusesTheWrongSize) {
  auto memory = SharedMemory::Create(8192, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  for (const size_t announced : {size_t{4096}, size_t{8193}, size_t{1} << 40}) {
    auto other = SharedMemory::Map(UniqueFd(dup(memory->fd())), announced);
    ASSERT_FALSE(other.ok()) << announced;
    EXPECT_EQ(other.status().code(), Code::kRemoteError);
    EXPECT_THAT(std::string(other.status().message()), HasSubstr("8192"));
  }
  EXPECT_EQ(SharedMemory::Map(UniqueFd(dup(memory->fd())), 0).status().code(),
            Code::kInvalidArgument);
}

TEST(SharedMemory, MapRefusesWhatCouldShrink) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  auto unsealed = SharedMemory::Map(UniqueFd(dup(fd.get())), 4096);
  ASSERT_FALSE(unsealed.ok());
  EXPECT_EQ(unsealed.status().code(), Code::kRemoteError);
  auto device = SharedMemory::Map(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), Code::kSystemError);
}

TEST(SharedMemory, DiscardedPagesReadAsZeroesEverywhere) {
  auto memory = SharedMemory::Create(3 * kHugePageBytes, HugePages::kAdvise);
  ASSERT_TRUE(memory.ok());
  auto other = SharedMemory::Map(UniqueFd(dup(memory->fd())), memory->size());
  ASSERT_TRUE(other.ok());
  std::memset(memory->data(), 1, memory->size());
  ASSERT_TRUE(memory->DiscardPages().ok());
  struct stat file;
  ASSERT_EQ(fstat(memory->fd(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0);
  EXPECT_EQ(other->data()[memory->size() - 1], std::byte{0});
}

TEST(SharedMemory, DiscardsAPart) {
  auto memory = SharedMemory::Create(4 * 4096, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  std::memset(memory->data(), 1, memory->size());
  const int fd = dup(memory->fd());
  memory->CloseFd();
  ASSERT_TRUE(memory->DiscardPages(4096, 2 * 4096).ok());
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  close(fd);
  EXPECT_EQ(file.st_blocks, 2 * 4096 / 512);
  EXPECT_EQ(memory->data()[4095], std::byte{1});
  EXPECT_EQ(memory->data()[4096], std::byte{0});
  EXPECT_EQ(memory->data()[3 * 4096 - 1], std::byte{0});
  EXPECT_EQ(memory->data()[3 * 4096], std::byte{1});
}

TEST(SharedMemory, MoveLeavesNothingBehind) {
  auto memory = SharedMemory::Create(4096, HugePages::kNo);
  ASSERT_TRUE(memory.ok());
  SharedMemory moved(std::move(memory).value());
  EXPECT_TRUE(moved);
  EXPECT_FALSE(*memory);  // NOLINT(bugprone-use-after-move): the subject of the test
  EXPECT_EQ(memory->fd(), -1);
  SharedMemory& alias = moved;
  moved = std::move(alias);
  ASSERT_TRUE(moved);
  moved.data()[0] = std::byte{1};
}

TEST(SharedMemory, ImpossibleSizesAreErrors) {
  EXPECT_EQ(SharedMemory::Create(0, HugePages::kNo).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SharedMemory::Create(~size_t{0}, HugePages::kNo).status().code(),
            Code::kInvalidArgument);
  auto vast = SharedMemory::Create(size_t{1} << 60, HugePages::kNo);
  ASSERT_FALSE(vast.ok());
  EXPECT_EQ(vast.status().code(), Code::kSystemError);
  EXPECT_THAT(std::string(vast.status().message()), HasSubstr(std::to_string(size_t{1} << 60)));
}

TEST(SharedMemory, FileSizeLimitIsAnErrorAndNoSignal) {
  EXPECT_EQ(
      InChild([] {
        const rlimit limit{1 << 20, 1 << 20};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
        if (!SharedMemory::Create(1 << 20, HugePages::kNo).ok()) return 2;
        auto memory = SharedMemory::Create(2 << 20, HugePages::kNo);
        if (memory.ok()) return 3;
        const std::string text(memory.status().message());
        return text.find("RLIMIT_FSIZE") != text.npos && text.find("1048576") != text.npos ? 0 : 4;
      }),
      0);
}

TEST(SharedMemory, DescriptorLimitIsNamed) {
  EXPECT_EQ(
      InChild([] {
        const rlimit limit{3, 3};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
        auto memory = SharedMemory::Create(4096, HugePages::kNo);
        if (memory.ok()) return 2;
        const std::string text(memory.status().message());
        return text.find("RLIMIT_NOFILE") != text.npos && text.find("EMFILE") != text.npos ? 0 : 3;
      }),
      0);
}

}  // namespace
}  // namespace tutti
