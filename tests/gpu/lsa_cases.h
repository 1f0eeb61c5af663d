#pragma once

// Cases of lsa_test.cu: teams, groups of threads, pointers, barriers of memory, exchanges.

#include "../device/gin_litmus_kernels.h"
#include "kernel_cases.h"

namespace lsa_cases {

using namespace kernel_cases;

constexpr unsigned kThreads = 128;     // of a block on GPUs
constexpr unsigned kHostThreads = 64;  // on hosts, where groups of warps are needed
constexpr int kBlocks = 4;             // of a grid, at most
constexpr int kBarriers = 8;           // of each kind
constexpr int kContexts = 2, kSignals = 8;
constexpr int kExchangeElements = 4;  // for each rank
constexpr size_t kWindowBytes = size_t{8} << 20;
constexpr size_t kProbe = 500;  // the byte whose addresses the host is asked for

// The argument of a kernel.
struct Args {
  ncclDevComm comm;
  ncclWindow_t window, second;         // of kWindowBytes each, of zeros when a case begins
  ncclLsaBarrierHandle own_lsa;        // kBarriers barriers of the LSA team
  ncclGinBarrierHandle own_rail;       // of the rail
  ncclGinBarrierHandle own_world;      // and of the world
  ncclLLA2AHandle exchange, wrapping;  // each of kBlocks exchanges of small elements
  ncclLLA2AHandle wide;                // one of an element for each thread and rank
  ncclDevResourceHandle buffer;        // 4096 bytes
  // The same facts as the host has them.
  ncclTeam world, lsa, rail;
  void* base;                     // where this rank registered `window`
  void* of_lsa_rank[kMostRanks];  // byte kProbe of `window`
  void* of_rank[kMostRanks];      // null for a rank of another LSA team
  Notes* notes;
  tutti::testing::LitmusNotes* litmus;
  unsigned long long number;
  int launch;
};

using Word = unsigned long long;

// Word `index` of a window on rank `peer` of the LSA team.
NCCL_DEVICE_INLINE Word* WordOf(ncclWindow_t window, int peer, size_t index) {
  return static_cast<Word*>(ncclGetLsaPointer(window, index * sizeof(Word), peer));
}
NCCL_DEVICE_INLINE Word* OwnWord(ncclWindow_t window, size_t index) {
  return static_cast<Word*>(ncclGetLocalPointer(window, index * sizeof(Word)));
}
NCCL_DEVICE_INLINE Word Load(Word* word, cuda::memory_order order = cuda::memory_order_relaxed) {
  return cuda::atomic_ref<Word>(*word).load(order);
}
NCCL_DEVICE_INLINE void Store(Word* word, Word value,
                              cuda::memory_order order = cuda::memory_order_relaxed) {
  cuda::atomic_ref<Word>(*word).store(value, order);
}
NCCL_DEVICE_INLINE int Thread() { return static_cast<int>(threadIdx.x); }
NCCL_DEVICE_INLINE int Threads() { return static_cast<int>(blockDim.x); }

// A time-out that is never reached, and a short time-out that is longer than any rank is late. In
// cycles of a GPU, or nanoseconds.
constexpr uint64_t kLong = uint64_t{100'000'000'000};
constexpr uint64_t kShort = uint64_t{20'000'000};

// -------------------------------------------------------------------------------------------------
// Teams
// -------------------------------------------------------------------------------------------------

NCCL_DEVICE_INLINE bool SameTeam(ncclTeam a, ncclTeam b) {
  return a.nRanks == b.nRanks && a.rank == b.rank && a.stride == b.stride;
}

// Compares teams with plain arithmetic and with the host's facts.
__global__ void Teams(Args a) {
  const ncclDevComm& comm = a.comm;
  const ncclTeam world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
  EXPECT(a.notes, SameTeam(world, a.world) && SameTeam(lsa, a.lsa) && SameTeam(rail, a.rail));
  EXPECT_EQUAL(a.notes, lsa.nRanks * rail.nRanks, comm.nRanks);
  const int first = comm.rank / lsa.nRanks * lsa.nRanks;
  for (int i = 0; i < lsa.nRanks; ++i) {
    EXPECT_EQUAL(a.notes, ncclTeamRankToWorld(comm, lsa, i), first + i);
    EXPECT_EQUAL(a.notes, ncclTeamRankToLsa(comm, lsa, i), i);
  }
  for (int i = 0; i < rail.nRanks; ++i) {
    const int rank = i * lsa.nRanks + comm.rank % lsa.nRanks;
    EXPECT_EQUAL(a.notes, ncclTeamRankToWorld(comm, rail, i), rank);
    EXPECT_EQUAL(a.notes, ncclTeamRankToTeam(rail, world, rank), i);
  }
  for (int rank = 0; rank < comm.nRanks; ++rank) {
    EXPECT_EQUAL(a.notes, ncclTeamRankIsMember(lsa, world, rank),
                 rank / lsa.nRanks * lsa.nRanks == first);
    EXPECT_EQUAL(a.notes, ncclTeamRankIsMember(rail, world, rank),
                 rank % lsa.nRanks == comm.rank % lsa.nRanks);
  }
  int index = 0;
  for (int rank = 0; rank < comm.nRanks; ++rank) {
    if (rank / lsa.nRanks * lsa.nRanks == first) continue;
    EXPECT_EQUAL(a.notes, ncclTeamRankInDifference(world, lsa, index), rank);
    ++index;
  }
  const ncclTeam inner = ncclTeamInnerFactor(world, lsa.nRanks);
  const ncclTeam outer = ncclTeamOuterFactor(world, lsa.nRanks);
  EXPECT(a.notes, SameTeam(inner, lsa) && SameTeam(outer, rail));
}

// -------------------------------------------------------------------------------------------------
// Groups of threads
// -------------------------------------------------------------------------------------------------

constexpr uint32_t kSomeLanes = 0x0000f00f;

NCCL_DEVICE_INLINE bool IsOfSomeLanes() { return (kSomeLanes >> (Thread() % 32) & 1) != 0; }

template <typename Coop>
NCCL_DEVICE_INLINE void ExpectPlace(const Args& a, Coop coop, int rank, int size) {
  EXPECT_EQUAL(a.notes, static_cast<int>(coop.thread_rank()), rank);
  EXPECT_EQUAL(a.notes, static_cast<int>(coop.size()), size);
  EXPECT_EQUAL(a.notes, static_cast<int>(coop.num_threads()), size);
}

__global__ void GroupPlaces(Args a) {
  const int t = Thread(), lane = t % 32;
  const int warps = Threads() / 32;
  ExpectPlace(a, ncclCoopThread(), 0, 1);
  ExpectPlace(a, ncclCoopTile<4>(), t % 4, 4);
  ExpectPlace(a, ncclCoopTile<16>(), t % 16, 16);
  ExpectPlace(a, ncclCoopWarp(), lane, 32);
  ExpectPlace(a, ncclCoopCta(), t, Threads());
  ExpectPlace(a, ncclCoopAny(ncclCoopCta()), t, Threads());
  ExpectPlace(a, ncclCoopAny(ncclCoopTile<8>()), t % 8, 8);
  if (IsOfSomeLanes()) ExpectPlace(a, ncclCoopLanes(kSomeLanes), lane < 4 ? lane : lane - 8, 8);
  if (t >= 32) ExpectPlace(a, ncclCoopWarpSpan(1, warps - 1, 2), t - 32, 32 * (warps - 1));
  EXPECT_EQUAL(a.notes, ncclCoopGetLaneMask(ncclCoopTile<8>()), 0xffu << (lane / 8 * 8));
  EXPECT_EQUAL(a.notes, ncclCoopGetLaneMask(ncclCoopThread()), 1u << lane);
  EXPECT_EQUAL(a.notes, ncclCoopGetLaneMask(ncclCoopLanes(kSomeLanes)), kSomeLanes);
  EXPECT_EQUAL(a.notes, ncclCoopGetLaneMask(ncclCoopCta()), ~0u);
  EXPECT_EQUAL(a.notes, ncclCoopGetLaneMask(ncclCoopWarpSpan(0, 1, 0)), ~0u);
  EXPECT(a.notes, ncclCoopIsThread(ncclCoopThread()) && !ncclCoopIsThread(ncclCoopWarp()));
  EXPECT(a.notes, ncclCoopWithinWarp(ncclCoopWarp()) && !ncclCoopWithinWarp(ncclCoopCta()));
}

// All threads of a group count and meet: behind each meeting they see the sum of all.
template <typename Coop>
NCCL_DEVICE_INLINE void CountAndMeet(const Args& a, Coop coop, size_t group) {
  Word* const word = OwnWord(a.window, group * 16);
  const Word before = Load(word);
  coop.sync();
  for (Word round = 1; round <= 100; ++round) {
    Count(word, 1);
    coop.sync();
    EXPECT_EQUAL(a.notes, Load(word), before + round * static_cast<Word>(coop.size()));
    coop.sync();
  }
}

__global__ void GroupsMeet(Args a) {
  const int t = Thread(), warps = Threads() / 32;
  const auto thread = static_cast<size_t>(t);
  CountAndMeet(a, ncclCoopThread(), thread);
  CountAndMeet(a, ncclCoopTile<4>(), 1000 + thread / 4);
  CountAndMeet(a, ncclCoopWarp(), 2000 + thread / 32);
  if (IsOfSomeLanes()) CountAndMeet(a, ncclCoopLanes(kSomeLanes), 3000 + thread / 32);
  ncclCoopCta().sync();
  CountAndMeet(a, ncclCoopCta(), 4000);
  CountAndMeet(a, ncclCoopAny(ncclCoopCta()), 4001);
  // A span, and a warp beside the span, at the same time.
  if (t >= 32)
    CountAndMeet(a, ncclCoopWarpSpan(1, warps - 1, 14), 5000);
  else
    CountAndMeet(a, ncclCoopWarpSpan(0, 1, 0), 5001);
}

struct Wide {
  Word a, b;
};

template <typename Coop>
NCCL_DEVICE_INLINE void Broadcast(const Args& a, Coop coop) {
  const auto own = static_cast<Word>(coop.thread_rank());
  for (int root = 0; root < coop.size(); ++root) {
    const Wide got = ncclCoopBcast(coop, Wide{own, ~own}, root);
    EXPECT_EQUAL(a.notes, got.a, static_cast<Word>(root));
    EXPECT_EQUAL(a.notes, got.b, ~static_cast<Word>(root));
    EXPECT_EQUAL(a.notes, ncclCoopBcast(coop, static_cast<uint8_t>(own), root),
                 static_cast<uint8_t>(root));
  }
}

__global__ void GroupsBroadcast(Args a) {
  const int t = Thread(), warps = Threads() / 32;
  Broadcast(a, ncclCoopThread());
  Broadcast(a, ncclCoopTile<8>());
  Broadcast(a, ncclCoopWarp());
  if (IsOfSomeLanes()) Broadcast(a, ncclCoopLanes(kSomeLanes));
  ncclCoopCta().sync();
  Broadcast(a, ncclCoopCta());
  if (t >= 32)
    Broadcast(a, ncclCoopWarpSpan(1, warps - 1, 3));
  else
    Broadcast(a, ncclCoopWarpSpan(0, 1, 4));
}

// In a branch, threads that run together form groups. A single thread counts for its group.
__global__ void GroupsCoalesced(Args a) {
  Word* const word = OwnWord(a.window, 0);
  if (Thread() % 3 != 0) {
    ncclCoopLanes together = ncclCoopCoalesced();
    EXPECT(a.notes, together.thread_rank() >= 0 && together.thread_rank() < together.size());
    if (together.thread_rank() == 0) Count(word, static_cast<Word>(together.size()));
    together.sync();
  }
  ncclCoopCta().sync();
  EXPECT_EQUAL(a.notes, Load(word), static_cast<Word>(Threads() - (Threads() + 2) / 3));
  EXPECT_EQUAL(a.notes, ncclCoopCoalesced(ncclCoopCta()).size(), 32);
  EXPECT_EQUAL(a.notes, ncclCoopCoalesced(ncclCoopTile<4>()).size(), 4);
}

// -------------------------------------------------------------------------------------------------
// Pointers
// -------------------------------------------------------------------------------------------------

template <typename Coop>
NCCL_DEVICE_INLINE void MeetTeam(const Args& a, Coop coop, uint32_t index = 0) {
  ncclLsaBarrierSession<Coop>(coop, a.comm, ncclTeamTagLsa(), index)
      .sync(coop, cuda::memory_order_acq_rel);
}

// All ways lead to the same byte, also for the host.
__global__ void Pointers(Args a) {
  const ncclDevComm& comm = a.comm;
  const ncclTeam lsa = ncclTeamLsa(comm);
  const int first = comm.rank - comm.lsaRank;
  EXPECT(a.notes, ncclGetLocalPointer(a.window, kProbe) == a.of_lsa_rank[comm.lsaRank]);
  const ncclSymPtr<int> elements = ncclSymPtr<int>(a.window, kProbe - 400) + 100;
  EXPECT(a.notes, static_cast<void*>(elements.localPtr()) == a.of_lsa_rank[comm.lsaRank]);
  for (int peer = 0; peer < lsa.nRanks; ++peer) {
    void* const there = a.of_lsa_rank[peer];
    EXPECT(a.notes, there == a.of_rank[first + peer]);
    EXPECT(a.notes, ncclGetLsaPointer(a.window, kProbe, peer) == there);
    EXPECT(a.notes, ncclGetPeerPointer(a.window, kProbe, first + peer) == there);
    EXPECT(a.notes, ncclGetPeerPointer(a.window, kProbe, lsa, peer) == there);
    EXPECT(a.notes, elements.lsaPtr(peer) == there && elements.peerPtr(first + peer) == there &&
                        elements.peerPtr(lsa, peer) == there);
    EXPECT(a.notes, ncclGetResourceBufferLsaPointer(comm, a.buffer, peer) ==
                        ncclGetResourceBuffer(comm, a.buffer).lsaPtr(peer));
    EXPECT(a.notes, ncclGetResourceBufferPeerPointer(comm, a.buffer, lsa, peer) ==
                        ncclGetResourceBufferLsaPointer(comm, a.buffer, peer));
  }
  EXPECT(a.notes, ncclGetResourceBufferLocalPointer(comm, a.buffer) ==
                      ncclGetResourceBuffer(comm, a.buffer).localPtr());
  // Arithmetic of multicast addresses, which need not exist.
  const ncclMultimemHandle multimem = {reinterpret_cast<void*>(uintptr_t{1} << 40)};
  EXPECT_EQUAL(a.notes,
               static_cast<char*>(ncclGetMultimemPointer(a.window, kProbe, multimem)) -
                   static_cast<char*>(ncclGetMultimemPointer(a.window, 0, multimem)),
               static_cast<ptrdiff_t>(kProbe));
  EXPECT(a.notes,
         elements.multimemPtr(multimem) == ncclGetMultimemPointer(a.window, kProbe, multimem));
  EXPECT(a.notes, ncclFindWindow(ncclCoopCta(), comm, a.base) == a.window);
  EXPECT(a.notes, ncclFindWindow(ncclCoopThread(), comm,
                                 static_cast<char*>(a.base) + kWindowBytes - 1) == a.window);
  EXPECT(a.notes, ncclFindWindow(ncclCoopThread(), comm, reinterpret_cast<void*>(16)) == nullptr);

  // A word written by one address is read by the other addresses.
  const int other = (comm.lsaRank + 1) % lsa.nRanks;
  const int before = (comm.lsaRank + lsa.nRanks - 1) % lsa.nRanks;
  ncclCoopCta block;
  if (Thread() == 0) {
    *(ncclSymPtr<Word>(a.second) + 5).peerPtr(first + other) = 1000 + static_cast<Word>(comm.rank);
    static_cast<Word*>(ncclGetResourceBufferLsaPointer(comm, a.buffer, other))[3] =
        2000 + static_cast<Word>(comm.rank);
  }
  MeetTeam(a, block);
  EXPECT_EQUAL(a.notes, *OwnWord(a.second, 5), 1000 + static_cast<Word>(first + before));
  EXPECT_EQUAL(a.notes, static_cast<Word*>(ncclGetResourceBufferLocalPointer(comm, a.buffer))[3],
               2000 + static_cast<Word>(first + before));
  EXPECT_EQUAL(a.notes, *OwnWord(a.window, 5), 0u);
}

// -------------------------------------------------------------------------------------------------
// Barriers of an LSA team
// -------------------------------------------------------------------------------------------------

NCCL_DEVICE_INLINE void WriteToAll(const Args& a, size_t slot, Word value) {
  for (int peer = Thread(); peer < a.comm.lsaSize; peer += Threads())
    *WordOf(a.window, peer, slot + static_cast<size_t>(a.comm.lsaRank)) = value;
}
NCCL_DEVICE_INLINE void ExpectOfAll(const Args& a, size_t slot, Word value) {
  for (int peer = 0; peer < a.comm.lsaSize; ++peer)
    EXPECT_EQUAL(a.notes, *OwnWord(a.window, slot + static_cast<size_t>(peer)), value);
}

// Turns `order` into acquire and release by fences around `sync`.
template <typename Sync>
NCCL_DEVICE_INLINE void SyncWithFences(ncclCoopCta block, cuda::memory_order order, Sync sync) {
  const bool releases = order != cuda::memory_order_relaxed && order != cuda::memory_order_acquire;
  const bool acquires = order != cuda::memory_order_relaxed && order != cuda::memory_order_release;
  if (!releases) {
    block.sync();
    cuda::atomic_thread_fence(cuda::memory_order_release);
  }
  sync();
  if (!acquires) {
    cuda::atomic_thread_fence(cuda::memory_order_acquire);
    block.sync();
  }
}

NCCL_DEVICE_INLINE cuda::memory_order OrderOf(Word round) {
  constexpr cuda::memory_order kOrders[] = {cuda::memory_order_relaxed, cuda::memory_order_acquire,
                                            cuda::memory_order_release, cuda::memory_order_acq_rel,
                                            cuda::memory_order_seq_cst};
  return kOrders[round % 5];
}

// Uses every order, with the fences that the order leaves to the caller, with and without time-out,
// and in two steps.
__global__ void BarrierOrders(Args a) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, a.comm, ncclTeamTagLsa(), blockIdx.x);
  const size_t slot = blockIdx.x * size_t{64};
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    const cuda::memory_order order = OrderOf(round);
    WriteToAll(a, slot, value);
    SyncWithFences(block, order, [&] {
      if (round % 3 == 0) {
        EXPECT_EQUAL(a.notes, barrier.sync(block, order, kLong), ncclSuccess);
      } else if (round % 3 == 1) {
        barrier.sync(block, order);
      } else {
        barrier.arrive(block, order);
        barrier.wait(block, order);
      }
    });
    ExpectOfAll(a, slot, value);
    SyncWithFences(block, order, [&] { barrier.sync(block, order); });
  }
}

// Meets again and again, over hundreds of kernels.
__global__ void BarrierEpochs(Args a) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, a.comm, ncclTeamTagLsa(), blockIdx.x);
  const size_t slot = blockIdx.x * size_t{64};
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    WriteToAll(a, slot, value);
    barrier.sync(block, cuda::memory_order_acq_rel);
    ExpectOfAll(a, slot, value);
    barrier.sync(block, cuda::memory_order_acq_rel);
  }
}

// Meets by any group, whose first threads write.
template <typename Coop>
NCCL_DEVICE_INLINE void MeetByGroup(const Args& a, Coop coop, uint32_t index) {
  ncclLsaBarrierSession<Coop> barrier(coop, a.comm, ncclTeamLsa(a.comm), a.own_lsa, index);
  const size_t slot = 1024 + index * size_t{64};
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    for (int peer = coop.thread_rank(); peer < a.comm.lsaSize; peer += coop.size())
      *WordOf(a.window, peer, slot + static_cast<size_t>(a.comm.lsaRank)) = value;
    barrier.sync(coop, cuda::memory_order_acq_rel);
    ExpectOfAll(a, slot, value);
    barrier.sync(coop, cuda::memory_order_acq_rel);
  }
}

// Groups of one block meet at the same time, each group at a separate barrier that the program
// requested by ncclLsaBarrierCreateRequirement.
__global__ void BarrierGroups(Args a) {
  const int t = Thread(), warps = Threads() / 32;
  if (t >= 32) {
    MeetByGroup(a, ncclCoopWarpSpan(1, warps - 1, 1), 0);
  } else if (t < 8) {
    MeetByGroup(a, ncclCoopTile<8>(), 1);
  } else if (t == 8) {
    MeetByGroup(a, ncclCoopThread(), 2);
  } else if (t >= 16) {
    MeetByGroup(a, ncclCoopLanes(0xffff0000), 3);
  }
  __syncthreads();
  if (t < 32) MeetByGroup(a, ncclCoopWarp(), 4);
  __syncthreads();
  MeetByGroup(a, ncclCoopAny(ncclCoopCta()), 5);
}

// While rank 0 of the team is absent the other ranks give up. Then rank 0 comes and finds the
// others at the barrier, and the barrier goes on.
__global__ void BarrierTimeOut(Args a) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, a.comm, ncclTeamTagLsa(), 1);
  const bool absent = a.comm.lsaRank == 0;
  const auto order = cuda::memory_order_acq_rel;
  if (a.launch % 2 == 0) {
    if (absent) return;
    // Only the thread of the group that waits for rank 0 returns the time-out.
    const ncclResult_t result = barrier.sync(block, order, kShort);
    EXPECT(a.notes, result == ncclSuccess || result == ncclTimeout);
    Word* const given_up = OwnWord(a.window, static_cast<size_t>(a.launch) / 2);
    if (result == ncclTimeout) Count(given_up, 1);
    block.sync();
    EXPECT(a.notes, Load(given_up) != 0);
    return;
  }
  if (absent) EXPECT_EQUAL(a.notes, barrier.sync(block, order, kLong), ncclSuccess);
  WriteToAll(a, 64, static_cast<Word>(a.launch));
  EXPECT_EQUAL(a.notes, barrier.sync(block, order, kLong), ncclSuccess);
  ExpectOfAll(a, 64, static_cast<Word>(a.launch));
  barrier.sync(block, order);
}

// Pretends nearly 2^32 meetings: sets the kept epoch and all cells.
__global__ void BarrierWrap(Args a) {
  constexpr uint32_t kIndex = 7;
  ncclCoopCta block;
  if (a.launch == 0) {
    auto* const words =
        static_cast<uint32_t*>(ncclGetResourceBufferLocalPointer(a.comm, a.own_lsa.bufHandle));
    if (Thread() != 0) return;
    const auto count = static_cast<uint32_t>(a.own_lsa.nBarriers);
    const auto ranks = static_cast<uint32_t>(a.comm.lsaSize);
    words[count + kIndex] = UINT32_MAX - 20;
    for (uint32_t peer = 0; peer < ranks; ++peer)
      words[3 * count + kIndex * ranks + peer] = UINT32_MAX - 20;
    return;
  }
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, a.comm, ncclTeamLsa(a.comm), a.own_lsa, kIndex);
  for (Word round = 1; round <= 10; ++round) {
    const Word value = static_cast<Word>(a.launch) * 10 + round;
    WriteToAll(a, 0, value);
    barrier.sync(block, cuda::memory_order_acq_rel);
    ExpectOfAll(a, 0, value);
    barrier.sync(block, cuda::memory_order_acq_rel);
  }
}

// -------------------------------------------------------------------------------------------------
// LL exchanges
// -------------------------------------------------------------------------------------------------

struct Odd {
  uint32_t a, b, c;  // two lines, the second half full
};

template <typename T>
struct Element {
  NCCL_DEVICE_INLINE static T Of(int from, int to, int element, int epoch) {
    return static_cast<T>(from * 31 + to * 17 + element * 5 + epoch);
  }
  NCCL_DEVICE_INLINE static bool Equal(T a, T b) { return a == b; }
};
template <>
struct Element<Odd> {
  NCCL_DEVICE_INLINE static Odd Of(int from, int to, int element, int epoch) {
    const auto number = Element<uint32_t>::Of(from, to, element, epoch);
    return {number, ~number, number * 3};
  }
  NCCL_DEVICE_INLINE static bool Equal(Odd x, Odd y) {
    return x.a == y.a && x.b == y.b && x.c == y.c;
  }
};
template <>
struct Element<Wide> {
  NCCL_DEVICE_INLINE static Wide Of(int from, int to, int element, int epoch) {
    const auto number = Element<Word>::Of(from, to, element, epoch);
    return {number, ~number};
  }
  NCCL_DEVICE_INLINE static bool Equal(Wide x, Wide y) { return x.a == y.a && x.b == y.b; }
};

// In every epoch each rank sends some elements to each rank, and checks the received elements.
template <typename T>
NCCL_DEVICE_INLINE void ExchangeElements(const Args& a, ncclLLA2AHandle handle, int epochs) {
  const int elements = a.comm.lsaSize * kExchangeElements, own = a.comm.lsaRank;
  const ncclCoopCta block;
  ncclLLA2ASession<ncclCoopCta> session(block, a.comm, ncclTeamLsa(a.comm), handle, blockIdx.x,
                                        elements);
  for (int i = 0; i < epochs; ++i) {
    const int epoch = a.launch * epochs + i;
    for (int e = Thread(); e < elements; e += Threads())
      session.send(e / kExchangeElements, own * kExchangeElements + e % kExchangeElements,
                   Element<T>::Of(own, e / kExchangeElements, e % kExchangeElements, epoch));
    for (int e = Thread(); e < elements; e += Threads()) {
      const T got = session.template recv<T>(e);
      EXPECT(a.notes, Element<T>::Equal(got, Element<T>::Of(e / kExchangeElements, own,
                                                            e % kExchangeElements, epoch)));
    }
    session.endEpoch(block);
  }
}
template <typename T>
__global__ void Exchange(Args a) {
  ExchangeElements<T>(a, a.exchange, static_cast<int>(a.number));
}

// Pretends nearly 2^32 epochs.
__global__ void ExchangeWrap(Args a) {
  if (a.launch == 0) {
    auto* const lines = static_cast<tutti::device::LLLine*>(
        ncclGetResourceBufferLocalPointer(a.comm, a.wrapping.bufHandle));
    if (Thread() == 0) lines[blockIdx.x * (1 + 2 * a.wrapping.nSlots)].data_low = UINT32_MAX - 20;
    return;
  }
  ExchangeElements<Word>(a, a.wrapping, 3);
}

struct Widen {
  NCCL_DEVICE_INLINE Word operator()(uint16_t value) const { return value; }
};
// Shows the order of its operands.
struct Digits {
  NCCL_DEVICE_INLINE Word operator()(Word a, Word b) const { return a * 10 + b; }
};

// Elements from one rank to all, received singly, in groups, and reduced.
__global__ void ExchangeReduce(Args a) {
  const int n = a.comm.lsaSize, own = a.comm.lsaRank;
  const ncclCoopCta block;
  ncclLLA2ASession<ncclCoopCta> session(block, a.comm, ncclTeamLsa(a.comm), a.exchange, blockIdx.x,
                                        n);
  for (int epoch = 0; epoch < static_cast<int>(a.number); ++epoch) {
    if (Thread() == epoch % Threads())
      session.bcast(own, static_cast<uint16_t>(1 + (own + epoch) % 9));
    Word want = 0;
    for (int r = 0; r < n; ++r) want = want * 10 + static_cast<Word>(1 + (r + epoch) % 9);
    EXPECT_EQUAL(a.notes, (session.recvReduce<2, uint16_t>(0, n, 1, Widen(), Digits())), want);
    EXPECT_EQUAL(a.notes, (session.recvReduce<4, uint16_t>(0, n, 1, Widen(), Digits())), want);
    uint16_t some[3] = {7, 7, 7};
    const int count = n < 3 ? n : 3;
    session.recvUnrolled<1, 3>(0, count, 1, some);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQUAL(a.notes, some[i], i < count ? static_cast<uint16_t>(1 + (i + epoch) % 9) : 7);
    session.endEpoch(block);
  }
}

}  // namespace lsa_cases
