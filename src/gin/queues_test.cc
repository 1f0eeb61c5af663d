// The operations of kernels on hosts: their operands, their execution, and the queues of
// descriptors. The ranks of a team are windows of one process. A rank outside of the team is
// reached by a network that is memory.

#include "gin/queues.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gin/descriptor_slots.h"
#include "operations/testing/local_bootstrap.h"
#include "testing/ranks.h"
#include "window/flat_space.h"
#include "window/testing/memory_net.h"

namespace tutti {
namespace {

using device::GinOperation;
using testing::LocalBootstrap;
using testing::LocalJob;
using testing::MemoryNet;

constexpr uint64_t kDataBytes = 8192;
constexpr uint32_t kDepth = 4;

size_t At(int rank) { return static_cast<size_t>(rank); }

// The layout of the resource window of two contexts.
GinPlan PlanOf(uint32_t num_queues) {
  GinPlan plan;
  plan.connection = NCCL_GIN_CONNECTION_FULL;
  plan.num_contexts = 2;
  plan.num_queues = num_queues;
  plan.queue_depth = kDepth;
  plan.num_signals = 3;
  plan.num_counters = 2;
  plan.signals_at = 64;
  plan.network_signals_at = 2048;
  plan.counters_at = 256;
  plan.values_at = 512;
  return plan;
}

// One rank's objects.
struct Rank {
  std::unique_ptr<LocalBootstrap> bootstrap;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<WindowDirectory> directory;
  std::unique_ptr<SymmetricMemory> symmetric;
  std::shared_ptr<const Window> data, resource;
  std::unique_ptr<RemoteWindows> remote;

  uint64_t Word(const Window& window, uint64_t at) const {
    uint64_t word = 0;
    std::memcpy(&word, window.own.data() + at, sizeof(word));
    return word;
  }
  uint64_t Signal(uint64_t context, uint64_t number) const {
    return Word(*resource, 64 + 8 * (3 * context + number));
  }
  // The word to which ranks outside of the team add.
  uint64_t NetworkSignal(uint64_t context, uint64_t number) const {
    return Word(*resource, 2048 + 8 * (3 * context + number));
  }
  uint64_t Counter(uint64_t context, uint64_t number) const {
    return Word(*resource, 256 + 8 * (2 * context + number));
  }
};

// Two ranks, in one team or in a team each.
class GinTest : public ::testing::Test {
 protected:
  explicit GinTest(int team_size = 2) : team_size_(team_size) {}

  void SetUp() override {
    ASSERT_TRUE(loop_.ok());
    fd_server_ = FdServer::Create(**loop_);
    ASSERT_TRUE(fd_server_.ok());
    testing::RunRankThreads(2, [&](int number) { MakeRank(number); });
    ASSERT_FALSE(HasFailure());
    GinOperands::Parts parts = {
        .plan = PlanOf(2), .resource = ranks_[0].resource, .symmetric = ranks_[0].symmetric.get()};
    executor_ = std::make_unique<GinExecutor>(parts, ranks_[0].remote.get());
    Result<std::unique_ptr<GinMemory>> memory =
        GinMemory::Allocate(2 * 2 * kDepth * sizeof(device::GinDescriptor));
    ASSERT_TRUE(memory.ok());
    memory_of_queues_ = std::move(memory).value();
    queues_ = std::make_unique<GinQueues>(*executor_, 1, memory_of_queues_->data());
    record_ = queues_->record();
  }
  void TearDown() override {
    queues_.reset();
    executor_.reset();
    for (Rank& rank : ranks_) rank.remote.reset();
  }

  void MakeRank(int number) {
    Rank& rank = ranks_[At(number)];
    rank.bootstrap = std::make_unique<LocalBootstrap>(job_, number);
    rank.watch = std::make_unique<Watch>(
        *rank.bootstrap, Watch::Options{.rank_names = std::vector<std::string>(2, "a rank")});
    rank.directory = std::make_unique<WindowDirectory>();
    SymmetricMemory::Parts parts;
    parts.bootstrap = rank.bootstrap.get();
    parts.peers = peers_;
    parts.team = LsaTeamOf(number, team_size_);
    parts.space = MakeHostFlatSpace(memory_, **fd_server_, team_size_, 2, kStrideUnit);
    parts.records = MakeHostRecordMemory();
    parts.directory = rank.directory.get();
    rank.symmetric = std::make_unique<SymmetricMemory>(std::move(parts));
    const JointRanks ranks = {rank.bootstrap.get(), peers_, Deadline::AfterSeconds(60)};
    const auto make = [&](uint64_t bytes, int flags) -> std::shared_ptr<const Window> {
      Result<SymmetricMemory::Outcome> made =
          rank.symmetric->Register({.bytes = bytes, .flags = flags}, ranks);
      EXPECT_TRUE(made.ok() && made->window != nullptr);
      return made.ok() ? made->window : nullptr;
    };
    rank.data = make(kDataBytes, NCCL_WIN_STRICT_ORDERING);
    rank.resource = make(4096, 0);
    if (team_size_ == 2 || HasFailure()) return;
    Result<std::unique_ptr<RemoteWindows>> remote =
        RemoteWindows::Connect({.ranks = ranks,
                                .team = LsaTeamOf(number, 1),
                                .loop = loop_->get(),
                                .network = net_,
                                .watch = rank.watch.get()});
    ASSERT_TRUE(remote.ok()) << remote.status().message();
    rank.remote = std::move(remote).value();
    EXPECT_TRUE(rank.remote->Share(*rank.data, false, {}).ok());
    EXPECT_TRUE(rank.remote->Share(*rank.resource, true, {}).ok());
  }

  uint64_t Handle() const { return reinterpret_cast<uint64_t>(ranks_[0].data->handle); }
  // Returns a put of `bytes` bytes from `from` of this rank's part to `to` of the peer's.
  GinOperation Put(uint64_t bytes, uint64_t from, uint64_t to) const {
    GinOperation put = {};
    put.op = device::kGinPut;
    put.bytes = bytes;
    put.from_offset = from, put.from_window = Handle();
    put.to_offset = to, put.to_window = Handle();
    return put;
  }
  // Fills a part of rank 0's data with a pattern, and returns the pattern.
  std::vector<std::byte> Fill(uint64_t at, size_t bytes, int pattern) {
    for (size_t i = 0; i < bytes; ++i)
      ranks_[0].data->own[at + i] = static_cast<std::byte>(pattern + static_cast<int>(i));
    return DataOf(0, at, bytes);
  }
  std::vector<std::byte> DataOf(int rank, uint64_t at, size_t bytes) const {
    const auto begin = ranks_[At(rank)].data->own.begin() + static_cast<ptrdiff_t>(at);
    return {begin, begin + static_cast<ptrdiff_t>(bytes)};
  }

  // Stores a descriptor in a free slot of a queue, as a kernel does.
  void Post(uint32_t queue, const GinOperation& operation) {
    const uint32_t index = record_.pis[queue]++;
    const device::GinDescriptor packed = device::PackGin(operation);
    std::memcpy(SlotOf(queue, index), packed.words, sizeof(packed.words));
  }
  uint64_t* SlotOf(uint32_t queue, uint32_t index) const {
    return record_.queues[queue * kDepth + index % kDepth].words;
  }
  uint32_t Done(uint32_t queue) const {
    return std::atomic_ref<uint32_t>(record_.cis[queue]).load();
  }

  const int team_size_;
  Result<std::unique_ptr<EventLoop>> loop_ = EventLoop::Create("gin_test");
  Result<std::unique_ptr<FdServer>> fd_server_ = InternalError("not made");
  HostMemory memory_;
  LocalJob job_{2};
  const std::vector<PeerInfo> peers_ = std::vector<PeerInfo>(2);
  const std::shared_ptr<MemoryNet> net_ = std::make_shared<MemoryNet>();
  std::array<Rank, 2> ranks_;
  std::unique_ptr<GinExecutor> executor_;
  std::unique_ptr<GinMemory> memory_of_queues_;
  std::unique_ptr<GinQueues> queues_;  // Of context 1, on rank 0.
  device::GinContext record_ = {};
};

// ---- Operands

TEST_F(GinTest, QueuesLeadToAllRanksOrToTheRail) {
  EXPECT_EQ(executor_->PeerOf(0), 0);
  EXPECT_EQ(executor_->PeerOf(1), 1);
  GinPlan rail = PlanOf(3);
  rail.connection = NCCL_GIN_CONNECTION_RAIL;
  Window resource;
  resource.team = {.size = 4, .place = 3, .first = 8};
  const GinOperands operands({.rank = 11,
                              .plan = rail,
                              .resource = std::make_shared<const Window>(resource),
                              .symmetric = nullptr});
  EXPECT_EQ(operands.PeerOf(0), 3);
  EXPECT_EQ(operands.PeerOf(2), 11);
}

TEST_F(GinTest, WrongOperandsAreRefusedWithAReason) {
  struct Mistake {
    const char* part;  // of the reason
    std::function<void(GinOperation&)> make;
  };
  const std::vector<Mistake> mistakes = {
      {"longer than", [](auto& o) { o.bytes = kMaxNetMessageBytes + 1; }},
      {"there is no counter 2", [](auto& o) { o.op |= device::kGinWithCounter, o.counter = 2; }},
      {"a value of 9 bytes", [](auto& o) { o.op |= device::kGinWithValue, o.bytes = 9; }},
      {"unknown kind", [](auto& o) { o.op = 0x100; }},
      {"the source of a put", [](auto& o) { o.from_offset = kDataBytes - 7; }},
      {"the source of a put", [](auto& o) { o.from_window = 4096; }},
      {"the target of a put", [](auto& o) { o.to_offset = kDataBytes; }},
      {"the target of a put", [](auto& o) { o.to_offset = ~uint64_t{0} - 3; }},
      {"the target of a put", [](auto& o) { o.to_window = 0; }},
      {"the source of a get", [](auto& o) { o.op = device::kGinGet, o.from_offset = kDataBytes; }},
      {"the target of a get", [](auto& o) { o.op = device::kGinGet, o.to_offset = kDataBytes; }},
      {"there is no signal 3", [](auto& o) { o.op |= device::kGinSignalInc, o.signal = 3; }},
      {"no multiple of 8",
       [](auto& o) { o.op = device::kGinVaSignal | device::kGinSignalAdd, o.from_offset = 4; }},
      {"a VA signal",
       [](auto& o) {
         o.op = device::kGinVaSignal | device::kGinSignalAdd, o.from_offset = kDataBytes;
       }},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.part);
    GinOperation operation = Put(8, 0, 0);
    EXPECT_TRUE(executor_->Check({1, 1, 0}, operation).ok());
    mistake.make(operation);
    const Status refused = executor_->Check({1, 1, 0}, operation);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find(mistake.part), std::string::npos) << refused.message();
    EXPECT_EQ(executor_->Begin({1, 1, 0}, operation).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(DataOf(1, 0, 64), std::vector<std::byte>(64)) << "a refused put has changed nothing";
}

TEST_F(GinTest, WordsOfContextsAndDescriptorsDoNotOverlap) {
  std::set<std::byte*> places;
  for (uint32_t context = 0; context < 2; ++context) {
    for (uint32_t s = 0; s < 3; ++s)
      places.insert(reinterpret_cast<std::byte*>(executor_->SignalsOf(context) + s));
    for (uint32_t c = 0; c < 2; ++c)
      places.insert(reinterpret_cast<std::byte*>(executor_->CounterOf(context, c)));
    for (uint32_t queue = 0; queue < 2; ++queue)
      for (uint32_t slot = 0; slot < kDepth; ++slot)
        places.insert(ranks_[0].resource->own.data() +
                      executor_->ValueOf({context, queue, slot}).offset);
  }
  EXPECT_EQ(places.size(), 2u * (3 + 2 + 2 * kDepth));
}

// ---- Operations at once

TEST_F(GinTest, PutsReachTheirRankAndRaiseTheSignalsOfTheContext) {
  for (const uint32_t peer : {0u, 1u}) {
    const auto bytes = Fill(100, 33, static_cast<int>(peer) * 50 + 1);
    GinOperation operation = Put(33, 100, 1000);
    operation.op |= device::kGinSignalAdd;
    operation.signal = 2, operation.added = 40;
    ASSERT_TRUE(executor_->Begin({1, peer, 0}, operation).ok());
    EXPECT_EQ(DataOf(static_cast<int>(peer), 1000, 33), bytes);
    EXPECT_EQ(ranks_[peer].Signal(1, 2), 40u);
    EXPECT_EQ(ranks_[peer].Signal(0, 2), 0u);
  }
  EXPECT_EQ(DataOf(1, 999, 1), std::vector<std::byte>(1));
  EXPECT_EQ(DataOf(1, 1033, 1), std::vector<std::byte>(1));
}

TEST_F(GinTest, ValuesGetsAndSignalsInWindows) {
  for (uint64_t bytes = 1; bytes <= 8; ++bytes) {
    GinOperation value = Put(bytes, 0, 16 * bytes);
    value.op |= device::kGinWithValue;
    value.value = 0x1122334455667788, value.from_window = 1;
    ASSERT_TRUE(executor_->Begin({0, 1, 0}, value).ok());
    const uint64_t mask = ~uint64_t{0} >> (64 - 8 * bytes);
    EXPECT_EQ(ranks_[1].Word(*ranks_[1].data, 16 * bytes), value.value & mask) << bytes;
  }
  GinOperation get = Put(8, 16 * 8, 2000);
  get.op = device::kGinGet;
  ASSERT_TRUE(executor_->Begin({0, 1, 0}, get).ok());
  EXPECT_EQ(ranks_[0].Word(*ranks_[0].data, 2000), 0x1122334455667788u);
  GinOperation word = Put(0, 4000, 0);
  word.op = device::kGinVaSignal | device::kGinSignalAdd, word.added = 9;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(executor_->Begin({0, 1, 0}, word).ok());
  EXPECT_EQ(ranks_[1].Word(*ranks_[1].data, 4000), 18u);
  EXPECT_EQ(ranks_[0].Word(*ranks_[0].data, 4000), 0u);
}

TEST_F(GinTest, AThreadDoesAnOperationAtOnceUnlessOthersArePosted) {
  const auto bytes = Fill(0, 16, 3);
  GinOperation operation = Put(16, 0, 64);
  operation.op |= device::kGinWithCounter;
  operation.counter = 1;
  const auto packed = [](const GinOperation& o) { return device::PackGin(o); };
  GinQueues::Driven driven;
  EXPECT_TRUE(queues_->Do(1, packed(operation).words, &driven));
  EXPECT_TRUE(driven.failure.ok());
  EXPECT_EQ(DataOf(1, 64, 16), bytes);
  EXPECT_EQ(ranks_[0].Counter(1, 1), 1u);
  // Behind a posted operation the operation has to be posted as well, but is checked here.
  Post(1, Put(1, 0, 0));
  operation.to_offset = 128;
  EXPECT_FALSE(queues_->Do(1, packed(operation).words, &driven));
  EXPECT_EQ(DataOf(1, 128, 16), std::vector<std::byte>(16));
  EXPECT_TRUE(queues_->Do(0, packed(operation).words, &driven)) << "another queue";
  operation.to_offset = kDataBytes;
  EXPECT_TRUE(queues_->Do(1, packed(operation).words, &driven));
  EXPECT_EQ(driven.failure.code(), Code::kInvalidArgument);
  EXPECT_TRUE(queues_->Do(2, packed(operation).words, &driven));
  EXPECT_NE(driven.failure.message().find("there is no rank 2"), std::string::npos);
}

// ---- Queues

TEST_F(GinTest, DescriptorsAreTakenInOrderRoundTheQueue) {
  uint32_t posted = 0;
  for (int round = 0; round < 5; ++round) {
    for (uint32_t i = 0; i < 3; ++i, ++posted) {
      GinOperation value = Put(4, 0, 0);  // All to one place: the last counts.
      value.op |= device::kGinWithValue | device::kGinWithCounter;
      value.value = posted;
      Post(1, value);
    }
    EXPECT_EQ(Done(1), posted - 3) << "nothing moves before the bell rings";
    const GinQueues::Driven driven = queues_->RingDoorbell(1);
    EXPECT_TRUE(driven.failure.ok()) << driven.failure.message();
    EXPECT_FALSE(driven.under_way);
    EXPECT_EQ(Done(1), posted);
    EXPECT_EQ(Done(0), 0u);
    EXPECT_EQ(ranks_[1].Word(*ranks_[1].data, 0), posted - 1);
    EXPECT_EQ(ranks_[0].Counter(1, 0), posted);
    for (uint32_t slot = 0; slot < kDepth; ++slot)
      for (int w = 0; w < device::GinDescriptor::kUsedWords; ++w)
        EXPECT_EQ(SlotOf(1, slot)[w], 0u) << "the next kernel needs a cleared slot";
  }
}

TEST_F(GinTest, ADescriptorIsTakenWhenAllItsWordsHaveArrived) {
  Fill(0, 8, 77);
  const device::GinDescriptor packed = device::PackGin(Put(8, 0, 8));
  ++record_.pis[1];
  for (const int last : {7, 0, 3}) {
    for (int w = 0; w < device::GinDescriptor::kUsedWords; ++w)
      SlotOf(1, 0)[w] = w == last ? 0 : packed.words[w];
    EXPECT_TRUE(queues_->RingDoorbell(1).failure.ok());
    EXPECT_EQ(Done(1), 0u) << "word " << last << " is missing";
  }
  SlotOf(1, 0)[3] = packed.words[3];
  EXPECT_TRUE(queues_->RingDoorbell(1).failure.ok());
  EXPECT_EQ(Done(1), 1u);
  EXPECT_EQ(DataOf(1, 8, 8), DataOf(0, 0, 8));
}

TEST_F(GinTest, AFailureEndsTheContext) {
  GinOperation wrong = Put(8, kDataBytes, 0);
  Post(1, Put(8, 0, 0));
  Post(1, wrong);
  Post(1, Put(8, 0, 0));
  const GinQueues::Driven driven = queues_->RingDoorbell(1);
  EXPECT_EQ(driven.failure.code(), Code::kInvalidArgument);
  EXPECT_EQ(driven.peer, 1);
  EXPECT_EQ(Done(1), 1u);
  EXPECT_TRUE(queues_->RingDoorbell(1).failure.ok()) << "told once";
  Post(0, Put(8, 0, 0));
  EXPECT_TRUE(queues_->RingDoorbell(0).failure.ok());
  EXPECT_EQ(Done(0), 0u);
  EXPECT_FALSE(queues_->busy());
  EXPECT_TRUE(queues_->RingDoorbell(9).failure.ok()) << "a queue that is none";
}

TEST_F(GinTest, AForeignVersionOfADescriptorIsRefused) {
  Post(1, Put(8, 0, 0));
  SlotOf(1, 0)[0] ^= 1 << 1;
  const GinQueues::Driven driven = queues_->RingDoorbell(1);
  EXPECT_EQ(driven.failure.code(), Code::kInvalidUsage);
  EXPECT_NE(driven.failure.message().find("version 3"), std::string::npos)
      << driven.failure.message();
}

// ---- A rank outside of the team

class GinNetworkTest : public GinTest {
 protected:
  GinNetworkTest() : GinTest(/*team_size=*/1) {}
  void DriveToEnd() {
    int rounds = 0;
    while (queues_->Drive().under_way && rounds < 1000) ++rounds;
    EXPECT_LT(rounds, 1000) << "an operation never ends";
  }
  // Posts a put of a value with a counter.
  void PostValue(uint64_t value, uint64_t to) {
    GinOperation operation = Put(8, 0, to);
    operation.op |= device::kGinWithValue | device::kGinWithCounter | device::kGinSignalInc;
    operation.value = value, operation.added = 1;
    Post(1, operation);
  }
};

// Operations end in any order, and the consumer index counts them in order.
TEST_F(GinNetworkTest, TheConsumerIndexCountsInOrder) {
  net_->held = true;
  for (uint64_t i = 0; i < 3; ++i) PostValue(100 + i, 8 * i);
  EXPECT_TRUE(queues_->RingDoorbell(1).under_way);
  EXPECT_TRUE(queues_->busy());
  EXPECT_EQ(Done(1), 0u);
  EXPECT_EQ(ranks_[0].Counter(1, 0), 0u);
  // Each value has a word of its own until its operation is done.
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(ranks_[1].Word(*ranks_[1].data, 8 * i), 100 + i);
  EXPECT_EQ(ranks_[1].NetworkSignal(1, 0), 3u);
  EXPECT_EQ(ranks_[1].Signal(1, 0), 0u) << "processors add to that word";
  net_->backwards = true;
  net_->held = false;
  queues_->Drive();
  EXPECT_EQ(Done(1), 0u) << "the first is not done";
  net_->backwards = false;
  EXPECT_FALSE(queues_->Drive().under_way);
  EXPECT_EQ(Done(1), 3u);
  EXPECT_EQ(ranks_[0].Counter(1, 0), 3u);
}

TEST_F(GinNetworkTest, AnOperationWithoutRoomIsTakenLater) {
  net_->room = 1;
  net_->held = true;
  PostValue(1, 0);
  PostValue(2, 8);
  EXPECT_TRUE(queues_->RingDoorbell(1).under_way);
  EXPECT_EQ(net_->num_puts, 1);
  EXPECT_NE(SlotOf(1, 1)[0], 0u) << "its descriptor stays in the slot";
  net_->held = false;
  DriveToEnd();
  EXPECT_EQ(net_->num_puts, 2);
  EXPECT_EQ(Done(1), 2u);
  EXPECT_EQ(ranks_[1].Word(*ranks_[1].data, 8), 2u);
}

// A flush is done at its turn, and an operation for the own rank needs no network.
TEST_F(GinNetworkTest, AFlushWaitsForTheOperationsBeforeIt) {
  net_->held = true;
  PostValue(1, 0);
  GinOperation flush = {};
  flush.op = device::kGinFlush;
  Post(1, flush);
  Post(0, Put(8, 0, 8));
  queues_->RingDoorbell(0);
  EXPECT_TRUE(queues_->RingDoorbell(1).under_way);
  EXPECT_EQ(Done(1), 0u);
  EXPECT_EQ(Done(0), 1u);
  net_->held = false;
  DriveToEnd();
  EXPECT_EQ(Done(1), 2u);
}

TEST_F(GinNetworkTest, GetsComeByTheNetwork) {
  const std::vector<std::byte> theirs(24, std::byte{0x5a});
  std::copy(theirs.begin(), theirs.end(), ranks_[1].data->own.begin() + 48);
  GinOperation get = Put(24, 48, 480);
  get.op = device::kGinGet;
  GinQueues::Driven driven;
  EXPECT_FALSE(queues_->Do(1, device::PackGin(get).words, &driven)) << "it has to be posted";
  Post(1, get);
  EXPECT_FALSE(queues_->RingDoorbell(1).under_way);
  EXPECT_EQ(net_->num_gets, 1);
  EXPECT_EQ(DataOf(0, 480, 24), theirs);
}

// A network whose additions are not atomic with those of processors.
class GinNicTest : public GinNetworkTest {
 protected:
  GinNicTest() { net_->adds_alone = true; }
  GinOperation Signal(uint64_t window) const {
    GinOperation signal = {};
    signal.op = device::kGinVaSignal | device::kGinSignalAdd;
    signal.from_window = window, signal.from_offset = 4000;
    signal.added = 9;
    return signal;
  }
};

TEST_F(GinNicTest, SignalsInWindowsGoByTheNetworkToTheOwnRankToo) {
  const GinOperation signal = Signal(Handle());
  GinQueues::Driven driven;
  EXPECT_FALSE(queues_->Do(0, device::PackGin(signal).words, &driven)) << "it has to be posted";
  EXPECT_TRUE(queues_->Do(0, device::PackGin(Put(8, 0, 8)).words, &driven));
  for (int i = 0; i < 2; ++i) Post(0, signal);
  net_->held = true;
  EXPECT_TRUE(queues_->RingDoorbell(0).under_way);
  EXPECT_EQ(net_->num_puts, 2);
  EXPECT_EQ(ranks_[0].Word(*ranks_[0].data, 4000), 18u);
  // A later operation of the processor comes behind all, as a flush tells.
  Fill(0, 8, 77);
  Post(0, Put(8, 0, 16));
  EXPECT_TRUE(queues_->RingDoorbell(0).under_way);
  EXPECT_EQ(net_->num_flushes, 0);
  EXPECT_EQ(ranks_[0].Word(*ranks_[0].data, 16), 0u);
  net_->held = false;
  DriveToEnd();
  EXPECT_EQ(net_->num_flushes, 1) << "behind the last of them";
  EXPECT_EQ(DataOf(0, 16, 8), DataOf(0, 0, 8));
  EXPECT_EQ(Done(0), 3u);
}

TEST_F(GinNicTest, SignalsInOtherWindowsAreRefused) {
  const auto resource = reinterpret_cast<uint64_t>(ranks_[0].resource->handle);
  GinQueues::Driven driven;
  EXPECT_TRUE(queues_->Do(0, device::PackGin(Signal(resource)).words, &driven));
  EXPECT_EQ(driven.failure.code(), Code::kInvalidArgument);
  EXPECT_NE(driven.failure.message().find("NCCL_WIN_STRICT_ORDERING"), std::string::npos);
}

TEST_F(GinNetworkTest, DroppedOperationsBreakTheirConnection) {
  net_->held = true;
  PostValue(1, 0);
  EXPECT_TRUE(queues_->RingDoorbell(1).under_way);
  queues_->Drop();
  EXPECT_FALSE(queues_->busy());
  RmaConnection& connection = ranks_[0].remote->connection(1);
  EXPECT_EQ(connection.Progress().status().code(), Code::kRemoteError);
}

}  // namespace
}  // namespace tutti
