#include "sys/fd_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "sys/fd_wire.h"
#include "sys/shared_memory.h"
#include "testing/threads.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 4096;

int CountFds() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

pid_t Fork(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int WaitFor(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int InChild(const std::function<int()>& body) { return WaitFor(Fork(body)); }

UniqueFd RawConnect(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = fd_wire::AbstractAddress(name, address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fd.Reset();
  return fd;
}

// Waits for the next message on `fd`, at most ten seconds.
fd_wire::Received RawReceive(int fd, UniqueFd* passed = nullptr) {
  pollfd waiting{fd, POLLIN, 0};
  poll(&waiting, 1, 10'000);
  return fd_wire::Receive(fd, passed);
}

struct FdServerTest : ::testing::Test {
  void SetUp() override {
    auto created_loop = EventLoop::Create("fd-test");
    ASSERT_TRUE(created_loop.ok());
    loop = std::move(created_loop).value();
    auto created = FdServer::Create(*loop);
    ASSERT_TRUE(created.ok()) << created.status().message();
    server = std::move(created).value();
    auto created_memory = SharedMemory::Create(kBytes, HugePages::kNo);
    ASSERT_TRUE(created_memory.ok());
    memory = std::move(created_memory).value();
    key = RandomFdKey();
    id = server->Offer(memory.fd(), key);
  }
  Result<UniqueFd> Fetch(double seconds = 10) const {
    return FetchFd(server->name(), id, key, {Deadline::AfterSeconds(seconds), nullptr});
  }
  // Returns whether the descriptor really belongs to `memory`.
  bool IsMemory(Result<UniqueFd> fd) const {
    if (!fd.ok()) return false;
    auto mapped = SharedMemory::Map(std::move(fd).value(), kBytes);
    if (!mapped.ok()) return false;
    memory.data()[17] = static_cast<std::byte>(std::to_integer<int>(memory.data()[17]) + 1);
    return mapped->data()[17] == memory.data()[17];
  }

  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<FdServer> server;
  SharedMemory memory;
  FdKey key{};
  uint64_t id = 0;
};

TEST_F(FdServerTest, HandsADescriptorToItsOwnProcess) {
  EXPECT_NE(id, 0u);
  EXPECT_LE(server->name().size(), kMaxFdServerName);
  auto fd = Fetch();
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(IsMemory(std::move(fd)));
  EXPECT_TRUE(IsMemory(Fetch()));  // Fetching may be repeated at will.
}

TEST_F(FdServerTest, HandsADescriptorToAnotherProcess) {
  memory.data()[0] = std::byte{41};
  EXPECT_EQ(InChild([this] {
              auto fd = Fetch();
              if (!fd.ok()) return 1;
              auto mapped = SharedMemory::Map(std::move(fd).value(), kBytes);
              if (!mapped.ok() || mapped->data()[0] != std::byte{41}) return 2;
              mapped->data()[1] = std::byte{42};
              return 0;
            }),
            0);
  EXPECT_EQ(memory.data()[1], std::byte{42});
}

TEST_F(FdServerTest, ServesManyProcessesAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(Fork([this] {
      for (int round = 0; round < 20; ++round)
        if (!Fetch().ok()) return 1;
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(WaitFor(child), 0);
}

TEST_F(FdServerTest, KeepsOffersApart) {
  auto second = SharedMemory::Create(2 * kBytes, HugePages::kNo);
  ASSERT_TRUE(second.ok());
  const FdKey second_key = RandomFdKey();
  const uint64_t second_id = server->Offer(second->fd(), second_key);
  ASSERT_NE(second_id, id);
  auto fd = FetchFd(server->name(), second_id, second_key, {Deadline::AfterSeconds(10), nullptr});
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(SharedMemory::Map(std::move(fd).value(), 2 * kBytes).ok());
  // The key of an offer opens no other offer.
  EXPECT_FALSE(FetchFd(server->name(), second_id, key, {Deadline::AfterSeconds(10), nullptr}).ok());
  server->Withdraw(second_id);
  EXPECT_TRUE(IsMemory(Fetch()));
}

TEST_F(FdServerTest, ClientRefusesAServerWithoutTheKey) {
  auto fd = FetchFd(server->name(), id, RandomFdKey(), {Deadline::AfterSeconds(10), nullptr});
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kRemoteError);
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("key"));
}

TEST_F(FdServerTest, ServerRefusesAClientWithoutTheKey) {
  const UniqueFd raw = RawConnect(server->name());
  ASSERT_TRUE(fd_wire::Send(raw.get(), fd_wire::Make(fd_wire::kHello, id), -1));
  ASSERT_EQ(RawReceive(raw.get()).message.type, fd_wire::kChallenge);
  ASSERT_TRUE(fd_wire::Send(raw.get(), fd_wire::Make(fd_wire::kAnswer, id), -1));
  UniqueFd passed;
  EXPECT_EQ(RawReceive(raw.get(), &passed).outcome, fd_wire::Outcome::kClosed);
  EXPECT_FALSE(passed.valid());
}

TEST_F(FdServerTest, ServersProofIsNotTakenAsTheClients) {
  const UniqueFd raw = RawConnect(server->name());
  ASSERT_TRUE(fd_wire::Send(raw.get(), fd_wire::Make(fd_wire::kHello, id), -1));
  fd_wire::Message reflected = RawReceive(raw.get()).message;
  reflected.type = fd_wire::kAnswer;
  ASSERT_TRUE(fd_wire::Send(raw.get(), reflected, -1));
  UniqueFd passed;
  EXPECT_EQ(RawReceive(raw.get(), &passed).outcome, fd_wire::Outcome::kClosed);
  EXPECT_FALSE(passed.valid());
}

TEST(FdProof, DependsOnEverything) {
  const FdKey key = RandomFdKey();
  const fd_wire::Session session{7, fd_wire::RandomNonce(), fd_wire::RandomNonce()};
  const auto proof = fd_wire::Prove(fd_wire::Role::kClient, key, "name", session);
  EXPECT_TRUE(fd_wire::Equal(proof, fd_wire::Prove(fd_wire::Role::kClient, key, "name", session)));
  EXPECT_FALSE(fd_wire::Equal(proof, fd_wire::Prove(fd_wire::Role::kServer, key, "name", session)));
  EXPECT_FALSE(fd_wire::Equal(proof, fd_wire::Prove(fd_wire::Role::kClient, key, "nam", session)));
  FdKey other_key = key;
  other_key[31] ^= 1;
  EXPECT_FALSE(
      fd_wire::Equal(proof, fd_wire::Prove(fd_wire::Role::kClient, other_key, "name", session)));
  for (const int field : {0, 1, 2}) {
    fd_wire::Session other = session;
    if (field == 0) other.id ^= 1;
    if (field == 1) other.client_nonce[0] ^= 1;
    if (field == 2) other.server_nonce[31] ^= 1;
    EXPECT_FALSE(fd_wire::Equal(proof, fd_wire::Prove(fd_wire::Role::kClient, key, "name", other)))
        << field;
  }
}

TEST_F(FdServerTest, WithdrawnOfferIsAnError) {
  server->Withdraw(id);
  auto fd = Fetch();
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kRemoteError);
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("freed"));
  server->Withdraw(id);  // harmless
}

TEST_F(FdServerTest, WithdrawalDuringTheHandshakeIsAnError) {
  const UniqueFd raw = RawConnect(server->name());
  fd_wire::Session session{id, fd_wire::RandomNonce(), {}};
  fd_wire::Message hello = fd_wire::Make(fd_wire::kHello, id);
  hello.nonce = session.client_nonce;
  ASSERT_TRUE(fd_wire::Send(raw.get(), hello, -1));
  session.server_nonce = RawReceive(raw.get()).message.nonce;
  server->Withdraw(id);
  fd_wire::Message answer = fd_wire::Make(fd_wire::kAnswer, id);
  answer.proof = fd_wire::Prove(fd_wire::Role::kClient, key, server->name(), session);
  ASSERT_TRUE(fd_wire::Send(raw.get(), answer, -1));
  UniqueFd passed;
  EXPECT_EQ(RawReceive(raw.get(), &passed).message.type, fd_wire::kWithdrawn);
  EXPECT_FALSE(passed.valid());
}

TEST_F(FdServerTest, NobodyListeningIsSaidAtOnce) {
  const std::string name = server->name();
  server.reset();
  const int64_t start_ns = NowNs();
  auto fd = FetchFd(name, id, key, {Deadline::AfterSeconds(30), nullptr});
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kRemoteError);
  EXPECT_LT(NowNs() - start_ns, 5'000'000'000);
  EXPECT_EQ(FetchFd("", id, key, {Deadline::AfterSeconds(1), nullptr}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      FetchFd(std::string(500, 'x'), id, key, {Deadline::AfterSeconds(1), nullptr}).status().code(),
      Code::kInvalidArgument);
}

// A server's socket that somebody else serves, badly.
struct FakeServer {
  FakeServer()
      : fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), name(fd_wire::RandomName()) {
    sockaddr_un address;
    const socklen_t length = fd_wire::AbstractAddress(name, address);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(fd.get(), 4), 0);
  }
  UniqueFd fd;
  std::string name;
};

TEST(FetchFd, GivesUpAtTheDeadline) {
  const FakeServer silent;
  const int64_t start_ns = NowNs();
  auto fd = FetchFd(silent.name, 1, RandomFdKey(), {Deadline::AfterSeconds(0.2), nullptr});
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kTimeout);
  EXPECT_GE(NowNs() - start_ns, 190'000'000);
}

TEST(FetchFd, EndsByTheAbortFlag) {
  const FakeServer silent;
  std::atomic<bool> abort{false};
  const pid_t waiter = testing::ThisThread();
  std::thread aborter([&abort, waiter] {
    EXPECT_TRUE(testing::AwaitAsleep(waiter));
    abort = true;
  });
  auto fd = FetchFd(silent.name, 1, RandomFdKey(), {Deadline::Never(), &abort});
  aborter.join();
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("aborted"));
}

TEST(FetchFd, RefusesAnImpostor) {
  // Answers like a server, with a descriptor at once or garbage, but without knowing the key.
  for (const uint32_t type : {fd_wire::kChallenge, fd_wire::kGrant, fd_wire::kAnswer}) {
    const FakeServer fake;
    std::thread impostor([&] {
      const UniqueFd client(accept(fake.fd.get(), nullptr, nullptr));
      RawReceive(client.get());
      const UniqueFd bait(memfd_create("bait", MFD_CLOEXEC));
      fd_wire::Send(client.get(), fd_wire::Make(static_cast<fd_wire::Type>(type), 1), bait.get());
      RawReceive(client.get());
    });
    auto fd = FetchFd(fake.name, 1, RandomFdKey(), {Deadline::AfterSeconds(10), nullptr});
    impostor.join();
    ASSERT_FALSE(fd.ok());
    EXPECT_EQ(fd.status().code(), Code::kRemoteError) << type;
  }
}

TEST(FetchFd, GarbageFromAServerIsAnErrorAndLeaksNothing) {
  const int fds_before = CountFds();
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  {
    const FakeServer fake;
    const UniqueFd bait(memfd_create("bait", MFD_CLOEXEC));
    constexpr int kRounds = 200;
    std::thread babbler([&] {
      std::mt19937 random(seed);
      for (int round = 0; round < kRounds; ++round) {
        const UniqueFd client(accept(fake.fd.get(), nullptr, nullptr));
        RawReceive(client.get());
        if (random() % 2) {
          fd_wire::Message message =
              fd_wire::Make(static_cast<fd_wire::Type>(random() % 5), random());
          message.magic ^= random() % 3 == 0 ? 1u : 0u;
          fd_wire::Send(client.get(), message, random() % 2 ? bait.get() : -1);
        } else {
          std::vector<uint8_t> bytes(1 + random() % 300);
          for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
          send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        }
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      auto fd = FetchFd(fake.name, 1, RandomFdKey(), {Deadline::AfterSeconds(20), nullptr});
      ASSERT_FALSE(fd.ok());
      EXPECT_EQ(fd.status().code(), Code::kRemoteError) << fd.status().message();
    }
    babbler.join();
  }
  EXPECT_EQ(CountFds(), fds_before);
}

TEST(FetchFd, TriesAgainWhenItIsHungUpOn) {
  const FakeServer fake;
  std::thread hanger([&] {
    for (int i = 0; i < 3; ++i) UniqueFd(accept(fake.fd.get(), nullptr, nullptr));
    UniqueFd client(accept(fake.fd.get(), nullptr, nullptr));
    RawReceive(client.get());
    fd_wire::Send(client.get(), fd_wire::Make(fd_wire::kWithdrawn, 1), -1);
  });
  auto fd = FetchFd(fake.name, 1, RandomFdKey(), {Deadline::AfterSeconds(10), nullptr});
  hanger.join();
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("freed"));  // the fourth answer arrived
}

TEST_F(FdServerTest, GarbageHasNoEffect) {
  const int fds_before = CountFds();
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 400; ++round) {
    const UniqueFd raw = RawConnect(server->name());
    if (!raw.valid()) continue;  // the queue is full for a moment
    const int messages = static_cast<int>(random() % 4);
    for (int i = 0; i < messages; ++i) {
      fd_wire::Message message =
          fd_wire::Make(static_cast<fd_wire::Type>(random() % 7), random() % 2 ? id : random());
      switch (random() % 4) {
        case 0:  // a plausible message, with an unwanted descriptor
          fd_wire::Send(raw.get(), message, memory.fd());
          break;
        case 1:
          message.magic ^= 1u << (random() % 32);
          fd_wire::Send(raw.get(), message, -1);
          break;
        case 2: {  // any bytes of any length
          std::vector<uint8_t> bytes(random() % 300);
          for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
          send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          break;
        }
        default:  // too long by a byte or more
          char longer[sizeof(message) + 9];
          std::memset(longer, 0, sizeof(longer));
          std::memcpy(longer, &message, sizeof(message));
          send(raw.get(), longer, sizeof(message) + 1 + random() % 8, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    }
  }
  EXPECT_TRUE(IsMemory(Fetch()));
  // All of them are closed again, and none of the descriptors sent along was kept.
  const Deadline deadline = Deadline::AfterSeconds(10);
  while (CountFds() > fds_before && !deadline.Passed()) usleep(10'000);
  EXPECT_LE(CountFds(), fds_before);
}

TEST_F(FdServerTest, FloodOfSilentClientsHoldsAQuarterOfTheDescriptors) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  auto small_loop = EventLoop::Create("fd-small");
  ASSERT_TRUE(small_loop.ok());
  constexpr size_t kShare = 128;
  EXPECT_EQ((*small_loop)->accept_limit().limit(), kShare);
  auto small = FdServer::Create(**small_loop);
  ASSERT_TRUE(small.ok());
  const uint64_t small_id = (*small)->Offer(memory.fd(), key);
  const int fds_before = CountFds();
  std::vector<UniqueFd> silent;
  while (silent.size() < kShare + 50) {
    UniqueFd raw = RawConnect((*small)->name());
    if (raw.valid()) silent.push_back(std::move(raw));
  }
  EXPECT_TRUE(
      IsMemory(FetchFd((*small)->name(), small_id, key, {Deadline::AfterSeconds(30), nullptr})));
  // Each client of this test is a descriptor; the server's ends may be at most its share.
  EXPECT_LE(CountFds(), fds_before + static_cast<int>(silent.size() + kShare));
  // The oldest had to go.
  EXPECT_EQ(RawReceive(silent.front().get()).outcome, fd_wire::Outcome::kClosed);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(FdServerTest, ClosesAClientThatDoesNotFinish) {
  auto hasty = FdServer::Create(*loop, 100'000'000);
  ASSERT_TRUE(hasty.ok());
  const uint64_t hasty_id = (*hasty)->Offer(memory.fd(), key);
  const UniqueFd silent = RawConnect((*hasty)->name());
  UniqueFd half_open;
  // This thread may be the late party.
  bool answered = false;
  for (int attempt = 0; attempt < 20 && !answered; ++attempt) {
    half_open = RawConnect((*hasty)->name());
    answered = fd_wire::Send(half_open.get(), fd_wire::Make(fd_wire::kHello, hasty_id), -1) &&
               RawReceive(half_open.get()).outcome == fd_wire::Outcome::kMessage;
  }
  ASSERT_TRUE(answered);
  EXPECT_EQ(RawReceive(half_open.get()).outcome, fd_wire::Outcome::kClosed);
  EXPECT_EQ(RawReceive(silent.get()).outcome, fd_wire::Outcome::kClosed);
}

TEST_F(FdServerTest, DestructionWithOpenClientsLeaksNothing) {
  const UniqueFd raw = RawConnect(server->name());
  ASSERT_TRUE(fd_wire::Send(raw.get(), fd_wire::Make(fd_wire::kHello, id), -1));
  ASSERT_EQ(RawReceive(raw.get()).message.type, fd_wire::kChallenge);
  const int fds_before = CountFds();
  server.reset();
  EXPECT_EQ(CountFds(), fds_before - 2);  // the listener and the server's end
  EXPECT_EQ(RawReceive(raw.get()).outcome, fd_wire::Outcome::kClosed);
}

TEST_F(FdServerTest, UserNamesDoNotMatter) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become someone else";
  EXPECT_EQ(InChild([this] {
              if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
              auto fd = Fetch();
              if (!fd.ok()) return 2;
              return SharedMemory::Map(std::move(fd).value(), kBytes).ok() ? 0 : 3;
            }),
            0);
}

TEST_F(FdServerTest, AnotherNetworkNamespaceIsAnotherHost) {
  const int result = InChild([this] {
    if (unshare(CLONE_NEWNET) != 0) return 77;
    auto fd = Fetch(5);
    if (fd.ok()) return 1;
    return fd.status().message().find("network namespace") != std::string_view::npos ? 0 : 2;
  });
  if (result == 77) GTEST_SKIP() << "no permission to make a network namespace";
  EXPECT_EQ(result, 0);
}

// Returns true once the loop's thread has not run at all for 10 ms. Looks at the thread's clock and
// not at /proc, because the latter takes a descriptor.
bool RestsBetweenAttempts(EventLoop& loop) {
  clockid_t clock = 0;
  loop.RunSync([&] { pthread_getcpuclockid(pthread_self(), &clock); });
  const auto used_ns = [clock] {
    timespec used = {};
    clock_gettime(clock, &used);
    return used.tv_sec * 1'000'000'000 + used.tv_nsec;
  };
  for (const Deadline bound = Deadline::AfterSeconds(20); !bound.Passed();) {
    const int64_t before_ns = used_ns();
    usleep(10'000);
    if (used_ns() == before_ns) return true;
  }
  return false;
}

// The server's process runs out of descriptors, and recovers when descriptors are free again.
TEST(FdServer, SurvivesRunningOutOfDescriptors) {
  EXPECT_EQ(InChild([] {
              auto loop = EventLoop::Create("fd-test");
              if (!loop.ok()) return 1;
              auto server = FdServer::Create(**loop);
              auto memory = SharedMemory::Create(kBytes, HugePages::kNo);
              if (!server.ok() || !memory.ok()) return 2;
              const FdKey key = RandomFdKey();
              const uint64_t id = (*server)->Offer(memory->fd(), key);
              const UniqueFd waiting(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
              const rlimit limit{64, 64};
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
              std::vector<UniqueFd> hoard;
              for (;;) {
                UniqueFd one(dup(0));
                if (!one.valid()) break;
                hoard.push_back(std::move(one));
              }
              sockaddr_un address;
              const socklen_t length = fd_wire::AbstractAddress((*server)->name(), address);
              if (connect(waiting.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
                return 4;
              // The server must wait for a descriptor without burning its core.
              if (!RestsBetweenAttempts(**loop)) return 5;
              hoard.clear();
              auto fd = FetchFd((*server)->name(), id, key, {Deadline::AfterSeconds(10), nullptr});
              return fd.ok() ? 0 : 6;
            }),
            0);
}

}  // namespace
}  // namespace tutti
