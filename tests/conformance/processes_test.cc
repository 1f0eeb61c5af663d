// Ranks that are processes: on one host through shared memory, or on "several hosts" of this
// machine through sockets.

#include "conformance/processes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "conformance/rank_order.h"
#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

constexpr const char* kForHosts = "this is about the memory and the algorithms of hosts";

// A communicator in which the ranks' numbers add up as they must.
void ExpectSum(ncclComm_t comm, int mine, int expected) {
  Array<int> sum = {mine};
  EXPECT_NCCL(ncclAllReduce(sum.data(), sum.data(), 1, ncclInt32, ncclSum, comm, nullptr));
  EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(sum[0], expected);
}

struct Layout {
  const char* name;
  Hosts hosts;
};

class ProcessesTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { TUTTI_NEEDS_RANKS(num_ranks()); }
  int num_ranks() const { return static_cast<int>(GetParam().hosts.size()); }
};

TEST_P(ProcessesTest, ReduceEveryTypeWithEveryOperator) {
  RunOnHosts(GetParam().hosts, EveryTypeAndOperator(num_ranks(), 70));
}

TEST_P(ProcessesTest, MoveEveryTypeCountAndRoot) {
  std::vector<Case> cases = EveryTypeMoved(num_ranks(), 129);
  for (const Case& c : EveryCount(num_ranks(), {0, 1, 2, 3, 7, 33, 1000, 4097})) cases.push_back(c);
  for (const Case& c : EveryRoot(num_ranks(), 300)) cases.push_back(c);
  for (const Case& c : EverySkew(num_ranks(), 515)) cases.push_back(c);
  RunOnHosts(GetParam().hosts, cases);
}

TEST_P(ProcessesTest, TakeLongBuffers) { RunOnHosts(GetParam().hosts, Long(num_ranks(), 200003)); }

INSTANTIATE_TEST_SUITE_P(Layouts, ProcessesTest,
                         ::testing::Values(Layout{"TwoOnOneHost", {"", ""}},
                                           Layout{"FourOnOneHost", {"", "", "", ""}},
                                           Layout{"TwoHostsOfOne", {"a", "b"}},
                                           Layout{"TwoHostsOfTwo", {"a", "a", "b", "b"}},
                                           Layout{"TwoHostsInTurns", {"a", "b", "a", "b"}},
                                           Layout{"ThreeUnequalHosts", {"a", "b", "b", "c", "b"}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

INSTANTIATE_TEST_SUITE_P(
    ManyHosts, ProcessesTest,
    ::testing::Values(Layout{"FourHostsOfOne", {"a", "b", "c", "d"}},
                      Layout{"TwoHostsOfFour", {"a", "a", "a", "a", "b", "b", "b", "b"}},
                      Layout{"HostsOfThreeAndFive", {"a", "a", "b", "b", "b", "a", "b", "b"}},
                      Layout{"ThreeHostsOfThree", {"a", "b", "c", "a", "b", "c", "a", "b", "c"}}),
    [](const auto& instance) { return std::string(instance.param.name); });

// The algorithms that a job over several hosts can be forced to.
class ForcedOverHostsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ForcedOverHostsTest, ComputesTheSame) {
  TUTTI_FOR_HOSTS(kForHosts);
  const Environment environment(Environment::Settings{{"NCCL_ALGO", GetParam()}});
  // With a host of one rank, and with hosts of which several ranks can send to others.
  for (const Hosts& hosts : {Hosts{"a", "b", "b", "a", "c"}, Hosts{"a", "b", "b", "a", "b"}}) {
    std::vector<Case> cases = EveryTypeAndOperatorOfAllReduce(1001);
    for (const Case& c : EveryCount(5, {0, 1, 3, 1000, 40001})) cases.push_back(c);
    for (const Case& c : EverySkew(5, 515)) cases.push_back(c);
    RunOnHosts(hosts, cases);
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ForcedOverHostsTest,
                         ::testing::Values("ring", "tree", "recursivedoubling", "twolevel"),
                         [](const auto& instance) { return std::string(instance.param); });

// The trees of GPUs, over hosts of any number of ranks.
class GpuTreesTest : public ::testing::TestWithParam<Layout> {};

TEST_P(GpuTreesTest, AddWhatHostsHave) {
  TUTTI_FOR_GPUS();
  const Hosts& hosts = GetParam().hosts;
  const auto num_ranks = static_cast<int>(hosts.size());
  TUTTI_NEEDS_RANKS(num_ranks);
  // Of five channels two trees have two each.
  const Environment environment(
      Environment::Settings{{"NCCL_ALGO", "tree"}, {"TUTTI_GPU_CHANNELS", "5"}});
  RunRankProcesses(num_ranks, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, num_ranks, board);
    std::array<char, 4096> text{};
    EXPECT_NCCL(tuttiPlanDescribe(comm, "AllReduce", 1 << 20, ncclFloat32, ncclSum, text.data(),
                                  text.size(), nullptr));
    EXPECT_THAT(text.data(), ::testing::HasSubstr("tree AllReduce over 2 trees"));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  RunOnHosts(hosts, EveryTypeAndOperatorOfAllReduce(20'011));
}

INSTANTIATE_TEST_SUITE_P(Hosts, GpuTreesTest,
                         ::testing::Values(Layout{"TwoOfTwoInTurns", {"a", "b", "a", "b"}},
                                           Layout{"FourOfOne", {"a", "b", "c", "d"}},
                                           Layout{"OfThreeAndFive",
                                                  {"a", "a", "b", "b", "b", "a", "b", "b"}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Buffers that ranks read where they lie: mapped, copied by the kernel, or of both kinds.
class PullTest : public ::testing::TestWithParam<std::tuple<const char*, Memory>> {};

TEST_P(PullTest, ReadsBuffersWhereTheyLie) {
  TUTTI_FOR_HOSTS(kForHosts);
  const auto [algorithm, memory] = GetParam();
  const Environment environment(Environment::Settings{{"NCCL_ALGO", algorithm}});
  const Hosts hosts = {"", "", ""};
  std::vector<Case> cases = In(memory, EveryCount(3, {0, 1, 33, 5001, 40001}));
  for (const auto& more :
       {EveryRoot(3, 20011), EverySkew(3, 9001), EveryTypeAndOperatorOfAllReduce(33),
        EveryTypeMoved(3, 30011), Long(3, 100003)})
    for (const Case& c : In(memory, more)) cases.push_back(c);
  RunOnHosts(hosts, cases);
}

std::string NameOfPull(const ::testing::TestParamInfo<PullTest::ParamType>& instance) {
  const std::string algorithm = std::get<0>(instance.param);
  constexpr std::array kNames = {"Own", "Allocated", "Mixed"};
  return (algorithm.empty() ? "any_" : "forced_") +
         std::string(kNames[static_cast<size_t>(std::get<1>(instance.param))]);
}

INSTANTIATE_TEST_SUITE_P(Memories, PullTest,
                         ::testing::Combine(::testing::Values("", "pull"),
                                            ::testing::Values(Memory::kOwn, Memory::kAllocated,
                                                              Memory::kMixed)),
                         NameOfPull);

// Hosts have several ranks each. The order is that of the ranks, wherever they are.
TEST(DeterministicHostsTest, KeepTheOrderOfTheRanks) {
  const Environment environment(Environment::Settings{{"TUTTI_DETERMINISTIC", "1"}});
  for (const Hosts& hosts : {Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b", "a"}}) {
    const auto n = static_cast<int>(hosts.size());
    TUTTI_NEEDS_RANKS(n);
    RunRankProcesses(n, [&](int rank, Board& board) {
      PlayHost(hosts, rank);
      ncclComm_t comm = Join(rank, n, board);
      CheckOrderOfTypes(comm, rank, n);
      CheckOrderOfCounts(comm, rank, n, {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1000, 9999, 300'000});
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

int MappedMemoryFiles() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != line.npos;
  return count;
}

// One buffer for everything: what a rank knows of its peers' memory must still be true in the next
// operation, where other ranks read other buffers.
TEST(ReuseTest, OfOneAllocationByCollectivesThatReadDifferentRanks) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 3;
  RunRankProcesses(kRanks, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    constexpr size_t kCount = 50'000;
    void* memory = nullptr;
    // Allocations of different sizes: one rank's offsets are no other's.
    ASSERT_NCCL(ncclMemAlloc(&memory, (kRanks * kCount + static_cast<size_t>(rank) * 9000) * 4));
    auto* data = static_cast<int*>(memory);
    const int files_before = MappedMemoryFiles();
    for (int round = 0; round < 3; ++round) {
      for (int root = 0; root < kRanks; ++root) {
        std::fill_n(data, kCount, 10 * rank + round);
        EXPECT_NCCL(ncclBroadcast(data, data, kCount, ncclInt32, root, comm, nullptr));
        EXPECT_EQ(std::count(data, data + kCount, 10 * root + round), std::ptrdiff_t{kCount});
        std::fill_n(data, kCount, rank + round);
        EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comm, nullptr));
        EXPECT_EQ(std::count(data, data + kCount, 3 + 3 * round), std::ptrdiff_t{kCount});
        for (int r = 0; r < kRanks; ++r) std::fill_n(data + r * kCount, kCount, 100 * rank + r);
        std::vector<int> mine(kCount);
        EXPECT_NCCL(ncclScatter(data, mine.data(), kCount, ncclInt32, root, comm, nullptr));
        EXPECT_EQ(std::count(mine.begin(), mine.end(), 100 * root + rank), std::ptrdiff_t{kCount});
      }
    }
    // The buffers were read where they lie: those of both peers are mapped here.
    EXPECT_EQ(MappedMemoryFiles() - files_before, kRanks - 1);
    EXPECT_NCCL(ncclMemFree(memory));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// More messages in one group than a connection can have under way.
TEST(MessagesTest, AThousandToOnePeerInOneGroup) {
  TUTTI_NEEDS_RANKS(2);
  constexpr size_t kMessages = 1000;
  for (const char* other_host : {"a", "b"}) {
    RunRankProcesses(2, [&](int rank, Board& board) {
      PlayHost({"a", other_host}, rank);
      ncclComm_t comm = Join(rank, 2, board);
      Array<int> sent(kMessages), received(kMessages, -1);
      for (size_t i = 0; i < kMessages; ++i) sent[i] = static_cast<int>(2 * i) + rank;
      ASSERT_NCCL(ncclGroupStart());
      for (size_t i = 0; i < kMessages; ++i) {
        EXPECT_NCCL(ncclSend(&sent[i], 1, ncclInt32, 1 - rank, comm, nullptr));
        EXPECT_NCCL(ncclRecv(&received[i], 1, ncclInt32, 1 - rank, comm, nullptr));
      }
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_NCCL(Finish(comm));
      for (size_t i = 0; i < kMessages; ++i)
        EXPECT_EQ(received[i], static_cast<int>(2 * i) + 1 - rank) << i;
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

// Two GPUs of two hosts that exchange messages. What is lent is pinned memory of the host, which
// Arrays are, or the GPU's. NICs read it where it lies; over sockets it is copied all the same.
class LentExchange {
 public:
  static constexpr size_t kCount = 500'001;
  LentExchange(int rank, Board& board, bool of_gpu = false)
      : rank_(rank), comm_(Join(rank, 2, board)) {
    if (of_gpu) {
      EXPECT_NCCL(ncclMemAlloc(&on_gpu_, kBytes));
    }
    sent_ = of_gpu ? static_cast<int*>(on_gpu_) : of_host_.data();
  }
  ~LentExchange() { EXPECT_NCCL(ncclMemFree(on_gpu_)); }

  ncclComm_t comm() const { return comm_; }
  void Register() { EXPECT_NCCL(ncclCommRegister(comm_, sent_, kBytes, &handle_)); }
  void Deregister() { EXPECT_NCCL(ncclCommDeregister(comm_, handle_)); }
  void Fill(int round) {
    for (size_t i = 0; i < kCount; ++i) {
      of_host_[i] = Value(rank_, round, i);
      copied_[i] = -Value(rank_, round, i);
    }
    if (on_gpu_) CopyToDevice(sent_, of_host_.data(), kBytes);
    received_.assign(received_.size(), 0);
  }
  // Long messages that are lent and copied, in turns, and a short one.
  void Issue(cudaStream_t stream) {
    const auto exchange = [&](const int* from, int* to, size_t count) {
      EXPECT_NCCL(ncclSend(from, count, ncclInt32, 1 - rank_, comm_, stream));
      EXPECT_NCCL(ncclRecv(to, count, ncclInt32, 1 - rank_, comm_, stream));
    };
    EXPECT_NCCL(ncclGroupStart());
    exchange(sent_ + 1, received_.data(), kCount - 1);
    exchange(copied_.data(), received_.data() + kCount, kCount);
    exchange(sent_, received_.data() + 2 * kCount, 3);
    exchange(sent_, received_.data() + 2 * kCount + 3, kCount);
    EXPECT_NCCL(ncclGroupEnd());
  }
  void Check(int round) const {
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const int value = Value(1 - rank_, round, i);
      wrong += (i > 0 && received_[i - 1] != value) + (received_[kCount + i] != -value) +
               (i < 3 && received_[2 * kCount + i] != value) +
               (received_[2 * kCount + 3 + i] != value);
    }
    EXPECT_EQ(wrong, 0u) << "round " << round;
  }

 private:
  static int Value(int rank, int round, size_t i) {
    return static_cast<int>(i) * 3 + rank + 1000 * round + 1;
  }

  const int rank_;
  const ncclComm_t comm_;
  static constexpr size_t kBytes = kCount * sizeof(int);
  void* handle_ = nullptr;
  void* on_gpu_ = nullptr;  // Memory that NICs can be told of.
  int* sent_ = nullptr;
  Array<int> of_host_ = Array<int>(kCount), copied_ = Array<int>(kCount);
  Array<int> received_ = Array<int>(3 * kCount + 3);
};

class RegisteredBuffersTest : public ::testing::TestWithParam<bool> {};

TEST_P(RegisteredBuffersTest, AreSentFromWhereTheyLie) {
  TUTTI_FOR_GPUS();
  if (GetParam() && WhereTestsRun() != Place::kDevice)
    GTEST_SKIP() << "skipped: for memory of GPUs (TUTTI_TEST_MEMORY=device)";
  TUTTI_NEEDS_RANKS(2);
  RunRankProcesses(2, [&](int rank, Board& board) {
    PlayHost({"a", "b"}, rank);
    LentExchange exchange(rank, board, /*of_gpu=*/GetParam());
    for (int round = 0; round < 8; ++round) {
      // One rank may lend what it sends while the other copies it.
      if (round == 1 + rank) exchange.Register();
      if (round == 6 - rank) exchange.Deregister();
      exchange.Fill(round);
      exchange.Issue(nullptr);
      EXPECT_NCCL(Finish(exchange.comm()));
      exchange.Check(round);
    }
    EXPECT_NCCL(ncclCommDestroy(exchange.comm()));
  });
}

INSTANTIATE_TEST_SUITE_P(Of, RegisteredBuffersTest, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "Gpu" : "Host");
});

// Long collectives between buffers that are lent, in place and not. Every byte of them is checked.
class LentCollectives {
 public:
  LentCollectives(int rank, int num_ranks, ncclComm_t comm, bool of_gpu)
      : rank_(rank), n_(static_cast<size_t>(num_ranks)), comm_(comm) {
    for (Buffer* const buffer : {&sent_, &received_}) {
      buffer->of_host.resize(n_ * kCount);
      buffer->data = buffer->of_host.data();
      if (!of_gpu) continue;
      EXPECT_NCCL(ncclMemAlloc(&buffer->on_gpu, Bytes()));
      buffer->data = static_cast<int*>(buffer->on_gpu);
    }
    int three = 3;
    EXPECT_NCCL(
        ncclRedOpCreatePreMulSum(&tripled_, &three, ncclInt32, ncclScalarHostImmediate, comm));
  }
  ~LentCollectives() {
    EXPECT_NCCL(ncclRedOpDestroy(tripled_, comm_));
    for (const Buffer* const buffer : {&sent_, &received_})
      EXPECT_NCCL(ncclMemFree(buffer->on_gpu));
  }

  void Register() {
    for (Buffer* const buffer : {&sent_, &received_})
      EXPECT_NCCL(ncclCommRegister(comm_, buffer->data, Bytes(), &buffer->handle));
  }
  void Deregister() {
    for (const Buffer* const buffer : {&sent_, &received_})
      EXPECT_NCCL(ncclCommDeregister(comm_, buffer->handle));
  }
  void Run(int round, bool in_place) {
    round_ = 2 * round + in_place;
    const Buffer& from = in_place ? received_ : sent_;
    const int root = round % static_cast<int>(n_);
    const size_t own = static_cast<size_t>(rank_) * kCount;
    int* const to = received_.data;
    // All n parts, one part of each rank to all, one part of all to each.
    Fill();
    EXPECT_NCCL(ncclAllReduce(from.data, to, n_ * kCount, ncclInt32, ncclSum, comm_, nullptr));
    Check("AllReduce", 0, n_ * kCount, [&](size_t i) { return SumOf(i); });
    Fill();
    EXPECT_NCCL(ncclAllReduce(from.data, to, n_ * kCount, ncclInt32, tripled_, comm_, nullptr));
    Check("AllReduce of products", 0, n_ * kCount, [&](size_t i) { return 3 * SumOf(i); });
    Fill();
    const int* const part = in_place ? to + own : from.data;
    EXPECT_NCCL(ncclAllGather(part, to, kCount, ncclInt32, comm_, nullptr));
    Check("AllGather", 0, n_ * kCount, [&](size_t i) {
      return ValueOf(static_cast<int>(i / kCount), in_place ? i : i % kCount);
    });
    Fill();
    int* const sum = in_place ? to + own : to;
    EXPECT_NCCL(ncclReduceScatter(from.data, sum, kCount, ncclInt32, ncclSum, comm_, nullptr));
    Check("ReduceScatter", static_cast<size_t>(sum - to), kCount,
          [&](size_t i) { return SumOf(own + i); });
    Fill();
    EXPECT_NCCL(ncclBroadcast(from.data, to, n_ * kCount, ncclInt32, root, comm_, nullptr));
    Check("Broadcast", 0, n_ * kCount, [&](size_t i) { return ValueOf(root, i); });
    Fill();
    EXPECT_NCCL(ncclReduce(from.data, to, n_ * kCount, ncclInt32, ncclSum, root, comm_, nullptr));
    Check("Reduce", 0, rank_ == root ? n_ * kCount : 0, [&](size_t i) { return SumOf(i); });
  }

 private:
  static constexpr size_t kCount = 100'003;
  struct Buffer {
    Array<int> of_host;
    int* data = nullptr;
    void* on_gpu = nullptr;
    void* handle = nullptr;
  };
  size_t Bytes() const { return n_ * kCount * sizeof(int); }
  int ValueOf(int rank, size_t i) const {
    return static_cast<int>(i) * 3 + 7 * rank + 1000 * round_ + 1;
  }
  int SumOf(size_t i) const {
    int sum = 0;
    for (size_t rank = 0; rank < n_; ++rank) sum += ValueOf(static_cast<int>(rank), i);
    return sum;
  }
  void Fill() {
    for (Buffer* const buffer : {&sent_, &received_}) {
      for (size_t i = 0; i < n_ * kCount; ++i) buffer->of_host[i] = ValueOf(rank_, i);
      if (buffer->on_gpu) CopyToDevice(buffer->data, buffer->of_host.data(), Bytes());
    }
  }
  template <class Expected>
  void Check(const char* what, size_t begin, size_t count, const Expected& expected) {
    EXPECT_NCCL(Finish(comm_));
    if (received_.on_gpu) CopyToHost(received_.of_host.data(), received_.data, Bytes());
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) wrong += received_.of_host[begin + i] != expected(i);
    EXPECT_EQ(wrong, 0u) << what << " " << round_;
  }

  const int rank_;
  const size_t n_;
  const ncclComm_t comm_;
  ncclRedOp_t tripled_ = ncclSum;
  int round_ = 0;
  Buffer sent_, received_;
};

class LentCollectivesTest : public ::testing::TestWithParam<std::tuple<Layout, bool>> {};

TEST_P(LentCollectivesTest, AreSentFromWhereTheyLie) {
  TUTTI_FOR_GPUS();
  const auto& [layout, of_gpu] = GetParam();
  if (of_gpu && WhereTestsRun() != Place::kDevice)
    GTEST_SKIP() << "skipped: for memory of GPUs (TUTTI_TEST_MEMORY=device)";
  const Hosts& hosts = layout.hosts;
  const auto n = static_cast<int>(hosts.size());
  TUTTI_NEEDS_RANKS(n);
  RunRankProcesses(n, [&, gpu = of_gpu](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    {
      LentCollectives collectives(rank, n, comm, gpu);
      for (int round = 0; round < 6; ++round) {
        // Some ranks lend while others copy.
        if (round == 1 + rank % 2) collectives.Register();
        if (round == 5 - rank % 2) collectives.Deregister();
        for (const bool in_place : {false, true}) collectives.Run(round, in_place);
      }
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Of, LentCollectivesTest,
    ::testing::Combine(::testing::Values(Layout{"TwoHostsOfOne", {"a", "b"}},
                                         Layout{"TwoHostsOfTwo", {"a", "a", "b", "b"}},
                                         Layout{"ThreeHosts", {"a", "b", "c", "a"}}),
                       ::testing::Bool()),
    [](const auto& instance) {
      return std::string(std::get<0>(instance.param).name) +
             (std::get<1>(instance.param) ? "Gpu" : "Host");
    });

// It also shows that the NIC reads what is registered, and no copy of it.
TEST(RegistrationTest, AGraphThatOutlivesTheRegistrationEndsWithASentence) {
  TUTTI_FOR_GPUS();
  const char* const net = getenv("NCCL_NET");
  if (net == nullptr || std::string(net) != "IB") GTEST_SKIP() << "skipped: needs NCCL_NET=IB";
  TUTTI_NEEDS_RANKS(2);
  RunRankProcesses(2, [&](int rank, Board& board) {
    PlayHost({"a", "b"}, rank);
    LentExchange exchange(rank, board);
    exchange.Register();
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    {
      CapturedGraph graph(stream, [&] { exchange.Issue(stream); });
      for (int round = 0; round < 3; ++round) {
        exchange.Fill(round);
        graph.Replay();
        exchange.Check(round);
      }
      board.Meet(kFirstFreeMark, 2);
      if (rank == 0) exchange.Deregister();
      graph.Replay();
    }
    ncclResult_t error = ncclSuccess;
    for (const Deadline deadline = Deadline::AfterSeconds(20);
         error == ncclSuccess && !deadline.Passed(); usleep(1000))
      EXPECT_NCCL(ncclCommGetAsyncError(exchange.comm(), &error));
    EXPECT_EQ(error, ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(exchange.comm()),
                ::testing::HasSubstr("whose registration has ended"));
    EXPECT_NCCL(StreamDestroy(stream));
    EXPECT_NCCL(ncclCommAbort(exchange.comm()));
  });
}

// Returns how often the library's threads of each name have been given a processor.
std::map<std::string, int64_t> TurnsOfThreads() {
  std::map<std::string, int64_t> turns;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    int64_t ran_ns = 0, waited_ns = 0, times = 0;
    std::ifstream(thread.path() / "schedstat") >> ran_ns >> waited_ns >> times;
    if (name.starts_with("tutti-")) turns[name] += times;
  }
  return turns;
}

// Between the launch of a message and its end kernels and proxies do everything. Other threads of
// the library may wake up now and then, but not for a message.
TEST(ProxyThreadsTest, OnlyTheyRunWhileGpusOfSeveralHostsExchangeMessages) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(2);
  constexpr size_t kRounds = 400, kCount = 1000;
  RunRankProcesses(2, [&](int rank, Board& board) {
    PlayHost({"a", "b"}, rank);
    ncclComm_t comm = Join(rank, 2, board);
    Array<int> sent(kCount, rank), received(kCount, -1);
    const auto exchange = [&] {
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclSend(sent.data(), kCount, ncclInt32, 1 - rank, comm, nullptr));
      EXPECT_NCCL(ncclRecv(received.data(), kCount, ncclInt32, 1 - rank, comm, nullptr));
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_NCCL(Finish(comm));
    };
    exchange();  // The first one makes the connections.
    std::map<std::string, int64_t> before = TurnsOfThreads();
    for (size_t round = 0; round < kRounds; ++round) exchange();
    std::map<std::string, int64_t> after = TurnsOfThreads();
    EXPECT_GT(after["tutti-kproxy"], before["tutti-kproxy"]);
    after.erase("tutti-kproxy");
    for (const auto& [name, turns] : after)
      EXPECT_LT(turns - before[name], static_cast<int64_t>(kRounds / 2)) << name;
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// GPUs that a network joins cannot give their memory back yet.
TEST(MemoryPhaseTest, OfProcesses) {
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "b", "a", "b"}}) {
    const auto n = static_cast<int>(hosts.size());
    TUTTI_NEEDS_RANKS(n);
    if (OnGpus() && n > 3) continue;
    RunRankProcesses(n, [&](int rank, Board& board) {
      PlayHost(hosts, rank);
      ncclComm_t comm = Join(rank, n, board);
      ASSERT_NE(comm, nullptr);
      const std::vector<Case> cases = EveryCount(n, {1, 777, 20000});
      for (int phase = 0; phase < 3; ++phase) {
        RunCases(comm, cases);
        ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
        ASSERT_NCCL(ncclCommResume(comm));
      }
      RunCases(comm, cases);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

// The others are in the call already, or come to it later.
TEST(MemoryPhaseTest, ADeathEndsItForAll) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const bool suspended : {false, true}) {
    RankProcesses processes(kRanks, [&](int rank, Board& board) {
      ncclComm_t comm = Join(rank, kRanks, board);
      RunCase(comm, Case{.count = 1000});
      if (suspended) {
        ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
      }
      board.Meet(kFirstFreeMark, kRanks);
      if (rank == 1) kill(getpid(), SIGKILL);
      const ncclResult_t result =
          suspended ? ncclCommResume(comm) : ncclCommSuspend(comm, NCCL_SUSPEND_MEM);
      EXPECT_EQ(result, ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("rank 1 "));
      EXPECT_NCCL(ncclCommAbort(comm));
    });
    processes.ExpectDeath(1);
    processes.Wait(60);
  }
}

TEST(PlanTest, OfFourMegabytesBetweenTwoHostsIsTwoSendsAndTwoReceives) {
  TUTTI_NEEDS_RANKS(2);
  const Environment environment(Environment::Settings{{"NCCL_ALGO", "ring"}});
  const std::string bytes = OnGpus() ? "2097152 bytes, by the proxy" : "2 MB";
  RunRankProcesses(2, [&](int rank, Board& board) {
    PlayHost({"a", "b"}, rank);
    ncclComm_t comm = Join(rank, 2, board);
    std::array<char, 4096> text{};
    EXPECT_NCCL(tuttiPlanDescribe(comm, "AllReduce", 1 << 20, ncclFloat32, ncclSum, text.data(),
                                  text.size(), nullptr));
    EXPECT_THAT(text.data(),
                ::testing::HasSubstr(fmt::format("to rank {}: 2 sends of {}", 1 - rank, bytes)));
    EXPECT_THAT(text.data(), ::testing::HasSubstr(
                                 fmt::format("from rank {}: 2 receives of {}", 1 - rank, bytes)));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Where a setting says how far away hosts are, nothing is measured: what a message between them
// takes is in what is predicted. One rank that says so is enough.
TEST(PlanTest, CountsOnTheLatencyThatASettingGives) {
  TUTTI_FOR_HOSTS(kForHosts);
  for (const bool far : {false, true}) {
    RunRankProcesses(2, [far](int rank, Board& board) {
      const Environment environment(
          Environment::Settings{{"TUTTI_NET_LATENCY_US", far && rank == 1 ? "60000" : "0"}});
      PlayHost({"a", "b"}, rank);
      ncclComm_t comm = Join(rank, 2, board);
      std::array<char, 4096> text{};
      EXPECT_NCCL(tuttiPlanDescribe(comm, "AllGather", 1, ncclFloat32, ncclSum, text.data(),
                                    text.size(), nullptr));
      const char* const predicted = std::strstr(text.data(), "predicted ");
      ASSERT_NE(predicted, nullptr) << text.data();
      const double predicted_us = std::atof(predicted + std::strlen("predicted "));
      if (far)
        EXPECT_GT(predicted_us, 65536) << text.data();
      else
        EXPECT_LT(predicted_us, 65536) << text.data();
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST(DescribeTest, TellsHostsApart) {
  TUTTI_NEEDS_RANKS(3);
  RunRankProcesses(3, [](int rank, Board& board) {
    PlayHost({"a", "b", "b"}, rank);
    ncclComm_t comm = Join(rank, 3, board);
    std::array<char, 4096> text{};
    EXPECT_NCCL(tuttiCommDescribe(comm, text.data(), text.size(), nullptr));
    const auto json = nlohmann::json::parse(text.data(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << text.data();
    EXPECT_EQ(json.value("rank", -1), rank);
    ASSERT_TRUE(json.contains("hosts")) << text.data();
    EXPECT_EQ(json["hosts"].is_number() ? json["hosts"].get<size_t>() : json["hosts"].size(), 2u)
        << text.data();
    ASSERT_TRUE(json.contains("peers") && json["peers"].size() == 3) << text.data();
    const auto transport = [&](int peer) { return json["peers"][peer].value("transport", ""); };
    EXPECT_EQ(transport(rank), "self") << text.data();
    if (rank > 0) {
      EXPECT_THAT(transport(3 - rank), ::testing::AnyOf("shm", "gpu")) << text.data();
      EXPECT_THAT(transport(0), ::testing::AnyOf("Socket", "IB")) << text.data();
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Growing, splitting and shrinking across processes and hosts.
TEST(FamilyTest, SpansProcessesAndHosts) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  RunRankProcesses(kRanks, [](int rank, Board& board) {
    PlayHost({"a", "a", "b", "b"}, rank);
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    ncclComm_t row = nullptr, column = nullptr;
    EXPECT_NCCL(ncclCommSplit(comm, rank / 2, rank, &row, nullptr));     // within a host
    EXPECT_NCCL(ncclCommSplit(comm, rank % 2, rank, &column, nullptr));  // across hosts
    ExpectSum(row, 1 << rank, rank < 2 ? 3 : 12);
    ExpectSum(column, 1 << rank, rank % 2 == 0 ? 5 : 10);
    ExpectSum(comm, 1 << rank, 15);
    int excluded = 2;
    if (rank != 2) {
      ncclComm_t fewer = nullptr;
      EXPECT_NCCL(ncclCommShrink(comm, &excluded, 1, &fewer, nullptr, NCCL_SHRINK_DEFAULT));
      ExpectSum(fewer, 1 << rank, 11);
      EXPECT_NCCL(ncclCommDestroy(fewer));
    }
    EXPECT_NCCL(ncclCommDestroy(row));
    EXPECT_NCCL(ncclCommDestroy(column));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(FamilyTest, GrowsByProcessesThatComeLater) {
  constexpr int kOld = 2, kNew = 4, kGrowId = kFirstFreeMark;
  TUTTI_NEEDS_RANKS(kNew);
  RunRankProcesses(kNew, [](int rank, Board& board) {
    PlayHost({"a", "b", "a", "b"}, rank);
    ncclComm_t old = rank < kOld ? Join(rank, kOld, board) : nullptr;
    ncclUniqueId id;
    if (rank == 0) {
      EXPECT_NCCL(ncclCommGetUniqueId(old, &id));
      std::memcpy(board.bytes(1).data(), &id, sizeof(id));
      board.Set(kGrowId, 1);
    }
    ASSERT_TRUE(board.Await(kGrowId, 1));
    std::memcpy(&id, board.bytes(1).data(), sizeof(id));
    ncclComm_t grown = nullptr;
    UseDevice(rank);
    const bool passes_id = rank == 0 || rank >= kOld;
    EXPECT_NCCL(ncclCommGrow(old, kNew, passes_id ? &id : nullptr, rank < kOld ? -1 : rank, &grown,
                             nullptr));
    ASSERT_NE(grown, nullptr);
    ExpectSum(grown, 1 << rank, 15);
    EXPECT_NCCL(ncclCommDestroy(grown));
    EXPECT_NCCL(ncclCommDestroy(old));
  });
}

TEST(ScalableTest, RootsInSeveralProcesses) {
  constexpr int kRanks = 6, kIds = 3, kIdsReady = kFirstFreeMark;
  TUTTI_NEEDS_RANKS(kRanks);
  RunRankProcesses(kRanks, [](int rank, Board& board) {
    std::array<ncclUniqueId, kIds> ids;
    if (rank < kIds) {
      ASSERT_NCCL(ncclGetUniqueId(&ids[0]));
      std::memcpy(board.bytes(rank).data(), &ids[0], sizeof(ids[0]));
      board.Add(kIdsReady, 1);
    }
    ASSERT_TRUE(board.Await(kIdsReady, kIds));
    for (int i = 0; i < kIds; ++i)
      std::memcpy(&ids[static_cast<size_t>(i)], board.bytes(i).data(), sizeof(ids[0]));
    ncclComm_t comm = nullptr;
    UseDevice(rank);
    ASSERT_NCCL(ncclCommInitRankScalable(&comm, kRanks, rank, kIds, ids.data(), nullptr));
    ExpectSum(comm, 1 << rank, (1 << kRanks) - 1);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Returns what two ranks that make and split a communicator write into their log.
std::string LogOfTwoRanks(Environment::Settings settings) {
  const std::string path = ::testing::TempDir() + fmt::format("tutti_ranks.{}.log", getpid());
  settings.push_back({"NCCL_DEBUG", "INFO"});
  settings.push_back({"NCCL_DEBUG_FILE", path});
  const Environment environment(settings);
  RunRankProcesses(2, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 2, board);
    ncclComm_t child = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, -rank, &child, nullptr));
    EXPECT_NCCL(ncclCommDestroy(child));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  std::ifstream file(path);
  std::string log{std::istreambuf_iterator<char>(file), {}};
  std::remove(path.c_str());
  return log;
}

// Ranks often share a log file: their lines tell them apart.
TEST(LogTest, LinesCarryTheRankThatTheyAreAbout) {
  TUTTI_NEEDS_RANKS(2);
  const std::string log = LogOfTwoRanks({});
  for (const int rank : {0, 1})
    EXPECT_THAT(log, ::testing::ContainsRegex(fmt::format(
                         " .{}. tutti INFO communicator [^\n]* rank {} of 2", rank, rank)))
        << log;
}

TEST(LogTest, NamesTheNetworkBetweenHosts) {
  TUTTI_FOR_HOSTS("GPUs have other words for it");
  const char* const named = std::getenv("NCCL_NET");
  const std::string network = named == nullptr ? "Socket" : named;
  EXPECT_THAT(LogOfTwoRanks({{"NCCL_SHM_DISABLE", "1"}, {"NCCL_NET", network}}),
              ::testing::HasSubstr("between these by the network " + network));
}

// More elements than 31 bits count: the last ones must arrive, and every one on the way.
void RunBeyondTwoGigabytes(bool sockets) {
  TUTTI_FOR_HOSTS("its buffers are larger than what is pinned for tests");
  constexpr size_t kCount = (size_t{1} << 31) + 5;
  struct sysinfo memory = {};
  sysinfo(&memory);
  if (memory.freeram + memory.bufferram < size_t{12} << 30 || memory.totalram < size_t{16} << 30)
    GTEST_SKIP() << "counts beyond 2^31 need 12 GB of free memory; this machine has "
                 << (memory.freeram >> 30) << " GB";
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
  const auto pattern = [](size_t i) { return static_cast<uint8_t>((i * 2654435761u) >> 24); };
  RunRankProcesses(
      2,
      [&](int rank, Board& board) {
        ncclComm_t comm = Join(rank, 2, board);
        std::vector<uint8_t> data(kCount);
        if (rank == 1)
          for (size_t i = 0; i < kCount; ++i) data[i] = pattern(i);
        EXPECT_NCCL(ncclBroadcast(data.data(), data.data(), kCount, ncclUint8, 1, comm, nullptr));
        size_t wrong = 0;
        for (size_t i = 0; i < kCount; ++i) wrong += data[i] != pattern(i);
        EXPECT_EQ(wrong, 0u) << "after Broadcast";
        if (rank == 1)
          for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<uint8_t>(i % 251);
        EXPECT_NCCL(
            ncclAllReduce(data.data(), data.data(), kCount, ncclUint8, ncclSum, comm, nullptr));
        wrong = 0;
        for (size_t i = 0; i < kCount; ++i)
          wrong += data[i] != static_cast<uint8_t>(pattern(i) + i % 251);
        EXPECT_EQ(wrong, 0u) << "after AllReduce";
        EXPECT_NCCL(ncclCommDestroy(comm));
      },
      600);
}

TEST(SlowCountsTest, Beyond31BitsThroughSharedMemory) { RunBeyondTwoGigabytes(false); }
TEST(SlowCountsTest, Beyond31BitsThroughSockets) { RunBeyondTwoGigabytes(true); }

}  // namespace
}  // namespace tutti::testing
