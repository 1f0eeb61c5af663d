// SPDX-License-Identifier: Apache-2.0
//
// GIN direct (GDAKI): kernels put, signal and get by driving an mlx5 card themselves, and no thread
// of the host takes part. Read by nccl_device/gin.h.
//
// A context has a main queue pair for each rank, joined to that rank's. Signals are words in a
// table of the rank that waits, to which the card adds (FETCH_ADD). What is on one queue pair is
// carried out in order, so every signal is a strong one. Counters are words in a table of this
// rank: behind each main queue pair there is a companion, joined to one of this rank's own, which
// waits for the main one's entry (WAIT) and then adds.
//
//   main[peer]        WRITE … WRITE, FETCH_ADD ──▶ window of the peer, its signal
//                              │ done
//   companion[peer]   WAIT ◀───┘ FETCH_ADD ──────▶ counter of this rank
//
// A get is done when its READ is, and visible to kernels when a DUMP behind it is done.
//
// The layouts are part of the binary interface of NCCL 2.30.7.

#ifndef NCCL_DEVICE_IMPL_GIN_GDAKI_H_
#define NCCL_DEVICE_IMPL_GIN_GDAKI_H_

#include "nccl_device/impl/mlx5_queue.h"

#ifdef __cplusplus

namespace tutti {
namespace device {

// A table of words, and the keys by which cards reach that of each rank.
struct GdakiTable {
  uint64_t* words;
  uint32_t* remote_keys;
  uint32_t local_key;
  uint32_t first;  // The words of the context begin there.
};
struct GdakiContext {
  mlx5::QueuePair* main;       // of each rank
  mlx5::QueuePair* companion;  // of each rank
  GdakiTable counters;
  GdakiTable signals;
  uint32_t sink_key;           // of 8 bytes for the old values of words, which nobody reads
  uint64_t* last_issued_get;   // of each rank: how many entries of its queue, up to its last get
  uint64_t* last_visible_get;  // the same of what is visible
};
// The memory of a window, whose addresses begin at 0.
struct GdakiMemory {
  uint32_t* remote_keys;
  uint32_t local_key;
};
static_assert(sizeof(GdakiTable) == 24, "part of the binary interface");
static_assert(sizeof(GdakiContext) == 88, "part of the binary interface");
static_assert(sizeof(GdakiMemory) == 16, "part of the binary interface");

// A longer put or get is made in pieces.
constexpr size_t kGdakiPieceBytes = size_t{1} << 30;

}  // namespace device
}  // namespace tutti

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

// Posts to a context, for one thread. All functions return false where the wait that they had to
// make ended early (mlx5_queue.h).
class Gdaki {
 public:
  NCCL_DEVICE_INLINE Gdaki(GdakiContext* context, int rank, mlx5::Sharing sharing,
                           uint32_t* abort_flag)
      : context_(context), rank_(rank), sharing_(sharing), abort_flag_(abort_flag) {}

  // What is put: bytes of a buffer, or a value of at most 8 bytes.
  struct Data {
    mlx5::Place to;
    mlx5::Place from;
    uint64_t bytes;
    uint64_t value;
    bool is_value;
  };
  // The word that is added to at the other rank.
  struct Signal {
    bool present;
    mlx5::Place word;
    uint64_t added;
  };
  // The counter that is increased once all of it is done; kNoCounter for none.
  static constexpr uint32_t kNoCounter = UINT32_MAX;
  // How a call differs from others: more calls follow, of which the last rings; the caller knows
  // that there is room.
  struct Manner {
    bool rings_later;
    bool has_room;
  };

  // Returns whether there is a queue toward a rank; where only rails are joined, others have none.
  NCCL_DEVICE_INLINE bool Reaches(int peer) const {
    return LoadConstant(&LoadConstant(&context_->main)[peer].number) != 0;
  }

  // Return places at a rank, and on this one.
  NCCL_DEVICE_INLINE mlx5::Place Remote(const GdakiMemory& memory, int peer,
                                        uint64_t offset) const {
    return {offset, LoadConstant(LoadConstant(&memory.remote_keys) + peer)};
  }
  NCCL_DEVICE_INLINE mlx5::Place Local(const GdakiMemory& memory, uint64_t offset) const {
    return {offset, LoadConstant(&memory.local_key)};
  }
  NCCL_DEVICE_INLINE mlx5::Place SignalOf(int peer, uint32_t signal) const {
    return WordOf(context_->signals, peer, signal);
  }

  // Puts data, signals, or both. A put of no bytes is one, too.
  NCCL_DEVICE_INLINE bool Put(int peer, Data data, const Signal& signal, uint32_t counter,
                              Manner manner) const {
    const mlx5::SendQueue queue = Main(peer);
    for (; !data.is_value && data.bytes > kGdakiPieceBytes; data.bytes -= kGdakiPieceBytes) {
      if (!PutPiece(queue, data, manner)) return false;
      data.to.address += kGdakiPieceBytes;
      data.from.address += kGdakiPieceBytes;
    }
    const bool has_data = data.bytes > 0;
    const uint32_t entries = (has_data && signal.present) ? 2 : 1;
    mlx5::Position at;
    if (!queue.Reserve(entries, manner.has_room, &at)) return false;
    mlx5::Position last = at;
    if (has_data) queue.Write(at.index, MakeWriteOf(at, data));
    if (signal.present) {
      last.index += entries - 1;
      queue.Write(last.index, MakeFetchAdd(last, signal.word, signal.added, Sink()));
    } else if (!has_data) {
      queue.Write(at.index, mlx5::MakeNop(at));
    }
    if (!queue.Submit(at, entries, !manner.rings_later)) return false;
    return counter == kNoCounter || Count(peer, last.index, counter, manner);
  }

  NCCL_DEVICE_INLINE bool Get(int peer, mlx5::Place from, mlx5::Place to, uint64_t bytes,
                              Manner manner) const {
    const mlx5::SendQueue queue = Main(peer);
    while (bytes > 0) {
      const uint64_t piece = bytes < kGdakiPieceBytes ? bytes : kGdakiPieceBytes;
      mlx5::Position at;
      if (!queue.Reserve(1, manner.has_room, &at)) return false;
      queue.Write(at.index, MakeTransfer(at, mlx5::kRead, from, to, static_cast<uint32_t>(piece)));
      if (!queue.Submit(at, 1, !manner.rings_later)) return false;
      Raise(LoadConstant(&context_->last_issued_get) + peer, at.index + 1);
      from.address += piece;
      to.address += piece;
      bytes -= piece;
    }
    return true;
  }

  // Returns how many entries there are toward a rank; Await waits for as many, and makes what gets
  // among them have brought visible.
  NCCL_DEVICE_INLINE uint64_t Posted(int peer) const { return Main(peer).reserved(); }
  NCCL_DEVICE_INLINE bool Await(int peer, uint64_t posted) const {
    if (posted == 0) return true;
    if (!Main(peer).AwaitDone(posted - 1)) return false;
    return ShowGets(peer, posted);
  }

  NCCL_DEVICE_INLINE uint64_t* SignalWord(uint32_t signal) const {
    return context_->signals.words + context_->signals.first + signal;
  }
  NCCL_DEVICE_INLINE uint64_t* CounterWord(uint32_t counter) const {
    return context_->counters.words + context_->counters.first + counter;
  }

 private:
  NCCL_DEVICE_INLINE mlx5::SendQueue Main(int peer) const {
    return mlx5::SendQueue(LoadConstant(&context_->main) + peer, sharing_, abort_flag_);
  }
  NCCL_DEVICE_INLINE mlx5::Place Sink() const { return {0, LoadConstant(&context_->sink_key)}; }
  NCCL_DEVICE_INLINE mlx5::Place WordOf(const GdakiTable& table, int peer, uint32_t number) const {
    const uint64_t place = uint64_t{LoadConstant(&table.first)} + number;
    return {place * sizeof(uint64_t), LoadConstant(LoadConstant(&table.remote_keys) + peer)};
  }

  NCCL_DEVICE_INLINE mlx5::Entry MakeWriteOf(mlx5::Position at, const Data& data) const {
    const auto bytes = static_cast<uint32_t>(data.bytes);
    return data.is_value ? mlx5::MakeWriteOfValue(at, data.to, data.value, bytes)
                         : MakeTransfer(at, mlx5::kWrite, data.to, data.from, bytes);
  }
  NCCL_DEVICE_INLINE bool PutPiece(const mlx5::SendQueue& queue, const Data& data,
                                   Manner manner) const {
    mlx5::Position at;
    if (!queue.Reserve(1, manner.has_room, &at)) return false;
    queue.Write(at.index, MakeTransfer(at, mlx5::kWrite, data.to, data.from, kGdakiPieceBytes));
    return queue.Submit(at, 1, !manner.rings_later);
  }

  // Has the companion add to a counter when entry `index` of the main queue is done.
  NCCL_DEVICE_INLINE bool Count(int peer, uint64_t index, uint32_t counter, Manner manner) const {
    const mlx5::SendQueue companion(LoadConstant(&context_->companion) + peer, sharing_,
                                    abort_flag_);
    mlx5::Position at;
    if (!companion.Reserve(2, manner.has_room, &at)) return false;
    const mlx5::QueuePair* const main = LoadConstant(&context_->main) + peer;
    companion.Write(at.index, mlx5::MakeWait(at, index, LoadConstant(&main->completions.number)));
    const mlx5::Position add = {at.queue, at.index + 1};
    companion.Write(add.index,
                    MakeFetchAdd(add, WordOf(context_->counters, rank_, counter), 1, Sink()));
    return companion.Submit(at, 2, !manner.rings_later);
  }

  // What a card has read lies in memory when a DUMP behind it is done, and not before.
  NCCL_DEVICE_INLINE bool ShowGets(int peer, uint64_t posted) const {
    const auto issued = cuda::atomic_ref<uint64_t>(context_->last_issued_get[peer])
                            .load(cuda::memory_order_relaxed);
    const auto visible = cuda::atomic_ref<uint64_t>(context_->last_visible_get[peer])
                             .load(cuda::memory_order_acquire);
    const uint64_t wanted = issued < posted ? issued : posted;
    if (wanted <= visible) return true;
    const mlx5::SendQueue queue = Main(peer);
    mlx5::Position at;
    if (!queue.Reserve(1, false, &at)) return false;
    queue.Write(at.index, mlx5::MakeDump(at, Sink(), sizeof(uint64_t)));
    if (!queue.Submit(at, 1, true) || !queue.AwaitDone(at.index)) return false;
    Raise(LoadConstant(&context_->last_visible_get) + peer, at.index);
    return true;
  }

  static NCCL_DEVICE_INLINE void Raise(uint64_t* word, uint64_t value) {
    cuda::atomic_ref<uint64_t>(*word).fetch_max(value, cuda::memory_order_acq_rel);
  }

  GdakiContext* context_;
  int rank_;
  mlx5::Sharing sharing_;
  uint32_t* abort_flag_;
};

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_GIN_GDAKI_H_
