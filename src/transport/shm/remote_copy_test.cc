#include "transport/shm/remote_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kPage = 4096;

int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Private pages with a hole behind them.
class Pages {
 public:
  explicit Pages(size_t count) : bytes_(count * kPage) {
    void* mapped =
        mmap(nullptr, bytes_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<uint8_t*>(mapped);
    munmap(data_ + bytes_, kPage);
  }
  ~Pages() { munmap(data_, bytes_); }
  uint8_t* data() const { return data_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  size_t bytes_;
  uint8_t* data_;
};

uint8_t Pattern(size_t i) { return static_cast<uint8_t>(i * 131 + i / 256); }

// A process with memory of its own, which `prepare` fills.
class Peer {
 public:
  explicit Peer(const std::function<void()>& prepare) {
    int ready[2];
    int stop[2];
    if (pipe(ready) != 0 || pipe(stop) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(stop[1]);
      prepare();
      char byte = 0;
      if (write(ready[1], &byte, 1) != 1) _exit(100);
      if (read(stop[0], &byte, 1) < 0) _exit(101);
      _exit(0);
    }
    close(stop[0]);
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) != 1) abort();
    close(ready[0]);
    stop_fd_ = stop[1];
  }
  ~Peer() {
    if (pid_ > 0) Stop();
  }
  pid_t pid() const { return pid_; }
  void Stop() {
    close(stop_fd_);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int stop_fd_ = -1;
};

TEST(RemoteCopy, ReadsAnotherProcess) {
  const Pages pages(64);
  const Peer peer([&] {
    for (size_t i = 0; i < 64 * kPage; ++i) pages.data()[i] = Pattern(i);
  });
  std::vector<uint8_t> here(64 * kPage + 1);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4095}, kPage, size_t{4097}, 64 * kPage - 7}) {
    for (const size_t offset : {size_t{0}, size_t{7}}) {
      std::fill(here.begin(), here.end(), uint8_t{0xee});
      ASSERT_TRUE(ReadRemote(peer.pid(), here.data(), pages.address() + offset, bytes).ok());
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(here[i], Pattern(i + offset)) << i;
      ASSERT_EQ(here[bytes], 0xee);
    }
  }
  EXPECT_EQ(pages.data()[1], 0);  // the peer's memory was read
}

TEST(RemoteCopy, MissingMemoryIsAnErrorWithItsPlace) {
  const Pages pages(2);
  const Peer peer([&] { std::memset(pages.data(), 9, 2 * kPage); });
  std::vector<uint8_t> here(4 * kPage);
  const Status status = ReadRemote(peer.pid(), here.data(), pages.address(), 4 * kPage);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_THAT(std::string(status.message()), HasSubstr("EFAULT"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(fmt::format("{:#x}", pages.address() + 2 * kPage)));
  EXPECT_EQ(here[0], 9);  // the part that exists came
}

TEST(RemoteCopy, DeadProcessIsARemoteError) {
  const Pages pages(1);
  Peer peer([] {});
  const pid_t pid = peer.pid();
  peer.Stop();
  uint8_t byte;
  const Status status = ReadRemote(pid, &byte, pages.address(), 1);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(pid)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ended"));
}

TEST(RemoteCopy, ForbiddenIsAnErrorWithARemedy) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become someone else";
  const Pages pages(1);
  const pid_t parent = getpid();
  EXPECT_EQ(InChild([&] {
              if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
              uint8_t byte;
              const Status status = ReadRemote(parent, &byte, pages.address(), 1);
              if (status.code() != Code::kSystemError) return 2;
              const std::string text(status.message());
              return text.find("EPERM") != text.npos && text.find("SYS_PTRACE") != text.npos ? 0
                                                                                             : 3;
            }),
            0);
}

TEST(RemoteCopy, ServesItsOwnProcess) {
  std::vector<uint8_t> from(3 * kPage);
  for (size_t i = 0; i < from.size(); ++i) from[i] = Pattern(i);
  std::vector<uint8_t> to(from.size());
  ASSERT_TRUE(
      ReadRemote(getpid(), to.data(), reinterpret_cast<uintptr_t>(from.data()), from.size()).ok());
  EXPECT_EQ(to, from);
  EXPECT_FALSE(ReadRemote(getpid(), to.data(), 0x10, 1).ok());
}

// Both where ranks are threads of one process and where they are processes.
TEST(RemoteProbe, SucceedsOnTheRightMemoryOnly) {
  const Pages pages(1);
  const RemoteToken token = RandomRemoteToken();
  const Peer peer([&] { std::memcpy(pages.data(), token.data(), token.size()); });
  EXPECT_TRUE(ProbeRemoteRead(peer.pid(), pages.address(), token).ok());
  EXPECT_TRUE(ProbeRemoteRead(getpid(), reinterpret_cast<uintptr_t>(&token), token).ok());

  const Status other = ProbeRemoteRead(peer.pid(), pages.address(), RandomRemoteToken());
  EXPECT_THAT(std::string(other.message()), HasSubstr("token"));
  // The parent's page is empty.
  EXPECT_FALSE(ProbeRemoteRead(getpid(), pages.address(), token).ok());
  const Status unmapped = ProbeRemoteRead(getpid(), 0x10, token);
  EXPECT_THAT(std::string(unmapped.message()), HasSubstr("EFAULT"));
}

// A rank tells its process number, which means another process, or none, in the reader's namespace.
TEST(RemoteProbe, ProcessNamespacesAreNoticed) {
  const Pages pages(1);
  const RemoteToken token = RandomRemoteToken();
  std::memcpy(pages.data(), token.data(), token.size());
  const pid_t told = getpid();
  const int result = InChild([&] {
    if (unshare(CLONE_NEWPID) != 0) return 77;
    const pid_t reader = fork();
    if (reader == 0) {
      // The address is right and the namesake has the right token, but the process is another one.
      std::memset(pages.data(), 0, token.size());
      if (ProbeRemoteRead(told, pages.address(), token).ok()) _exit(1);
      // This process is number 1 here. A process with the number 1 in another namespace is a
      // different process.
      const Status why = ProbeRemoteRead(1, pages.address(), token);
      if (why.ok()) _exit(2);
      _exit(why.message().find("namespaces") != std::string_view::npos ? 0 : 3);
    }
    int status = 0;
    waitpid(reader, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
  });
  if (result == 77) GTEST_SKIP() << "no permission to make a process namespace";
  EXPECT_EQ(result, 0);
}

// Notes the calls that would change the kernel's permission, with a file in place of Yama's.
struct Permission {
  explicit Permission(const char* scope) {
    if (scope != nullptr) std::ofstream(file) << scope;
  }
  ~Permission() { std::remove(file.c_str()); }
  const std::string file = ::testing::TempDir() + "ptrace_scope." + std::to_string(getpid());
  std::vector<unsigned long> calls;
  RemoteCopyPermits permits{file, [this](unsigned long ptracer) { calls.push_back(ptracer); }};
};

TEST(RemoteCopyPermitsTest, PermitFromTheFirstToTheEndOfTheLast) {
  Permission permission("1\n");
  EXPECT_TRUE(permission.calls.empty());
  auto first = permission.permits.Take();
  EXPECT_THAT(permission.calls, ElementsAre(PR_SET_PTRACER_ANY));
  auto second = permission.permits.Take();
  first.reset();
  EXPECT_EQ(permission.calls.size(), 1u);
  second.reset();
  EXPECT_THAT(permission.calls, ElementsAre(PR_SET_PTRACER_ANY, 0));
  permission.permits.Take().reset();
  EXPECT_THAT(permission.calls, ElementsAre(PR_SET_PTRACER_ANY, 0, PR_SET_PTRACER_ANY, 0));
}

TEST(RemoteCopyPermitsTest, AskForNothingInOtherModesAndWithoutYama) {
  for (const char* scope : {"0\n", "2\n", "3\n", "", static_cast<const char*>(nullptr)}) {
    Permission permission(scope);
    permission.permits.Take().reset();
    EXPECT_TRUE(permission.calls.empty()) << (scope ? scope : "no file");
  }
}

}  // namespace
}  // namespace tutti
