// Ranks that kill themselves at seeded moments of every call that ranks make together: all
// survivors hear of it in time, name the same lost ranks and no others, and go on without them.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "conformance/processes.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A survivor that is stranded waits TUTTI_INIT_TIMEOUT_S or TUTTI_TIMEOUT_S, 300 s and more. One
// that is not hears of a death within a second on a machine that has a moment for it.
constexpr int64_t kNotStrandedUs = 30'000'000;

enum class Call { kSteady, kSplit, kGrow, kWindow };
constexpr Call kCalls[] = {Call::kSteady, Call::kSplit, Call::kGrow, Call::kWindow};
constexpr const char* kCallNames[] = {"AllReduce", "Split", "Grow", "WindowRegister"};

// One moment: what the ranks call, who dies in it and when; and perhaps who dies in the shrink that
// follows. Ranks are those of the communicator of the moment.
struct Moment {
  Call call = Call::kSteady;
  int victim = 0;
  int delay_us = 0;
  bool enters =
      true;  // the victim makes the call itself, and does not only keep the others waiting
  int second_victim = -1;
  int second_delay_us = 0;
};

// A job: moments, each with the communicator that was left of the one before, until one rank is
// left or the moments are over.
struct Plan {
  int num_ranks = 2;
  bool by_sockets = false;
  std::vector<Moment> moments;
};

Plan MakePlan(int num_ranks, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int most) {
    return static_cast<int>(random() % static_cast<uint32_t>(most));
  };
  Plan plan;
  plan.num_ranks = num_ranks;
  plan.by_sockets = below(3) == 0;
  for (int left = num_ranks; left > 1;) {
    Moment moment;
    moment.call = kCalls[below(4)];
    moment.victim = below(left);
    // Most moments lie in the first calls; some where all the others wait for long.
    moment.enters = below(3) > 0;
    moment.delay_us = moment.enters ? below(4000) : below(60'000);
    --left;
    if (left > 1 && below(3) == 0) {
      moment.second_victim = below(left);  // among those that are left, in their order
      moment.second_victim += moment.second_victim >= moment.victim ? 1 : 0;
      moment.second_delay_us = below(4000);
      --left;
    }
    plan.moments.push_back(moment);
  }
  return plan;
}

// What the processes of one job share besides the board.
struct Deaths {
  std::array<std::atomic<int64_t>, 64> at_us = {};  // by rank of the job; 0: alive
  std::atomic<int64_t> slowest_us = 0;              // from a death to the last survivor's error
};

class Survivor {
 public:
  Survivor(const Plan& plan, int rank, Board& board, Deaths& deaths)
      : plan_(plan), me_(rank), board_(board), deaths_(deaths) {
    for (int r = 0; r < plan.num_ranks; ++r) alive_.push_back(r);
  }

  void Run() {
    comm_ = Join(me_, plan_.num_ranks, board_);
    ASSERT_NE(comm_, nullptr);
    for (size_t i = 0; i < plan_.moments.size(); ++i) {
      SCOPED_TRACE(fmt::format("moment {} ({}, {} ranks left)", i,
                               kCallNames[static_cast<int>(plan_.moments[i].call)], alive_.size()));
      Live(plan_.moments[i], static_cast<int>(i));
      if (::testing::Test::HasFailure()) break;
    }
    EXPECT_NCCL(ncclCommAbort(comm_));
  }

 private:
  int InJob(int rank) const { return alive_[static_cast<size_t>(rank)]; }
  bool Dead(int rank) const { return deaths_.at_us[static_cast<size_t>(InJob(rank))] != 0; }

  [[noreturn]] void Die() {
    deaths_.at_us[static_cast<size_t>(me_)] = NowUs();
    kill(getpid(), SIGKILL);
    abort();
  }
  // In the midst of whatever the calling thread does by then.
  void DieAfter(int delay_us) {
    std::thread([this, delay_us] {
      const int64_t until_us = NowUs() + delay_us;
      while (NowUs() < until_us) std::this_thread::sleep_for(std::chrono::microseconds(20));
      Die();
    }).detach();
  }

  void Live(const Moment& moment, int number) {
    board_.Meet(number, static_cast<int>(alive_.size()));
    if (InJob(moment.victim) == me_) {
      if (!moment.enters) {
        std::this_thread::sleep_for(std::chrono::microseconds(moment.delay_us));
        Die();
      }
      DieAfter(moment.delay_us);
    }
    CallUntilItFails(moment.call);
    if (InJob(moment.victim) == me_) AwaitDeath();
    const int64_t died_us = deaths_.at_us[static_cast<size_t>(InJob(moment.victim))];
    const int64_t took_us = NowUs() - died_us;
    ASSERT_NE(died_us, 0) << "an error before the death: " << error_;
    EXPECT_LT(took_us, kNotStrandedUs);
    int64_t slowest_us = deaths_.slowest_us;
    while (slowest_us < took_us && !deaths_.slowest_us.compare_exchange_weak(slowest_us, took_us)) {
    }
    EXPECT_THAT(error_, HasSubstr(fmt::format("rank {} ", moment.victim)));
    // The second victim may be dying already, in the shrink that others have begun.
    EXPECT_THAT(LostRanks(moment.victim),
                AnyOf(std::set{moment.victim}, std::set{moment.victim, moment.second_victim}))
        << error_;
    if (moment.second_victim >= 0 && InJob(moment.second_victim) == me_)
      DieAfter(moment.second_delay_us);
    Shrink(moment);
  }

  void AwaitDeath() {
    while (true) pause();
  }

  // Makes the call again and again. Keeps the sentence of the failure.
  void CallUntilItFails(Call call) {
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) result = CallOnce(call);
    error_ = ncclGetLastError(nullptr);
    // A communicator that was made before the death may have been the one that failed: the parent
    // hears of the loss as well.
    const int64_t until_us = NowUs() + kNotStrandedUs;
    ncclResult_t state = ncclSuccess;
    while (NowUs() < until_us && state == ncclSuccess) {
      ASSERT_NCCL(ncclCommGetAsyncError(comm_, &state));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    EXPECT_EQ(state, ncclRemoteError);
  }

  ncclResult_t CallOnce(Call call) {
    switch (call) {
      case Call::kSteady:
        return Reduce(comm_);
      case Call::kSplit: {
        ncclComm_t child = nullptr;
        const int rank = RankOf(comm_);
        const ncclResult_t result = ncclCommSplit(comm_, rank % 2, rank, &child, nullptr);
        if (child != nullptr) {
          EXPECT_NCCL(ncclCommAbort(child));
        }
        return result;
      }
      case Call::kGrow:
        return GrowByNobody();
      case Call::kWindow: {
        ncclWindow_t window = nullptr;
        const ncclResult_t result =
            ncclCommWindowRegister(comm_, window_memory_.data(), 4096, &window, NCCL_WIN_DEFAULT);
        if (result == ncclSuccess) {
          EXPECT_NCCL(ncclCommWindowDeregister(comm_, window));
        }
        return result;
      }
    }
    return ncclInternalError;
  }

  // Asks for one rank more, who never comes: the call lasts until the death.
  ncclResult_t GrowByNobody() {
    ncclUniqueId id;
    ncclComm_t grown = nullptr;
    if (RankOf(comm_) == 0) {
      const ncclResult_t made = ncclCommGetUniqueId(comm_, &id);
      if (made != ncclSuccess) return made;
    }
    return ncclCommGrow(comm_, static_cast<int>(alive_.size()) + 1,
                        RankOf(comm_) == 0 ? &id : nullptr, -1, &grown, nullptr);
  }

  static int RankOf(ncclComm_t comm) {
    int rank = -1;
    EXPECT_NCCL(ncclCommUserRank(comm, &rank));
    return rank;
  }

  static ncclResult_t Reduce(ncclComm_t comm) {
    std::array<float, 1000> data;
    data.fill(1.0f);
    const ncclResult_t result =
        ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, nullptr);
    int count = 0;
    EXPECT_NCCL(ncclCommCount(comm, &count));
    if (result == ncclSuccess) {
      EXPECT_EQ(data[999], static_cast<float>(count));
    }
    return result;
  }

  // As soon as the loss of `victim` is known here.
  std::set<int> LostRanks(int victim) {
    std::array<int, 64> ranks;
    int count = 0;
    const int64_t until_us = NowUs() + kNotStrandedUs;
    while (NowUs() < until_us) {
      EXPECT_NCCL(
          tuttiCommGetLostRanks(comm_, ranks.data(), static_cast<int>(ranks.size()), &count));
      if (std::find(ranks.begin(), ranks.begin() + count, victim) != ranks.begin() + count) break;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return {ranks.begin(), ranks.begin() + count};
  }

  // Until a communicator of all that are alive works.
  void Shrink(const Moment& moment) {
    std::set<int> gone = {moment.victim};
    if (moment.second_victim >= 0) gone.insert(moment.second_victim);
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::set<int> lost = LostRanks(moment.victim);
      for (const int rank : lost) ASSERT_THAT(gone, ::testing::Contains(rank)) << "who is alive";
      std::vector<int> excluded(lost.begin(), lost.end());
      ncclComm_t fewer = nullptr;
      const int64_t start_us = NowUs();
      const ncclResult_t result =
          ncclCommShrink(comm_, excluded.data(), static_cast<int>(excluded.size()), &fewer, nullptr,
                         NCCL_SHRINK_ABORT);
      const std::string told = result == ncclSuccess ? "" : ncclGetLastError(nullptr);
      ASSERT_LT(NowUs() - start_us, kNotStrandedUs) << told;
      // Who is to die in the shrink does not take part in what follows.
      if (moment.second_victim >= 0 && InJob(moment.second_victim) == me_) AwaitDeath();
      const bool works = result == ncclSuccess && Reduce(fewer) == ncclSuccess;
      if (works) {
        int count = 0;
        EXPECT_NCCL(ncclCommCount(fewer, &count));
        EXPECT_EQ(count, static_cast<int>(alive_.size() - gone.size()));
        GoOnWith(fewer, gone);
        return;
      }
      ASSERT_GE(moment.second_victim, 0) << told;
      if (result != ncclSuccess) {
        EXPECT_THAT(told, AnyOf(HasSubstr("lost"), HasSubstr("gave up"))) << told;
      } else {
        EXPECT_NCCL(ncclCommAbort(fewer));
      }
      LostRanks(moment.second_victim);
    }
    FAIL() << "no shrink worked: " << ncclGetLastError(nullptr);
  }

  void GoOnWith(ncclComm_t fewer, const std::set<int>& gone) {
    EXPECT_NCCL(ncclCommAbort(comm_));
    comm_ = fewer;
    std::vector<int> left;
    for (int rank = 0; rank < static_cast<int>(alive_.size()); ++rank)
      if (!gone.contains(rank)) left.push_back(InJob(rank));
    alive_ = left;
  }

  const Plan& plan_;
  const int me_;
  Board& board_;
  Deaths& deaths_;
  ncclComm_t comm_ = nullptr;
  std::vector<int> alive_;  // ranks of the job, by rank of the communicator
  std::string error_;
  alignas(4096) std::array<std::byte, 4096> window_memory_ = {};
};

Deaths* SharedDeaths() {
  void* const memory =
      mmap(nullptr, sizeof(Deaths), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Deaths;
}

// How many deaths the plan had.
int RunPlan(const Plan& plan) {
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", plan.by_sockets ? "1" : "0"}});
  Deaths* const deaths = SharedDeaths();
  RankProcesses processes(
      plan.num_ranks, [&](int rank, Board& board) { Survivor(plan, rank, board, *deaths).Run(); });
  // Who dies, as ranks of the job.
  std::vector<int> alive;
  for (int r = 0; r < plan.num_ranks; ++r) alive.push_back(r);
  for (const Moment& moment : plan.moments) {
    std::set<int> gone = {moment.victim};
    if (moment.second_victim >= 0) gone.insert(moment.second_victim);
    std::vector<int> left;
    for (int rank = 0; rank < static_cast<int>(alive.size()); ++rank) {
      if (gone.contains(rank))
        processes.ExpectDeath(alive[static_cast<size_t>(rank)]);
      else
        left.push_back(alive[static_cast<size_t>(rank)]);
    }
    alive = left;
  }
  processes.Wait(120);
  int count = 0;
  for (const auto& at_us : deaths->at_us) count += at_us != 0;
  fmt::print("    {} deaths among {} ranks, the slowest survivor knew after {:.1f} ms\n", count,
             plan.num_ranks, static_cast<double>(deaths->slowest_us) / 1000);
  munmap(deaths, sizeof(Deaths));
  return count;
}

// The seed of a run: that of the environment, so that a failure can be seen again.
uint32_t Seed() {
  const char* const text = getenv("TUTTI_TEST_SEED");
  return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : 1;
}

TEST(SuddenDeathTest, InJointCallsOfAFewRanks) {
  for (const int num_ranks : {2, 3, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks, TUTTI_TEST_SEED={}", num_ranks, Seed()));
    EXPECT_GT(RunPlan(MakePlan(num_ranks, Seed())), 0);
    if (HasFailure()) return;
  }
}

// What first showed that survivors can be stranded: the victim comes late, and dies while all the
// others wait for it in a split.
TEST(SuddenDeathTest, WhileAllOthersWaitInASplit) {
  for (const int victim : {0, 2}) {
    Plan plan;
    plan.num_ranks = 4;
    plan.moments.push_back(
        {.call = Call::kSplit, .victim = victim, .delay_us = 200'000, .enters = false});
    RunPlan(plan);
  }
}

// This process's TCP connections, by descriptor.
std::set<int> Connections() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer;
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
      found.insert(fd);
  }
  return found;
}

// Nobody dies, but two ranks cannot talk to one another any more: a link of the bootstrap breaks,
// or a connection for data. All three exclude the same one, which is told, and the others go on.
void CutAndGoOn(bool for_data) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "1"}});
  constexpr int kRanks = 3;
  RunRankProcesses(kRanks, [for_data](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    const std::set<int> links = Connections();
    float value = 1;
    EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
    board.Meet(0, kRanks);
    if (rank == 1) {
      std::set<int> cut = links;
      if (for_data) {
        cut = Connections();
        for (const int link : links) cut.erase(link);
      }
      ASSERT_FALSE(cut.empty());
      EXPECT_EQ(shutdown(*cut.begin(), SHUT_RDWR), 0);
    }
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess)
      result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
    EXPECT_EQ(result, ncclRemoteError) << ncclGetLastError(comm);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("one of them has to go"));
    int lost[kRanks] = {};
    int count = 0;
    const int64_t until_us = NowUs() + kNotStrandedUs;
    while (count == 0 && NowUs() < until_us)
      ASSERT_NCCL(tuttiCommGetLostRanks(comm, lost, kRanks, &count));
    ASSERT_EQ(count, 1);
    board.result(rank) = static_cast<uint64_t>(lost[0]);
    board.Meet(1, kRanks);
    for (int other = 0; other < kRanks; ++other) EXPECT_EQ(board.result(other), board.result(rank));
    if (lost[0] != rank) {
      ncclComm_t fewer = nullptr;
      EXPECT_NCCL(ncclCommShrink(comm, lost, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
      value = 1;
      EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, fewer, nullptr));
      EXPECT_EQ(value, 2.0f);
      EXPECT_NCCL(ncclCommDestroy(fewer));
    } else {
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("excluded by the other ranks"));
    }
    board.Meet(2, kRanks);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

TEST(BrokenConnectionTest, OfTheBootstrapExcludesOneRankForAll) { CutAndGoOn(false); }
TEST(BrokenConnectionTest, ForDataExcludesOneRankForAll) { CutAndGoOn(true); }

TEST(SlowSuddenDeathTest, TwoHundredMoments) {
  uint32_t seed = Seed();
  for (int deaths = 0; deaths < 200; ++seed) {
    const int num_ranks = 2 + static_cast<int>(seed * 7 % 15);  // 2 to 16
    SCOPED_TRACE(fmt::format("{} ranks, seed {}", num_ranks, seed));
    fmt::print("seed {}\n", seed);
    fflush(stdout);
    deaths += RunPlan(MakePlan(num_ranks, seed));
    if (HasFailure()) return;
  }
}

// Whoever dies while the ranks find one another: nobody is blamed who lives.
TEST(SlowSuddenDeathTest, DuringInitialisation) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "10"}});
  for (uint32_t seed = Seed(); seed < Seed() + 40; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 2 + static_cast<int>(random() % 7);
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(num_ranks));
    const int delay_us = static_cast<int>(random() % 30'000);
    SCOPED_TRACE(fmt::format("{} ranks, rank {} dies after {} us, seed {}", num_ranks, victim,
                             delay_us, seed));
    RankProcesses processes(num_ranks, [&](int rank, Board& board) {
      const ncclUniqueId id = SharedId(rank, board);
      board.Meet(0, num_ranks);
      if (rank == victim) {
        std::thread([delay_us] {
          std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
          kill(getpid(), SIGKILL);
        }).detach();
      }
      ncclComm_t comm = nullptr;
      ncclResult_t result = ncclCommInitRank(&comm, num_ranks, id, rank);
      if (rank == victim)
        while (true) pause();
      const int64_t until_us = NowUs() + kNotStrandedUs;
      std::string told = ncclGetLastError(nullptr);
      while (comm != nullptr && result == ncclSuccess && NowUs() < until_us) {
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
        told = ncclGetLastError(comm);
        if (result != ncclSuccess) {
          float value = 1;
          EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr),
                    ncclSuccess);
          told = ncclGetLastError(comm);
        }
      }
      EXPECT_NE(result, ncclSuccess) << "rank " << rank;
      // The root is in the process of rank 0.
      EXPECT_THAT(told,
                  AnyOf(HasSubstr(fmt::format("rank {} (", victim)),
                        HasSubstr(fmt::format("missing: {}", victim)), HasSubstr("the root")));
      if (comm != nullptr) {
        EXPECT_NCCL(ncclCommAbort(comm));
      }
    });
    processes.ExpectDeath(victim);
    processes.Wait(60);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::testing
