#include "sys/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "sys/event_loop.h"

namespace tutti {
namespace {

struct Pair {
  UniqueFd mine;
  UniqueFd peers;
  Pair() {
    std::array<int, 2> fds;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    mine = UniqueFd(fds[0]);
    peers = UniqueFd(fds[1]);
  }
  // Returns whether the peer sees that nobody has the other end any more.
  bool PeerSeesEnd() const {
    char byte;
    return recv(peers.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
};

// A child that lives until it is told to go; -1 where the child found something wrong.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    std::array<int, 2> fds;
    EXPECT_EQ(pipe(fds.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const char good = body() ? 1 : 0;
      [[maybe_unused]] const auto written = write(fds[1], &good, 1);
      for (;;) pause();
    }
    close(fds[1]);
    char good = 0;
    EXPECT_EQ(read(fds[0], &good, 1), 1);
    EXPECT_EQ(good, 1);
    close(fds[0]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_ = -1;
};

TEST(ForkTest, CountsForksWithoutALoop) {
  const uint32_t here = ForksBehind();
  const Child child([&] { return ForksBehind() == here + 1; });
  EXPECT_EQ(ForksBehind(), here);
}

TEST(ForkTest, AChildLetsGoOfWhatALoopServes) {
  auto loop = EventLoop::Create("test-fork");
  ASSERT_TRUE(loop.ok());
  std::vector<std::unique_ptr<Pair>> served;
  for (int i = 0; i < 200; ++i) {  // more than one read of the list
    served.push_back(std::make_unique<Pair>());
    ASSERT_TRUE((*loop)->AddFd(served.back()->mine.get(), EPOLLIN, [](uint32_t) {}).ok());
  }
  Pair other;
  const Child child([&] {
    // A descriptor that is closed in the child is nobody else's by then.
    for (const auto& pair : served) {
      if (fcntl(pair->mine.get(), F_GETFD) < 0) return false;
    }
    return true;
  });
  for (const auto& pair : served) {
    EXPECT_FALSE(pair->PeerSeesEnd());
    (*loop)->RemoveFd(pair->mine.get());
    pair->mine.Reset();
    EXPECT_TRUE(pair->PeerSeesEnd());
  }
  other.mine.Reset();
  EXPECT_FALSE(other.PeerSeesEnd()) << "children keep what no loop serves";
}

// The child reads the set of the parent's loop when the parent has gone on: a number may stand for
// another file there than here.
TEST(ForkTest, AChildKeepsWhatIsItsOwn) {
  auto loop = EventLoop::Create("test-fork");
  ASSERT_TRUE(loop.ok());
  Pair served, own;
  const UniqueFd keeps_it_in_the_set(dup(served.mine.get()));
  ASSERT_TRUE((*loop)->AddFd(served.mine.get(), EPOLLIN, [](uint32_t) {}).ok());
  ASSERT_EQ(dup2(own.mine.get(), served.mine.get()), served.mine.get());
  const Child child([&] { return send(served.mine.get(), "x", 1, 0) == 1; });
  char byte = 0;
  EXPECT_EQ(recv(own.peers.get(), &byte, 1, MSG_DONTWAIT), 1);
  (*loop)->RemoveFd(served.mine.get());
}

TEST(ForkTest, ChildrenKeepTheirPipesWhileTheParentOpensAndCloses) {
  auto loop = EventLoop::Create("test-fork");
  ASSERT_TRUE(loop.ok());
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      std::vector<std::unique_ptr<Pair>> served;
      for (int i = 0; i < 8; ++i) {
        served.push_back(std::make_unique<Pair>());
        EXPECT_TRUE((*loop)->AddFd(served.back()->mine.get(), EPOLLIN, [](uint32_t) {}).ok());
      }
      for (const auto& pair : served) (*loop)->RemoveFd(pair->mine.get());
    }
  });
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    std::array<int, 2> fds;
    ASSERT_EQ(pipe(fds.data()), 0);
    struct stat before;
    ASSERT_EQ(fstat(fds[0], &before), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      struct stat now;
      _exit(fstat(fds[0], &now) == 0 && now.st_ino == before.st_ino ? 0 : 1);
    }
    close(fds[0]);
    close(fds[1]);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "the child's pipe was taken from it";
  }
  over = true;
  other.join();
}

TEST(ForkTest, TheParentsLoopGoesOn) {
  auto loop = EventLoop::Create("test-fork");
  ASSERT_TRUE(loop.ok());
  Pair pair;
  std::atomic<int> heard{0};
  ASSERT_TRUE((*loop)
                  ->AddFd(pair.mine.get(), EPOLLIN,
                          [&](uint32_t) {
                            char byte;
                            if (recv(pair.mine.get(), &byte, 1, MSG_DONTWAIT) == 1) ++heard;
                          })
                  .ok());
  const Child child([] { return true; });
  ASSERT_EQ(send(pair.peers.get(), "x", 1, 0), 1);
  for (int i = 0; i < 10'000 && heard == 0; ++i) usleep(1000);
  EXPECT_EQ(heard, 1);
  (*loop)->RemoveFd(pair.mine.get());
}

// The thread sanitizer takes threads of a child for the parent's threads.
#if !defined(__SANITIZE_THREAD__)
TEST(ForkTest, AChildMakesLoopsOfItsOwn) {
  auto loop = EventLoop::Create("test-fork");
  ASSERT_TRUE(loop.ok());
  const Child child([] {
    auto own = EventLoop::Create("test-child");
    bool ran = false;
    if (own.ok()) (*own)->RunSync([&] { ran = true; });
    return ran;
  });
}
#endif

}  // namespace
}  // namespace tutti
