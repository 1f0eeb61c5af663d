#include "faults/deaths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <thread>

#include "conformance/place.h"
#include "conformance/processes.h"
#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr Call kCalls[] = {Call::kSteady, Call::kSplit,   Call::kGrow,
                           Call::kWindow, Call::kDevComm, Call::kSuspend};

// Holds what the processes of one job share besides the board.
struct Deaths {
  // There is one for each rank of the job; 0: it lives.
  std::array<std::atomic<int64_t>, 64> at_us = {};
  std::array<Waited, 4096> waits = {};
  std::atomic<size_t> num_waits = 0;

  void Note(const Waited& waited) {
    const size_t place = num_waits.fetch_add(1);
    if (place < waits.size()) waits[place] = waited;
  }
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
                               kCallNames[static_cast<size_t>(plan_.moments[i].call)],
                               alive_.size()));
      Live(plan_.moments[i], static_cast<int>(i));
      if (::testing::Test::HasFailure()) break;
    }
    // An abort drops what is still to be sent: a rank that has its own result may be ahead of one
    // that waits for its data.
    if (!::testing::Test::HasFailure())
      board_.Meet(static_cast<int>(plan_.moments.size()), static_cast<int>(alive_.size()));
    EXPECT_NCCL(ncclCommAbort(comm_));
  }

 private:
  int InJob(int rank) const { return alive_[static_cast<size_t>(rank)]; }
  bool Dead(int rank) const { return deaths_.at_us[static_cast<size_t>(InJob(rank))] != 0; }

  void NoteDeath(int64_t now_us) { deaths_.at_us[static_cast<size_t>(me_)] = now_us; }
  void DieLater(int delay_us) {
    DieAfter(delay_us, [this](int64_t now_us) { NoteDeath(now_us); });
  }

  void Live(const Moment& moment, int number) {
    board_.Meet(number, static_cast<int>(alive_.size()));
    if (InJob(moment.victim) == me_) {
      if (!moment.enters) {
        DieLater(moment.delay_us);
        AwaitDeath();
      }
      DieLater(moment.delay_us);
    }
    CallUntilItFails(moment.call);
    if (InJob(moment.victim) == me_) AwaitDeath();
    const int64_t died_us = deaths_.at_us[static_cast<size_t>(InJob(moment.victim))];
    const int64_t took_us = NowUs() - died_us;
    ASSERT_NE(died_us, 0) << "an error before the death: " << error_;
    EXPECT_LT(took_us, kNotStrandedUs);
    deaths_.Note({moment.call, /*shrink=*/false, took_us});
    EXPECT_THAT(error_, HasSubstr(fmt::format("rank {} ", moment.victim)));
    // The second victim may be dying already, in the shrink that others have begun.
    EXPECT_THAT(LostRanks(moment.victim),
                AnyOf(std::set{moment.victim}, std::set{moment.victim, moment.second_victim}))
        << error_;
    if (moment.second_victim >= 0 && InJob(moment.second_victim) == me_)
      DieLater(moment.second_delay_us);
    Shrink(moment);
  }

  void AwaitDeath() {
    while (true) pause();
  }

  // Makes the call again and again. Keeps the sentence of the failure.
  void CallUntilItFails(Call call) {
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) result = CallOnce(call);
    // What fails in a kernel fails the communicator, and no call.
    error_ = ncclGetLastError(call == Call::kSteady ? comm_ : nullptr);
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
            ncclCommWindowRegister(comm_, nullptr, 4096, &window, NCCL_WIN_DEFAULT);
        if (result == ncclSuccess) {
          EXPECT_NCCL(ncclCommWindowDeregister(comm_, window));
        }
        return result;
      }
      case Call::kDevComm:
        return MakeDevComm();
      case Call::kSuspend: {
        const ncclResult_t result = ncclCommSuspend(comm_, NCCL_SUSPEND_MEM);
        return result == ncclSuccess ? ncclCommResume(comm_) : result;
      }
    }
    return ncclInternalError;
  }

  ncclResult_t MakeDevComm() {
    ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    asked.lsaBarrierCount = 1;
    asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    asked.ginSignalCount = 1;
    ncclDevComm_t devcomm = {};
    const ncclResult_t result = ncclDevCommCreate(comm_, &asked, &devcomm);
    if (result == ncclSuccess) {
      EXPECT_NCCL(ncclDevCommDestroy(comm_, &devcomm));
    }
    return result;
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
      const int64_t took_us = NowUs() - start_us;
      ASSERT_LT(took_us, kNotStrandedUs) << told;
      deaths_.Note({moment.call, /*shrink=*/true, took_us});
      // Who is to die in the shrink does not take part in what follows.
      if (moment.second_victim >= 0 && InJob(moment.second_victim) == me_) AwaitDeath();
      const ncclResult_t reduced = result == ncclSuccess ? Reduce(fewer) : result;
      const bool works = reduced == ncclSuccess;
      if (works) {
        int count = 0;
        EXPECT_NCCL(ncclCommCount(fewer, &count));
        EXPECT_EQ(count, static_cast<int>(alive_.size() - gone.size()));
        GoOnWith(fewer, gone);
        return;
      }
      ASSERT_GE(moment.second_victim, 0)
          << told << ncclGetErrorString(reduced) << ", " << ncclGetLastError(fewer);
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
};

Deaths* SharedDeaths() {
  void* const memory =
      mmap(nullptr, sizeof(Deaths), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Deaths;
}

// Prints one line for the waits, which are sorted.
void PrintLine(const std::string& what, const std::vector<int64_t>& sorted_us) {
  if (sorted_us.empty()) return;
  const auto at = [&](double part) {
    const auto place = static_cast<size_t>(part * static_cast<double>(sorted_us.size() - 1));
    return static_cast<double>(sorted_us[place]) / 1000;
  };
  const auto over =
      sorted_us.end() - std::upper_bound(sorted_us.begin(), sorted_us.end(), 1'000'000);
  fmt::print(
      "    {:<22} {:5} waits: middle {:6.1f} ms, 90 % {:6.1f} ms, 99 % {:7.1f} ms, longest "
      "{:7.1f} ms, {} over 1 s\n",
      what, sorted_us.size(), at(0.5), at(0.9), at(0.99), at(1), over);
}

}  // namespace

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ncclResult_t Reduce(ncclComm_t comm) {
  constexpr size_t kCount = 1000;
  // Memory that a kernel may still use is not given back; there is little of it.
  static float* const data =
      OnGpus() ? static_cast<float*>(TakeShared(kCount * sizeof(float))) : new float[kCount];
  std::fill_n(data, kCount, 1.0f);
  ncclResult_t result = ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, nullptr);
  if (result == ncclSuccess) result = Finish(comm);
  if (result == ncclSuccess) {
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
  }
  int count = 0;
  EXPECT_NCCL(ncclCommCount(comm, &count));
  if (result == ncclSuccess) {
    EXPECT_EQ(data[kCount - 1], static_cast<float>(count));
  }
  return result;
}

void DieAfter(int delay_us, std::function<void(int64_t now_us)> before) {
  std::thread([delay_us, before = std::move(before)] {
    const int64_t until_us = NowUs() + delay_us;
    while (NowUs() < until_us) std::this_thread::sleep_for(std::chrono::microseconds(20));
    before(NowUs());
    kill(getpid(), SIGKILL);
  }).detach();
}

uint32_t TestSeed() {
  const char* const text = getenv("TUTTI_TEST_SEED");
  return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : 1;
}

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
    moment.call = kCalls[below(std::size(kCalls))];
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

Outcome RunPlan(const Plan& plan) {
  const Environment environment(Environment::Settings{
      {"NCCL_SHM_DISABLE", plan.by_sockets ? "1" : "0"}, {"TUTTI_INIT_TIMEOUT_S", kInitTimeoutS}});
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
  Outcome outcome;
  for (const auto& at_us : deaths->at_us) outcome.deaths += at_us != 0 ? 1 : 0;
  const size_t noted = std::min(deaths->num_waits.load(), deaths->waits.size());
  outcome.waits.assign(deaths->waits.begin(), deaths->waits.begin() + noted);
  munmap(deaths, sizeof(Deaths));
  return outcome;
}

void PrintWaits(std::vector<Waited> waits) {
  std::sort(waits.begin(), waits.end(),
            [](const Waited& a, const Waited& b) { return a.us < b.us; });
  for (const bool shrink : {false, true}) {
    for (const Call call : kCalls) {
      std::vector<int64_t> us;
      for (const Waited& waited : waits)
        if (waited.call == call && waited.shrink == shrink) us.push_back(waited.us);
      PrintLine(
          fmt::format("{}{}", shrink ? "shrink after " : "", kCallNames[static_cast<size_t>(call)]),
          us);
    }
  }
}

}  // namespace tutti::testing
