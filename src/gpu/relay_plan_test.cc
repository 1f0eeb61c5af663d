#include "gpu/relay_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <tuple>

namespace tutti {
namespace {

constexpr size_t kSlot = 2 << 20;

IssuedTask Message(bool is_send, int peer, size_t count, std::byte* buffer) {
  IssuedTask entry;
  entry.task.collective = Collective::kSendRecv;
  entry.task.is_send = is_send;
  entry.task.root = peer;
  entry.task.count = count;
  entry.task.send = is_send ? buffer : nullptr;
  entry.task.recv = is_send ? nullptr : buffer;
  return entry;
}

void Carry(const std::vector<cuda::CopyPiece>& pieces) {
  for (const auto& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

// A piece of a message as both ends know it: sender, receiver, number in its pair.
using Name = std::tuple<int, int, size_t>;

// All ranks work at their slots at once; a rank goes on to the next when the other end of each of
// its pieces has been in hand at the same time or before. With one order of all pieces that ends,
// with orders of their own ranks would soon wait for one another.
void ExpectEnds(const std::vector<RelayPlan>& plans, size_t channel) {
  const int n = static_cast<int>(plans.size());
  std::vector<std::byte> memory(kSlot);
  // Which slotful of a rank holds which end of a piece.
  std::vector<std::vector<std::vector<Name>>> holds(static_cast<size_t>(n));
  std::map<Name, std::pair<size_t, size_t>> place;  // of the sending and the receiving end
  for (int r = 0; r < n; ++r) {
    std::map<std::pair<int, bool>, size_t> seen;
    const RelayPlan& plan = plans[static_cast<size_t>(r)];
    for (size_t c = 0; c < plan.num_chunks(channel); ++c) {
      holds[static_cast<size_t>(r)].emplace_back();
      size_t bytes = 0;
      for (const Task& task : plan.Chunk(channel, c, memory.data()).tasks) {
        const size_t number = seen[{task.root, task.is_send}]++;
        const Name name = task.is_send ? Name(r, task.root, number) : Name(task.root, r, number);
        holds[static_cast<size_t>(r)].back().push_back(name);
        (task.is_send ? place[name].first : place[name].second) = c;
        bytes += (task.count + 63) / 64 * 64;
      }
      ASSERT_LE(bytes, kSlot);
    }
  }
  std::vector<size_t> at(static_cast<size_t>(n));
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < at.size(); ++r) {
      if (at[r] == holds[r].size()) continue;
      const bool through =
          std::all_of(holds[r][at[r]].begin(), holds[r][at[r]].end(), [&](const Name& name) {
            const auto [from, to, number] = name;
            return at[static_cast<size_t>(from)] >= place[name].first &&
                   at[static_cast<size_t>(to)] >= place[name].second;
          });
      if (!through) continue;
      ++at[r];
      moved = true;
    }
  }
  for (size_t r = 0; r < at.size(); ++r) EXPECT_EQ(at[r], holds[r].size()) << "rank " << r;
}

TEST(RelayMessagesTest, NothingWaitsInACircle) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random(seed + 1);
    const int n = 2 + static_cast<int>(random() % 5);
    const size_t channels = 1 + seed % 3;
    std::vector<std::vector<IssuedTask>> groups(static_cast<size_t>(n));
    for (unsigned i = 0; i < 5 + random() % 40; ++i) {
      const int from = static_cast<int>(random() % static_cast<unsigned>(n));
      const int to = static_cast<int>(random() % static_cast<unsigned>(n));
      if (from == to) continue;
      const size_t count = random() % 3 == 0 ? random() % (5 << 20) : random() % 1000;
      auto& sends = groups[static_cast<size_t>(from)];
      auto& receives = groups[static_cast<size_t>(to)];
      sends.push_back(Message(true, to, count, nullptr));
      receives.push_back(Message(false, from, count, nullptr));
    }
    std::vector<RelayPlan> plans;
    for (int r = 0; r < n; ++r)
      plans.emplace_back(groups[static_cast<size_t>(r)], RelayPlan::Place{r, n, kSlot, channels});
    for (size_t channel = 0; channel < channels; ++channel) ExpectEnds(plans, channel);
  }
}

TEST(RelayMessagesTest, PiecesCoverAMessage) {
  std::vector<std::byte> data(3 << 20), slot(kSlot), got(data.size());
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 >> 3);
  const std::vector<IssuedTask> out = {Message(true, 1, data.size(), data.data())};
  const std::vector<IssuedTask> in = {Message(false, 0, data.size(), got.data())};
  constexpr size_t kChannels = 3;
  const RelayPlan sender(out, {0, 2, kSlot, kChannels}), receiver(in, {1, 2, kSlot, kChannels});
  for (size_t channel = 0; channel < kChannels; ++channel) {
    ASSERT_EQ(sender.num_chunks(channel), receiver.num_chunks(channel));
    EXPECT_GT(sender.num_chunks(channel), 0u);
    for (size_t c = 0; c < sender.num_chunks(channel); ++c) {
      // Both slots are one: what is sent lies where it is awaited.
      Carry(sender.Chunk(channel, c, slot.data()).in);
      Carry(receiver.Chunk(channel, c, slot.data()).out);
    }
  }
  EXPECT_EQ(got, data);
}

// A collective of one rank leaves everything as it is, whatever the chunks.
TEST(RelayPlanTest, ChunksOfOneRankCopyTheirInput) {
  std::vector<int32_t> in(3'000'001), out(in.size());
  std::vector<std::byte> slot(kSlot);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int32_t>(i);
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kBroadcast, Collective::kReduce, Collective::kAlltoAll, Collective::kGather,
        Collective::kScatter}) {
    std::fill(out.begin(), out.end(), -1);
    Task task;
    task.collective = collective;
    task.type = DataType::kInt32;
    task.send = in.data();
    task.recv = out.data();
    task.count = in.size();
    const RelayPlan plan(task, {0, 1, kSlot, 2});
    EXPECT_GT(plan.num_chunks(1), 1u);
    for (size_t c = 0; c < plan.num_chunks(0) + plan.num_chunks(1); ++c) {
      const RelayChunk chunk = plan.Chunk(c % 2, c / 2, slot.data());
      Carry(chunk.in);
      const Task& host = chunk.tasks[0];
      const auto* to = static_cast<std::byte*>(host.recv);
      ASSERT_LE(to + host.count * 4, slot.data() + kSlot) << tutti::Name(collective);
      if (host.send != host.recv) std::memmove(host.recv, host.send, host.count * 4);
      Carry(chunk.out);
    }
    EXPECT_EQ(out, in) << tutti::Name(collective);
  }
}

TEST(RelayPlanTest, ManyRanksStillFitTheSlot) {
  for (const Collective collective : {Collective::kAlltoAll, Collective::kAllGather}) {
    Task task;
    task.collective = collective;
    task.type = DataType::kFloat64;
    task.count = 100'000;
    const RelayPlan plan(task, {3, 300, kSlot, 1});
    std::vector<std::byte> memory(kSlot);
    std::byte* const slot = memory.data();
    size_t most = 0;
    for (const auto& piece : plan.Chunk(0, 0, slot).in)
      most = std::max(most, static_cast<size_t>(piece.to - slot) + piece.bytes);
    for (const auto& piece : plan.Chunk(0, 0, slot).out)
      most = std::max(most, static_cast<size_t>(piece.from - slot) + piece.bytes);
    EXPECT_LE(most, kSlot);
    EXPECT_GT(most, kSlot / 2);
  }
}

}  // namespace
}  // namespace tutti
