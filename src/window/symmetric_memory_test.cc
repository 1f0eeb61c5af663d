// Registers and ends windows on several ranks, which are threads, over a flat space that only notes
// what is mapped where. The ranks must come to the same conclusions.

#include "window/symmetric_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operations/testing/local_bootstrap.h"
#include "testing/ranks.h"

namespace tutti {
namespace {

using testing::LocalBootstrap;
using testing::LocalJob;

constexpr uint64_t kUnit = 64 << 10;  // The granularity of mappings.
constexpr uint64_t kGiB = uint64_t{1} << 30;

// The flat space of one rank. Addresses are numbers that nobody follows.
class NotedSpace final : public FlatSpace {
 public:
  explicit NotedSpace(int rank) : rank_(static_cast<uint64_t>(rank)) {}

  // Makes memory of the rank, for a window to lie in, of these pieces.
  std::byte* Make(const std::vector<uint64_t>& pieces) {
    uint64_t bytes = 0;
    for (const uint64_t piece : pieces) bytes += piece;
    allocations.push_back({++last_id_, Address(next_address_), bytes, pieces});
    next_address_ += bytes + kGiB;
    return allocations.back().base;
  }

  uint64_t NeededStride() const override { return needed_stride; }
  uint64_t LongestStride() const override { return longest_stride; }
  Status Reserve(uint64_t bytes) override {
    reserved = bytes;
    return Status::Ok();
  }
  std::byte* base() const override { return Address(uint64_t{0x100} << 32); }
  uint64_t granularity() const override { return kUnit; }
  Result<Allocation> Find(std::span<const std::byte> buffer) override {
    TUTTI_TRY(Status(why_not));
    for (const Allocation& allocation : allocations)
      if (buffer.data() >= allocation.base &&
          buffer.data() + buffer.size() <= allocation.base + allocation.bytes)
        return allocation;
    return InvalidArgument("the buffer is no memory of this rank");
  }
  Result<Allocation> Allocate(uint64_t bytes) override {
    Make({bytes});
    ++num_allocated;
    return allocations.back();
  }
  void Free(const Allocation& allocation) override {
    std::erase_if(allocations, [&](const Allocation& a) { return a.id == allocation.id; });
    --num_allocated;
  }
  Result<RemoteHandle> Export(const Allocation& allocation, size_t piece) override {
    RemoteHandle handle;
    handle.allocation_id = allocation.id;
    handle.offer_id = rank_ << 40 | allocation.id << 16 | piece;
    handle.size = allocation.pieces[piece];
    exported.insert(handle.offer_id);
    most_exported = std::max(most_exported, exported.size());
    return handle;
  }
  void EndExport(const RemoteHandle& handle) override { exported.erase(handle.offer_id); }
  Status Map(uint64_t at, const RemoteHandle& piece, const WaitLimits&) override {
    if (fails_to_map) return SystemError("no room for a mapping");
    // No mapping lies across another.
    const auto after = mapped.lower_bound(at);
    EXPECT_TRUE(after == mapped.end() || after->first >= at + piece.size);
    EXPECT_TRUE(after == mapped.begin() ||
                std::prev(after)->first + std::prev(after)->second.bytes <= at);
    EXPECT_LE(at + piece.size, reserved);
    mapped[at] = {piece.offer_id, piece.size};
    return Status::Ok();
  }
  void Unmap(uint64_t at, uint64_t bytes) override {
    EXPECT_EQ(mapped.count(at), 1u) << at;
    EXPECT_EQ(mapped[at].bytes, bytes) << at;
    mapped.erase(at);
  }

  struct Mapping {
    uint64_t offer_id = 0;
    uint64_t bytes = 0;
  };
  uint64_t needed_stride = kStrideUnit, longest_stride = 8 * kStrideUnit;
  uint64_t reserved = 0;
  Status why_not = {};
  bool fails_to_map = false;
  int num_allocated = 0;
  std::vector<Allocation> allocations;
  std::map<uint64_t, Mapping> mapped;  // By the place in the flat space.
  std::set<uint64_t> exported;
  size_t most_exported = 0;

 private:
  static std::byte* Address(uint64_t number) { return reinterpret_cast<std::byte*>(number); }
  const uint64_t rank_;
  uint64_t last_id_ = 0;
  uint64_t next_address_ = uint64_t{0x40} << 32;
};

// One rank of a job.
class Rank {
 public:
  Rank(LocalJob& job, const std::vector<PeerInfo>& peers, int rank, int team_size)
      : number(rank),
        space(new NotedSpace(rank)),
        bootstrap_(job, rank),
        peers_(peers),
        memory(Parts(rank, team_size)) {}

  SymmetricMemory::Outcome Register(const SymmetricMemory::Request& request) {
    Result<SymmetricMemory::Outcome> outcome =
        memory.Register(request, {&bootstrap_, peers_, Deadline::AfterSeconds(60)});
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? *outcome : SymmetricMemory::Outcome();
  }
  std::shared_ptr<const Window> Register(std::byte* buffer, uint64_t bytes) {
    const SymmetricMemory::Outcome outcome = Register({.buffer = buffer, .bytes = bytes});
    EXPECT_EQ(outcome.refusal.message(), "");
    EXPECT_NE(outcome.window, nullptr);
    return outcome.window;
  }
  // Returns the values of all ranks.
  template <class T>
  std::vector<T> Gather(const T& mine) {
    std::vector<T> all(peers_.size());
    all[static_cast<size_t>(number)] = mine;
    EXPECT_TRUE(bootstrap_.AllGather(all.data(), sizeof(T), Deadline::Never()).ok());
    return all;
  }
  template <class T>
  void ExpectSameOnAll(const T& mine, const char* what) {
    for (const T& other : Gather(mine)) EXPECT_EQ(other, mine) << what;
  }

  const int number;
  NotedSpace* const space;  // Owned by the memory.

 private:
  SymmetricMemory::Parts Parts(int rank, int team_size) {
    SymmetricMemory::Parts parts;
    parts.bootstrap = &bootstrap_;
    parts.peers = peers_;
    parts.team = LsaTeamOf(rank, team_size);
    parts.space.reset(space);
    parts.records = MakeHostRecordMemory();
    parts.directory = &directory_;
    return parts;
  }
  LocalBootstrap bootstrap_;
  const std::vector<PeerInfo>& peers_;
  WindowDirectory directory_;

 public:
  SymmetricMemory memory;
};

void RunRanks(int num_ranks, int team_size, const std::function<void(Rank&)>& body) {
  LocalJob job(num_ranks);
  std::vector<PeerInfo> peers(static_cast<size_t>(num_ranks));
  testing::RunRankThreads(num_ranks, [&](int number) {
    Rank rank(job, peers, number, team_size);
    body(rank);
    // All windows have gone, and with them all mappings and exports.
    rank.Gather(0);
    EXPECT_EQ(rank.space->exported.size(), 0u);
  });
}

// Returns the offer of a rank's allocation.
uint64_t OfferOf(int rank, uint64_t allocation, uint64_t piece = 0) {
  return static_cast<uint64_t>(rank) << 40 | allocation << 16 | piece;
}

TEST(SymmetricMemoryTest, AWindowLiesAtOneOffsetInEachSliceOfTheTeam) {
  RunRanks(4, 2, [](Rank& rank) {
    // The parts have different lengths.
    const uint64_t bytes = 100'000 + static_cast<uint64_t>(rank.number);
    const auto window = rank.Register(rank.space->Make({1 << 20}), bytes);
    rank.ExpectSameOnAll(window->slice_offset, "the offset");
    rank.ExpectSameOnAll(window->memory, "the memory");
    rank.ExpectSameOnAll(window->stride, "the stride");
    for (uint64_t r = 0; r < 4; ++r) {
      EXPECT_EQ(window->bytes[r], 100'000 + r);
      EXPECT_TRUE(window->Holds(static_cast<int>(r), 99'999, 1 + r));
      EXPECT_FALSE(window->Holds(static_cast<int>(r), 99'999, 2 + r));
    }
    EXPECT_EQ(rank.space->reserved, 2 * window->stride);
    for (int place = 0; place < 2; ++place) {
      const uint64_t at = static_cast<uint64_t>(place) * window->stride + window->slice_offset;
      EXPECT_EQ(rank.space->mapped[at].offer_id, OfferOf(window->team.first + place, 1));
      EXPECT_EQ(window->At(place, 5), rank.space->base() + at + 5);
    }
    EXPECT_EQ(rank.space->mapped.size(), 2u);
    EXPECT_EQ(rank.memory.RecordOf(*window).lsaRank, rank.number % 2);
    EXPECT_EQ(rank.memory.RecordOf(*window).stride4G, window->stride / kStrideUnit);
  });
}

TEST(SymmetricMemoryTest, WindowsInOneMemoryShareItsMappings) {
  RunRanks(3, 3, [](Rank& rank) {
    std::byte* const base = rank.space->Make({1 << 20});
    const auto first = rank.Register(base, 4096);
    const auto second = rank.Register(base + 8192, 4096);
    EXPECT_EQ(second->memory, first->memory);
    EXPECT_EQ(second->slice_offset, first->slice_offset + 8192);
    EXPECT_EQ(rank.space->mapped.size(), 3u);
    // Where one rank brings other memory, all ranks map anew.
    std::byte* const other = rank.number == 1 ? rank.space->Make({1 << 20}) : base;
    const auto third = rank.Register(other, 4096);
    EXPECT_NE(third->memory, first->memory);
    EXPECT_NE(third->slice_offset, first->slice_offset);
    EXPECT_EQ(rank.space->mapped.size(), 6u);
    EXPECT_TRUE(rank.memory.Deregister(first->handle).ok());
    EXPECT_EQ(rank.space->mapped.size(), 6u) << "the second window is still there";
    EXPECT_TRUE(rank.memory.Deregister(second->handle).ok());
    EXPECT_EQ(rank.space->mapped.size(), 3u);
    EXPECT_TRUE(rank.memory.Deregister(third->handle).ok());
    EXPECT_EQ(rank.space->mapped.size(), 0u);
  });
}

// Offsets are taken again only when every rank has said that its mappings are gone.
TEST(SymmetricMemoryTest, AnOffsetIsUsedAgainWhenAllRanksHaveGivenItUp) {
  RunRanks(3, 3, [](Rank& rank) {
    const auto first = rank.Register(nullptr, kUnit);
    EXPECT_EQ(rank.space->num_allocated, 1);
    const auto end_first = [&] { EXPECT_TRUE(rank.memory.Deregister(first->handle).ok()); };
    if (rank.number != 2) end_first();
    const auto second = rank.Register(nullptr, kUnit);
    EXPECT_NE(second->slice_offset, first->slice_offset);
    if (rank.number == 2) end_first();
    const auto third = rank.Register(nullptr, kUnit);
    EXPECT_EQ(third->slice_offset, first->slice_offset);
    EXPECT_NE(third->memory, first->memory);
    EXPECT_EQ(rank.space->num_allocated, 2);
  });
}

TEST(SymmetricMemoryTest, TheStrideIsTheLargestNeededAndAtMostTheShortestPossible) {
  RunRanks(3, 3, [](Rank& rank) {
    rank.space->needed_stride = (rank.number == 1 ? 5 : 2) * kStrideUnit;
    EXPECT_EQ(rank.Register(nullptr, 4096)->stride, 5 * kStrideUnit);
  });
  RunRanks(3, 3, [](Rank& rank) {
    rank.space->needed_stride = 5 * kStrideUnit;
    rank.space->longest_stride = (rank.number == 2 ? 3 : 8) * kStrideUnit;
    EXPECT_EQ(rank.Register(nullptr, 4096)->stride, 3 * kStrideUnit);
    // The slice is full: the reason names the setting, and a window that fits is taken.
    const SymmetricMemory::Outcome full = rank.Register({.bytes = 3 * kStrideUnit});
    EXPECT_EQ(full.refusal.code(), Code::kInvalidUsage);
    EXPECT_NE(full.refusal.message().find("NCCL_WIN_STRIDE"), std::string::npos);
    EXPECT_EQ(rank.space->num_allocated, 1);
    EXPECT_NE(rank.Register(nullptr, kStrideUnit), nullptr);
  });
}

// A mistake of one rank refuses the window on all ranks, with one reason.
TEST(SymmetricMemoryTest, AMistakeOfOneRankRefusesTheWindowOfAll) {
  struct Mistake {
    const char* part;  // of the sentence
    std::function<void(Rank&, SymmetricMemory::Request&)> make;
  };
  const std::vector<Mistake> mistakes = {
      {"flags 0x2", [](Rank&, auto& request) { request.flags = 2; }},
      {"the caller's mistake",
       [](Rank&, auto& request) { request.wrong = InvalidArgument("the caller's mistake"); }},
      {"no memory of this rank",
       [](Rank&, auto& request) { request.buffer = reinterpret_cast<std::byte*>(4096); }},
      {"different places", [](Rank&, auto& request) { request.buffer += 4096; }},
      {"no multiple of", [](Rank&, auto& request) { request.buffer += 8; }},
      {"contexts 2 instead of contexts 1",
       [](Rank&, auto& request) { request.alike = 8, request.said = "signals 3,contexts 2"; }},
      {"a stride of 0 bytes", [](Rank& rank, auto&) { rank.space->needed_stride = 0; }},
      {"a stride of 4096 bytes", [](Rank& rank, auto&) { rank.space->longest_stride = 4096; }},
      {"offers 2 pieces",
       [](Rank& rank, auto&) {
         rank.space->allocations[0].pieces = {1 << 20, 0};
       }},
      {"offers 1 pieces", [](Rank& rank, auto&) { rank.space->allocations[0].pieces = {4096}; }},
      {"mapping the memory of rank 0", [](Rank& rank, auto&) { rank.space->fails_to_map = true; }},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.part);
    RunRanks(3, 3, [&](Rank& rank) {
      std::byte* const base = rank.space->Make({1 << 20});
      SymmetricMemory::Request request = {
          .buffer = base, .bytes = 4096, .alike = 7, .said = "signals 3,contexts 1"};
      if (rank.number == 1) mistake.make(rank, request);
      const SymmetricMemory::Outcome outcome = rank.Register(request);
      EXPECT_EQ(outcome.window, nullptr);
      const std::string reason(outcome.refusal.message());
      EXPECT_NE(reason.find(mistake.part), std::string::npos) << reason;
      EXPECT_NE(reason.find("rank 1"), std::string::npos) << reason;
      rank.ExpectSameOnAll(std::hash<std::string>()(reason), "the reason");
      EXPECT_EQ(rank.space->mapped.size(), 0u);
      // The ranks go on as if nothing had happened.
      if (rank.number == 1) {
        rank.space->needed_stride = rank.space->longest_stride = kStrideUnit;
        rank.space->allocations[0].pieces = {1 << 20};
        rank.space->fails_to_map = false;
      }
      EXPECT_EQ(rank.Register(base, 4096)->slice_offset % kUnit, 0u);
    });
  }
}

TEST(SymmetricMemoryTest, MemoryThatOthersCannotMapMakesNoWindow) {
  for (const bool allocates : {false, true}) {
    RunRanks(3, 3, [&](Rank& rank) {
      if (rank.number == 2) rank.space->why_not = InvalidUsage("malloc made it");
      SymmetricMemory::Request request = {.buffer = rank.space->Make({1 << 20}), .bytes = 4096};
      // The rank that let the library allocate would not get its memory.
      if (allocates && rank.number == 0) request.buffer = nullptr;
      const SymmetricMemory::Outcome outcome = rank.Register(request);
      EXPECT_EQ(outcome.window, nullptr);
      const Status& reason = allocates ? outcome.refusal : outcome.why_none;
      EXPECT_NE(reason.message().find("malloc made it"), std::string::npos) << reason.message();
      EXPECT_EQ((allocates ? outcome.why_none : outcome.refusal).message(), "");
      EXPECT_EQ(rank.space->num_allocated, 0);
    });
  }
}

// Ranks have different numbers of pieces, more than one exchange carries.
TEST(SymmetricMemoryTest, PiecesLieBehindOneAnother) {
  RunRanks(3, 3, [](Rank& rank) {
    const std::vector<size_t> numbers = {1, 40, 17};
    const auto pieces_of = [&](int r) {
      std::vector<uint64_t> pieces;
      for (size_t i = 0; i < numbers[static_cast<size_t>(r)]; ++i)
        pieces.push_back(kUnit * (1 + i % 3));
      return pieces;
    };
    const auto window = rank.Register(rank.space->Make(pieces_of(rank.number)), 4096);
    size_t mapped = 0;
    for (int place = 0; place < 3; ++place) {
      uint64_t at = static_cast<uint64_t>(place) * window->stride + window->slice_offset;
      const std::vector<uint64_t> pieces = pieces_of(place);
      for (size_t i = 0; i < pieces.size(); ++i) {
        EXPECT_EQ(rank.space->mapped[at].offer_id, OfferOf(place, 1, i)) << place << " " << i;
        at += pieces[i];
        ++mapped;
      }
    }
    EXPECT_EQ(rank.space->mapped.size(), mapped);
    EXPECT_EQ(rank.space->exported.size(), 0u);
    EXPECT_LE(rank.space->most_exported, 32u) << "each export holds a descriptor";
    // A later window in the first pieces shares the mappings.
    EXPECT_EQ(rank.Register(window->own.data(), kUnit)->memory, window->memory);
    EXPECT_EQ(rank.space->mapped.size(), mapped);
  });
}

TEST(SymmetricMemoryTest, WindowsAreFoundByHandleBytesAndOffset) {
  RunRanks(2, 2, [](Rank& rank) {
    // More windows than places for quick look-ups.
    std::vector<std::shared_ptr<const Window>> windows;
    std::byte* const base = rank.space->Make({8 << 20});
    for (size_t i = 0; i < 300; ++i) windows.push_back(rank.Register(base + i * 8192, 4096));
    for (size_t i = 0; i < windows.size(); ++i) {
      const Window& window = *windows[i];
      EXPECT_EQ(*rank.memory.Lookup(window.handle), &window);
      EXPECT_EQ(rank.memory.Find(window.handle)->get(), &window);
      EXPECT_EQ(rank.memory.FindOwn({base + i * 8192 + 1, 4095}).get(), &window);
      EXPECT_EQ(rank.memory.FindOwn({base + i * 8192 + 1, 4096}), nullptr);
      EXPECT_EQ(*rank.memory.OwnAt(window.slice_offset + 7, 4089), window.At(rank.number, 7));
      EXPECT_EQ(rank.memory.OwnAt(window.slice_offset + 7, 4090).status().code(),
                Code::kInvalidArgument);
      EXPECT_EQ(rank.memory.OwnAt(window.slice_offset + 4096, 1).status().code(),
                Code::kInvalidArgument);
    }
    const ncclWindow_t gone = windows[17]->handle;
    EXPECT_TRUE(rank.memory.Deregister(gone).ok());
    EXPECT_EQ(rank.memory.Deregister(gone).code(), Code::kInvalidArgument);
    EXPECT_EQ(rank.memory.Lookup(gone).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(rank.memory.Lookup(nullptr).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(*rank.memory.Lookup(windows[18]->handle), windows[18].get());
  });
}

// Each rank ends windows in an order of its own. The offsets stay equal, and no two memories
// overlap, which NotedSpace checks.
TEST(SymmetricMemoryTest, RandomOrdersOfEndsKeepTheRanksAlike) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    RunRanks(3, 3, [&](Rank& rank) {
      std::mt19937 common(seed), own(seed * 10 + static_cast<uint32_t>(rank.number));
      std::vector<std::shared_ptr<const Window>> windows;
      for (int step = 0; step < 60; ++step) {
        const uint64_t bytes = 1 + common() % (4 * kUnit);
        windows.push_back(rank.Register(nullptr, bytes));
        rank.ExpectSameOnAll(windows.back()->slice_offset, "the offset");
        while (windows.size() > 4 || (!windows.empty() && own() % 3 == 0)) {
          std::swap(windows[own() % windows.size()], windows.back());
          EXPECT_TRUE(rank.memory.Deregister(windows.back()->handle).ok());
          windows.pop_back();
        }
      }
      EXPECT_EQ(rank.space->num_allocated, static_cast<int>(windows.size()));
      for (const auto& window : windows) EXPECT_TRUE(rank.memory.Deregister(window->handle).ok());
      EXPECT_EQ(rank.space->mapped.size(), 0u);
    });
  }
}

}  // namespace
}  // namespace tutti
