#include "coordinator/set_making.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/coordinator.h"
#include "coordinator/testing/job.h"

namespace tutti::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(SetMakingTest, RunReturnsWhatTheCallReturns) {
  SetMaking making;
  EXPECT_TRUE(making.Run([] { return SetMaking::Opened(nullptr); }).ok());
  EXPECT_EQ(making.Run([]() -> SetMaking::Opened { return SystemError("no"); }).status().message(),
            "no");
  EXPECT_FALSE(making.Run([]() -> SetMaking::Opened { throw std::bad_alloc(); }).ok());
}

TEST(SetMakingTest, BreakEndsACallThatBlocks) {
  SetMaking making;
  std::promise<void> entered;
  const auto released = std::make_shared<std::promise<void>>();
  auto run = std::async(std::launch::async, [&] {
    return making.Run([&entered, release = released->get_future().share()] {
      entered.set_value();
      release.wait();
      return SetMaking::Opened(nullptr);
    });
  });
  entered.get_future().wait();
  int broken = 0;
  making.Adopt([&] { ++broken; });
  making.Break(RemoteError("rank 2 is lost"));
  making.Break(RemoteError("another reason"));
  EXPECT_EQ(run.get().status().message(), "rank 2 is lost");
  EXPECT_EQ(broken, 1);
  making.Adopt([&] { ++broken; });
  EXPECT_EQ(broken, 2);
  EXPECT_EQ(making.Run([] { return SetMaking::Opened(nullptr); }).status().message(),
            "rank 2 is lost");
  released->set_value();
}

// Takes no operation: Tutti's own operations move all data.
class NoOperations final : public TwoLevelOperations {
 public:
  NoOperations() : TwoLevelOperations(nullptr, nullptr, {}) {}
  const TwoLevels* levels() const override { return nullptr; }
  bool Takes(const Request&, int64_t) const override { return false; }
  Status Allreduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t) override {
    return InternalError("an operation was not refused");
  }
  Status Allgather(const void*, void*, const std::vector<size_t>&) override {
    return InternalError("an operation was not refused");
  }
};

// A plugin whose `open` may block, like the open of a library that waits for its peers.
class TestPlugin final : public OperationsPlugin {
 public:
  // Called with the number of groups opened before.
  explicit TestPlugin(std::function<void(int)> open) : open_(std::move(open)) {}
  std::string_view name() const override { return "test"; }
  Status Viable(int, int) override { return Status::Ok(); }
  Result<std::unique_ptr<Operations>> Open(const OperationsGroup&) override {
    open_(opened_++);
    return std::unique_ptr<Operations>(std::make_unique<NoOperations>());
  }

 private:
  const std::function<void(int)> open_;
  int opened_ = 0;
};

std::unique_ptr<Coordinator> MakeCoordinator(int rank, int num_ranks, const ncclUniqueId& id,
                                             std::function<void(int)> open) {
  Coordinator::Options options;
  options.rank = rank;
  options.num_ranks = num_ranks;
  options.id = *UniqueId::Decode(id.internal);
  options.settings = *ReadProcessSettings();
  options.settings.cpu_operations = "test";
  options.find_plugin = [open = std::move(open)](const std::string&, int, int) {
    return Result<std::shared_ptr<OperationsPlugin>>(std::make_shared<TestPlugin>(open));
  };
  auto made = Coordinator::Create(options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

Status RunBarrier(ProcessSet& set) {
  const TicketHold ticket = TicketHold::Make();
  TicketHold shared = ticket.Share();
  const tuttiTensor_t barrier = MakeTensor("barrier", OpKind::kBarrier);
  TUTTI_TRY(set.Enqueue({&barrier, 1}, nullptr, {&shared, 1}));
  set.Wait(*ticket);
  return ticket->status;
}

// A set whose plugin blocks while opening holds up neither the other sets nor threads that ask for
// them.
TEST(MakingASetTest, OtherSetsGoOn) {
  constexpr int kRanks = 2;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::atomic<int> opening{0}, finished{0};
  testing::RunRankThreads(
      kRanks,
      [&](int rank) {
        // The third group is the group of process set 2.
        const auto coordinator = MakeCoordinator(rank, kRanks, id, [&](int opened_before) {
          if (opened_before < 2) return;
          ++opening;
          EXPECT_TRUE(Await(finished, kRanks));
        });
        ASSERT_NE(coordinator, nullptr);
        ASSERT_EQ(*coordinator->AddSet({0, 1}), 1);
        auto added = std::async(std::launch::async, [&] { return coordinator->AddSet({0, 1}); });
        EXPECT_TRUE(Await(opening, kRanks));
        EXPECT_THAT(coordinator->FindSet(2).status().message(), HasSubstr("still being made"));
        const auto other = coordinator->FindSet(1);
        ASSERT_TRUE(other.ok());
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(RunBarrier(**other).ok());
        ++finished;
        EXPECT_EQ(*added.get(), 2);
        EXPECT_TRUE(RunBarrier(**coordinator->FindSet(2)).ok());
      },
      30);
}

// Ranks as processes, one of which is killed while all of them wait inside of the plugin.
TEST(MakingASetTest, ADeathEndsIt) {
  constexpr int kRanks = 3;
  testing::RankProcesses job(kRanks, [](int rank, testing::Board& board) {
    const auto coordinator =
        MakeCoordinator(rank, kRanks, ShareId(board, rank, kRanks), [&](int opened_before) {
          if (opened_before == 0) return;
          board.Add(0, 1);
          while (true) pause();
        });
    ASSERT_NE(coordinator, nullptr);
    const Result<int> added = coordinator->AddSet({0, 1, 2});
    EXPECT_THAT(added.status().message(), HasSubstr("rank 2"));
    EXPECT_THAT(coordinator->ended().message(), HasSubstr("rank 2"));
  });
  ASSERT_TRUE(job.board().Await(0, kRanks));
  job.Signal(2, SIGKILL);
  job.Wait(20);
}

// The same while the set of all ranks is made, at the beginning of a job.
TEST(MakingASetTest, ADeathEndsTheFirstToo) {
  constexpr int kRanks = 2;
  testing::RankProcesses job(kRanks, [](int rank, testing::Board& board) {
    Coordinator::Options options;
    options.rank = rank;
    options.num_ranks = kRanks;
    options.id = *UniqueId::Decode(ShareId(board, rank, kRanks).internal);
    options.settings = *ReadProcessSettings();
    options.settings.cpu_operations = "test";
    options.find_plugin = [&](const std::string&, int, int) {
      return Result<std::shared_ptr<OperationsPlugin>>(std::make_shared<TestPlugin>([&](int) {
        board.Add(0, 1);
        while (true) pause();
      }));
    };
    EXPECT_THAT(Coordinator::Create(options).status().message(), HasSubstr("rank 1"));
  });
  ASSERT_TRUE(job.board().Await(0, kRanks));
  job.Signal(1, SIGKILL);
  job.Wait(20);
}

}  // namespace
}  // namespace tutti::coordinator
