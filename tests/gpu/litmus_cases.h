#pragma once

// Cases of lsa_test.cu: litmus tests of memory that ranks of one LSA team reach. The team's ranks 0
// and 1, 2 and 3, … play in pairs, `number` rounds in a launch; a rank without a partner does
// nothing. Forbidden outcomes count as wrong. Outcomes that are allowed, and that show that the
// tests can find something, are only counted.

#include "lsa_cases.h"

namespace lsa_cases {

// Where a pair's words lie in the windows: data over the first 512 KiB, flags behind them, 128
// bytes apart.
constexpr size_t kDataWords = 65536;
constexpr size_t kFlag = kDataWords, kAnswer = kDataWords + 16;

// Returns the index of the word of the data that a round uses. Successive rounds use distant words.
NCCL_DEVICE_INLINE size_t Scattered(Word round, size_t i) {
  return static_cast<size_t>(round * 7919 + i * 64) % kDataWords;
}
NCCL_DEVICE_INLINE int Partner(const Args& a) {
  const int other = a.comm.lsaRank ^ 1;
  return other < a.comm.lsaSize ? other : -1;
}
NCCL_DEVICE_INLINE bool IsAborted(const Args& a, unsigned round) {
#if !NCCL_CHECK_CUDACC
  tuttiHostPause(round);
#endif
  return round % 1024 == 1023 && a.comm.abortFlag != nullptr &&
         cuda::atomic_ref<uint32_t>(*a.comm.abortFlag).load() != 0;
}
// Waits until `word`, written only by the partner, is `value`.
NCCL_DEVICE_INLINE void Await(const Args& a, Word* word, Word value, cuda::memory_order order) {
  for (unsigned i = 0; Load(word, order) != value && !IsAborted(a, i); ++i) {
  }
}

// The ways to pass a message: data, then a flag.
struct ByRelease {  // the flag itself is ordered
  NCCL_DEVICE_INLINE static void Tell(Word* flag, Word value) {
    Store(flag, value, cuda::memory_order_release);
  }
  NCCL_DEVICE_INLINE static void Hear(const Args& a, Word* flag, Word value) {
    Await(a, flag, value, cuda::memory_order_acquire);
  }
};
struct ByFences {
  NCCL_DEVICE_INLINE static void Tell(Word* flag, Word value) {
    cuda::atomic_thread_fence(cuda::memory_order_release);
    Store(flag, value);
  }
  NCCL_DEVICE_INLINE static void Hear(const Args& a, Word* flag, Word value) {
    Await(a, flag, value, cuda::memory_order_relaxed);
    cuda::atomic_thread_fence(cuda::memory_order_acquire);
  }
};
struct ByThreadFence {  // CUDA's own
  NCCL_DEVICE_INLINE static void Tell(Word* flag, Word value) {
    __threadfence_system();
    Store(flag, value);
  }
  NCCL_DEVICE_INLINE static void Hear(const Args& a, Word* flag, Word value) {
    Await(a, flag, value, cuda::memory_order_relaxed);
    __threadfence_system();
  }
};

// The place of data that one rank writes and its partner reads: at the reader, or at the writer.
enum class At { kReader, kWriter };

// Passes messages. One rank of a pair writes some words and sets a flag for its partner, and the
// partner reads the words; then the roles change. With the data at the reader and the flag at the
// writer, data and flag go different ways, and the way of the flag is shorter. All threads of the
// block take part.
template <typename Way, At kData, At kFlagAt>
__global__ void PassMessages(Args a) {
  constexpr size_t kEach = 2;
  const int other = Partner(a);
  if (other < 0) return;
  ncclCoopCta block;
  const bool even = a.comm.lsaRank % 2 == 0;
  Word* const heard =
      kFlagAt == At::kReader ? OwnWord(a.second, kFlag) : WordOf(a.second, other, kFlag);
  Word* const told =
      kFlagAt == At::kReader ? WordOf(a.second, other, kFlag) : OwnWord(a.second, kFlag);
  const Word base = static_cast<Word>(a.launch) * a.number;
  for (Word round = base + 1; round <= base + a.number; ++round) {
    for (int turn = 0; turn < 2; ++turn) {
      const Word value = 2 * round + static_cast<Word>(turn);
      const bool writes = even == (turn == 0);
      const size_t first = static_cast<size_t>(Thread()) * kEach;
      for (size_t i = 0; writes && i < kEach; ++i) {
        const size_t at = Scattered(value, first + i);
        *(kData == At::kWriter ? OwnWord(a.window, at) : WordOf(a.window, other, at)) = value + i;
      }
      block.sync();
      if (Thread() == 0) {
        if (writes)
          Way::Tell(told, value);
        else
          Way::Hear(a, heard, value);
      }
      block.sync();
      for (size_t i = 0; !writes && i < kEach; ++i) {
        const size_t at = Scattered(value, first + i);
        EXPECT_EQUAL(a.notes,
                     *(kData == At::kWriter ? WordOf(a.window, other, at) : OwnWord(a.window, at)),
                     value + i);
      }
    }
  }
  if (Thread() == 0) a.notes->counted = base + a.number;
}

// The same through a barrier.
__global__ void PassByBarrier(Args a) {
  ncclCoopCta block;
  const int other = Partner(a);
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, a.comm, ncclTeamTagLsa(), 2);
  const Word base = static_cast<Word>(a.launch) * a.number;
  for (Word round = base + 1; round <= base + a.number; ++round) {
    const size_t at = Scattered(round, static_cast<size_t>(Thread()));
    if (other >= 0) *WordOf(a.window, other, at) = round;
    barrier.sync(block, cuda::memory_order_acq_rel);
    if (other >= 0) EXPECT_EQUAL(a.notes, *OwnWord(a.window, at), round);
  }
  if (Thread() == 0) a.notes->counted = base + a.number;
}

// Each rank of a pair stores into a word, its own or a word at the partner, and then reads the
// partner's stored word. With a sequentially consistent fence between store and load, at least one
// rank sees the partner's store.
template <bool kFenced, At kStored>
__global__ void BufferStores(Args a) {
  const ncclCoopThread self;
  const int other = Partner(a);
  ncclLsaBarrierSession<ncclCoopThread> barrier(self, a.comm, ncclTeamTagLsa(), 3);
  const Word base = static_cast<Word>(a.launch) * a.number;
  Word neither = 0;
  for (Word round = base + 1; round <= base + a.number; ++round) {
    const auto parity = static_cast<size_t>(round % 2);
    barrier.sync(self, cuda::memory_order_acq_rel);
    if (other < 0) continue;
    // The partner's result of the previous round.
    if (round > base + 1 && a.comm.lsaRank % 2 == 0) {
      const size_t before = kAnswer + (1 - parity);
      if (Load(OwnWord(a.second, before)) != round - 1 &&
          Load(OwnWord(a.second, before + 2)) != round - 1)
        ++neither;
    }
    const size_t at = 16 * static_cast<size_t>(round % 512);
    Word* const here = OwnWord(a.window, at);
    Word* const there = WordOf(a.window, other, at);
    Store(kStored == At::kWriter ? here : there, round);
    if (kFenced) cuda::atomic_thread_fence(cuda::memory_order_seq_cst);
    const Word seen = Load(kStored == At::kWriter ? there : here);
    // Both tell the even rank.
    if (a.comm.lsaRank % 2 == 0)
      Store(OwnWord(a.second, kAnswer + parity), seen);
    else
      Store(WordOf(a.second, other, kAnswer + parity + 2), seen);
  }
  barrier.sync(self, cuda::memory_order_acq_rel);
  if (kFenced) {
    for (Word i = 0; i < neither; ++i) NoteWrong(a.notes, __LINE__, 0, 1);
    a.notes->counted = base + a.number;
  } else {
    a.notes->counted += neither;
  }
}

// Passes data without order, by a longer way than the flag's way, and counts late data. Late data
// is allowed.
__global__ void PassWithoutOrder(Args a) {
  const int other = Partner(a);
  if (other < 0) return;
  const bool writes = a.comm.lsaRank % 2 == 0;
  const Word base = static_cast<Word>(a.launch) * a.number;
  Word late = 0;
  for (Word round = base + 1; round <= base + a.number; ++round) {
    const size_t at = Scattered(round, 0);
    if (writes) {
      Store(WordOf(a.window, other, at), round);
      Store(OwnWord(a.second, kFlag), round);
      Await(a, OwnWord(a.second, kAnswer), round, cuda::memory_order_acquire);
    } else {
      Await(a, WordOf(a.second, other, kFlag), round, cuda::memory_order_relaxed);
      if (Load(OwnWord(a.window, at)) != round) ++late;
      Store(WordOf(a.second, other, kAnswer), round, cuda::memory_order_release);
    }
  }
  a.notes->counted += late;
}

// A line of LL is written and read as a whole: elements of 16 bytes whose parts belong together.
__global__ void PassByLines(Args a) {
  const int n = a.comm.lsaSize, own = a.comm.lsaRank;
  const ncclCoopCta block;
  const int elements = n * Threads();
  ncclLLA2ASession<ncclCoopCta> session(block, a.comm, ncclTeamLsa(a.comm), a.wide, 0, elements);
  const Word base = static_cast<Word>(a.launch) * a.number;
  for (Word round = base + 1; round <= base + a.number; ++round) {
    for (int peer = 0; peer < n; ++peer)
      session.send(peer, own * Threads() + Thread(),
                   round * 1000 + static_cast<Word>(own * 8 + peer));
    for (int from = 0; from < n; ++from)
      EXPECT_EQUAL(a.notes, session.recv<Word>(from * Threads() + Thread()),
                   round * 1000 + static_cast<Word>(from * 8 + own));
    session.endEpoch(block);
  }
  if (Thread() == 0) a.notes->counted = base + a.number;
}

}  // namespace lsa_cases
