// The stand-in for libmlx5 notices what is wrong with a command: every bit of the commands that the
// library gives is turned over, one at a time.

#include "fakecard/fake_mlx5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "fake_verbs.h"
#include "gin_direct/mlx5/commands.h"
#include "gin_direct/mlx5/library.h"

namespace tutti::testing {
namespace {

using ::testing::IsEmpty;

constexpr uint32_t kLogSize = 6;
constexpr size_t kPage = 4096, kMemoryBytes = 3 * kPage;

// An open card, and what objects are made of.
class FakeMlx5Test : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<Mlx5Library> found = LoadMlx5Library(TUTTI_FAKE_MLX5_LIBRARY);
    ASSERT_TRUE(found.ok()) << found.status().message();
    library_ = *found;
    int count = 0;
    ibv_device** const devices = ibv_get_device_list(&count);
    ASSERT_EQ(count, 1);
    mlx5dv_context_attr attributes = {};
    attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
    context_ = library_.open_device(devices[0], &attributes);
    ibv_free_device_list(devices);
    pd_ = ibv_alloc_pd(context_);
    mlx5dv_pd domain = {};
    mlx5dv_obj object = {};
    object.pd.in = pd_;
    object.pd.out = &domain;
    ASSERT_EQ(library_.init_obj(&object, MLX5DV_OBJ_PD), 0);
    domain_ = domain.pdn;
    ASSERT_EQ(library_.query_eqn(context_, 0, &event_queue_), 0);
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(kPage, kMemoryBytes));
    std::memset(memory_, 0, kMemoryBytes);
    for (size_t entry = 1; entry <= size_t{1} << kLogSize; ++entry) memory_[entry * 64 - 1] = 0xf1;
    Mlx5UmemIn in;
    in.addr = memory_;
    in.size = kMemoryBytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = kPage;
    umem_ = library_.umem_reg(context_, &in);
    uar_ = library_.alloc_uar(context_, MLX5DV_UAR_ALLOC_TYPE_NC);
    ASSERT_NE(umem_, nullptr);
    ASSERT_NE(uar_, nullptr);
  }
  void TearDown() override {
    library_.free_uar(uar_);
    library_.umem_dereg(umem_);
    std::free(memory_);
    ibv_dealloc_pd(pd_);
    ibv_close_device(context_);
    EXPECT_EQ(fakemlx5::ObjectsAlive(), 0);
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
    fakemlx5::Reset();
  }

  mlx5dv_devx_obj* Make(const Mlx5LongCommand& command, uint32_t* number) {
    Mlx5ShortAnswer answer;
    mlx5dv_devx_obj* const made =
        library_.obj_create(context_, command.bytes.data(), command.bytes.size(),
                            answer.bytes.data(), answer.bytes.size());
    EXPECT_EQ(made != nullptr, StatusIn(answer.bytes) == 0);
    *number = NumberIn(answer);
    return made;
  }
  Mlx5LongCommand Completions() const {
    return CreateCompletions({.log_size = kLogSize,
                              .uar_page = uar_->page_id,
                              .event_queue = event_queue_,
                              .entries = {umem_->umem_id, 0},
                              .record = {umem_->umem_id, 2 * kPage}});
  }
  Mlx5LongCommand Pair(uint32_t completions) const {
    return CreatePair({.log_size = kLogSize,
                       .domain = domain_,
                       .uar_page = uar_->page_id,
                       .completions = completions,
                       .entries = {umem_->umem_id, kPage},
                       .record = {umem_->umem_id, 2 * kPage + 64}});
  }
  bool Move(mlx5dv_devx_obj* pair, const Mlx5LongCommand& command) {
    Mlx5ShortAnswer answer;
    return library_.obj_modify(pair, command.bytes.data(), command.bytes.size(),
                               answer.bytes.data(), answer.bytes.size()) == 0;
  }

  // Turns over each bit of a command and tries it. Returns how many of these were taken.
  template <typename Try>
  int TakenOf(const Mlx5LongCommand& good, const Try& attempt) {
    int taken = 0;
    for (size_t bit = 0; bit < good.bytes.size() * 8; ++bit) {
      Mlx5LongCommand bad = good;
      bad.bytes[bit / 8] = static_cast<uint8_t>(bad.bytes[bit / 8] ^ 0x80u >> bit % 8);
      taken += attempt(bad) ? 1 : 0;
    }
    return taken;
  }

  Mlx5Library library_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  uint8_t* memory_ = nullptr;
  mlx5dv_devx_umem* umem_ = nullptr;
  mlx5dv_devx_uar* uar_ = nullptr;
  uint32_t domain_ = 0, event_queue_ = 0;
};

// What is taken has another, shorter size (two bits of it), or another place for its record, within
// its page (nine bits) or in the first one.
TEST_F(FakeMlx5Test, NoticesEveryBitOfACompletionQueue) {
  uint32_t number = 0;
  mlx5dv_devx_obj* const good = Make(Completions(), &number);
  ASSERT_NE(good, nullptr);
  EXPECT_THAT(fakemlx5::Complaints(), IsEmpty());
  EXPECT_EQ(TakenOf(Completions(),
                    [&](const Mlx5LongCommand& bad) {
                      mlx5dv_devx_obj* const made = Make(bad, &number);
                      if (made != nullptr) library_.obj_destroy(made);
                      return made != nullptr;
                    }),
            2 + 9 + 1);
  library_.obj_destroy(good);
}

// What is taken has another place for its record, within its page (nine bits) or in the first one,
// or for its entries: where those of the completion queue are, as no command tells.
TEST_F(FakeMlx5Test, NoticesEveryBitOfAQueuePair) {
  uint32_t completions = 0, number = 0;
  mlx5dv_devx_obj* const queue = Make(Completions(), &completions);
  mlx5dv_devx_obj* const good = Make(Pair(completions), &number);
  ASSERT_NE(good, nullptr);
  EXPECT_THAT(fakemlx5::Complaints(), IsEmpty());
  uint32_t other = 0;
  EXPECT_EQ(TakenOf(Pair(completions),
                    [&](const Mlx5LongCommand& bad) {
                      mlx5dv_devx_obj* const made = Make(bad, &other);
                      if (made != nullptr) library_.obj_destroy(made);
                      return made != nullptr;
                    }),
            9 + 1 + 1);
  // No command that moves its state is taken with a bit turned over, nor out of turn.
  Mlx5Route route;
  route.timeout = 20;
  route.retry_count = 7;
  route.log_reads = 4;
  const auto move = [&](const Mlx5LongCommand& command) { return Move(good, command); };
  EXPECT_FALSE(move(ReceiveToSend(number, route)));
  EXPECT_EQ(TakenOf(ResetToInit(number, route), move), 0);
  EXPECT_TRUE(move(ResetToInit(number, route)));
  EXPECT_FALSE(move(ResetToInit(number, route)));
  library_.obj_destroy(good);
  library_.obj_destroy(queue);
}

}  // namespace
}  // namespace tutti::testing
