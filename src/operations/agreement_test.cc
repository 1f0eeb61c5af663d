#include "operations/agreement.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "bootstrap/testing/idle_bootstrap.h"

namespace tutti {
namespace {

// Rank 1 of three. A test fills in the parts that the other ranks bring to an exchange.
class ScriptedBootstrap final : public testing::IdleBootstrap {
 public:
  std::function<Status(std::byte* data, size_t bytes_per_rank)> all_gather;

  int rank() const override { return 1; }
  int num_ranks() const override { return 3; }
  Status AllGather(void* data, size_t bytes_per_rank, Deadline, const std::atomic<bool>*) override {
    return all_gather(static_cast<std::byte*>(data), bytes_per_rank);
  }
};

class JointStepTest : public ::testing::Test {
 protected:
  struct Offer {
    uint64_t value = 0;
  };
  // Has ranks 0 and 2 offer 10 and 12, with these statuses where an exchange carries statuses.
  void OthersSay(const Status& first, const Status& last) {
    bootstrap_.all_gather = [=, this](std::byte* data, size_t bytes) {
      sizes_.push_back(bytes);
      for (const auto& [rank, said] : {std::pair(size_t{0}, first), std::pair(size_t{2}, last)}) {
        std::byte* at = data + rank * bytes;
        if (bytes >= sizeof(StatusWire)) {
          const StatusWire wire = StatusWire::Of(said);
          std::memcpy(at, &wire, sizeof(wire));
          at += sizeof(wire);
        }
        const Offer offer = {10 + rank};
        if (bytes % sizeof(StatusWire) != 0) std::memcpy(at, &offer, sizeof(offer));
      }
      return Status::Ok();
    };
  }
  static void ExpectOffers(const JointStep<Offer>& step) {
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(step.offers()[rank].value, 10 + rank);
  }

  ScriptedBootstrap bootstrap_;
  std::array<PeerInfo, 3> peers_ = {};
  JointRanks ranks_ = {&bootstrap_, peers_};
  std::vector<size_t> sizes_;
};

TEST_F(JointStepTest, ExchangesOffersAlone) {
  OthersSay(Status::Ok(), Status::Ok());
  JointStep<Offer> step(ranks_);
  step.mine().value = 11;
  ASSERT_TRUE(step.Exchange().ok());
  ExpectOffers(step);
  EXPECT_EQ(sizes_, std::vector<size_t>{sizeof(Offer)});
}

TEST_F(JointStepTest, AStatusPrecedesEachOfferAndTheFirstRefusalCounts) {
  OthersSay(Status::Ok(), InvalidUsage("the last rank"));
  JointStep<Offer> step(ranks_);
  step.mine().value = 11;
  const Result<Agreement> agreed = step.Exchange(InvalidArgument("the middle rank"));
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->refusal.code(), Code::kInvalidArgument);
  EXPECT_NE(agreed->refusal.message().find("the middle rank"), std::string::npos);
  ExpectOffers(step);
  EXPECT_EQ(sizes_, std::vector<size_t>{sizeof(StatusWire) + sizeof(Offer)});
}

TEST_F(JointStepTest, AReasonOfAnotherRankIsMadePrintable) {
  OthersSay(InvalidUsage("a line\nand \x1b[2J"), Status::Ok());
  const Result<Agreement> agreed = ranks_.Agree(Status::Ok());
  ASSERT_TRUE(agreed.ok());
  EXPECT_NE(agreed->refusal.message().find("a line?and ?[2J"), std::string::npos)
      << agreed->refusal.message();
}

TEST_F(JointStepTest, AllGoOnWhereNoRankRefuses) {
  OthersSay(Status::Ok(), Status::Ok());
  const Result<Agreement> agreed = ranks_.Agree(Status::Ok());
  ASSERT_TRUE(agreed.ok());
  EXPECT_TRUE(agreed->go_on());
}

TEST_F(JointStepTest, UsesOffersOnlyWhereItsOwnWasMadeAndAgreesThen) {
  OthersSay(Status::Ok(), Status::Ok());
  for (const bool made : {true, false}) {
    JointStep<Offer> step(ranks_);
    step.mine().value = 11;
    int uses = 0;
    const Result<Agreement> agreed =
        step.ExchangeAndUse(made ? Status::Ok() : InvalidUsage("not made"), [&](auto offers) {
          ++uses;
          EXPECT_EQ(offers[2].value, 12u);
          return InvalidUsage("not used");
        });
    ASSERT_TRUE(agreed.ok());
    EXPECT_EQ(uses, made ? 1 : 0);
    EXPECT_NE(agreed->refusal.message().find(made ? "not used" : "not made"), std::string::npos);
  }
}

TEST_F(JointStepTest, FailsWhereTheRanksCannotTalk) {
  bootstrap_.all_gather = [](std::byte*, size_t) { return RemoteError("cut off"); };
  JointStep<Offer> step(ranks_);
  EXPECT_EQ(step.Exchange().code(), Code::kRemoteError);
  EXPECT_EQ(step.Exchange(Status::Ok()).status().code(), Code::kRemoteError);
}

}  // namespace
}  // namespace tutti
