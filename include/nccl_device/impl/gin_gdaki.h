// SPDX-License-Identifier: Apache-2.0
//
// GIN direct (GDAKI): kernels put, signal and get by driving an mlx5 card themselves, and no thread
// of the host takes part. Read by nccl_device/gin.h.
//
// A context has a main queue pair for each rank, joined to the rank's own. Signals are words in a
// table of the waiting rank, to which the card adds (FETCH_ADD). A card carries out the entries of
// one queue pair in order, and every signal is therefore strong. Counters are words in a table of
// this rank: a companion behind each main queue pair, joined to a queue pair of this rank, waits
// for the main one's entry (WAIT) and then adds.
//
//   main[peer]        WRITE … WRITE, FETCH_ADD ──▶ window of the peer, its signal
//                              │ done
//   companion[peer]   WAIT ◀───┘ FETCH_ADD ──────▶ counter of this rank
//
// A get is done when its READ is done, and visible to kernels when a DUMP behind it is done.
//
// The layouts are part of the binary interface of NCCL 2.30.7.

#ifndef NCCL_DEVICE_IMPL_GIN_GDAKI_H_
#define NCCL_DEVICE_IMPL_GIN_GDAKI_H_

#include "nccl_device/impl/gin_gdaki_context.h"
#include "nccl_device/impl/mlx5_queue.h"

#ifdef __cplusplus

namespace tutti {
namespace device {

using GdakiContext = ncclGinGdakiGPUContext;
using GdakiTable = ncclGinGdakiGlobalGPUBufferTable<uint64_t>;
// The memory of a window, whose addresses begin at 0.
struct GdakiMemory {
  uint32_t* remote_keys;
  uint32_t local_key;
};
static_assert(sizeof(GdakiMemory) == 16, "part of the binary interface");

// A longer put or get is made in pieces.
constexpr size_t kGdakiPieceBytes = size_t{1} << 30;

}  // namespace device
}  // namespace tutti

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

// Posts to a context, for one thread. All functions return false after an early end of a wait
// (mlx5_queue.h).
class Gdaki {
 public:
  NCCL_DEVICE_INLINE Gdaki(GdakiContext* context, int rank, mlx5::Sharing sharing,
                           uint32_t* abort_flag, uint64_t piece_bytes = kGdakiPieceBytes)
      : context_(context),
        rank_(rank),
        sharing_(sharing),
        abort_flag_(abort_flag),
        piece_bytes_(piece_bytes) {}

  // The source of a put: bytes of a buffer, or a value of at most 8 bytes.
  struct Data {
    mlx5::Place to;
    mlx5::Place from;
    uint64_t bytes;
    uint64_t value;
    bool is_value;
  };
  // The word to add to at the peer.
  struct Signal {
    bool present;
    mlx5::Place word;
    uint64_t added;
  };
  // The counter to increase at the end of the operation; kNoCounter for none.
  static constexpr uint32_t kNoCounter = UINT32_MAX;
  // Options of a call: more calls follow, of which the last rings; the caller knows that the queue
  // has room.
  struct Manner {
    bool rings_later;
    bool has_room;
  };

  // Returns whether a queue toward a rank exists; with rails joined only, other rails have none.
  NCCL_DEVICE_INLINE bool Reaches(int peer) const {
    return LoadConstant(&LoadConstant(&context_->gdqp)[peer].number) != 0;
  }

  // Return places at a rank, and on this rank.
  NCCL_DEVICE_INLINE mlx5::Place Remote(const GdakiMemory& memory, int peer,
                                        uint64_t offset) const {
    return {offset, LoadConstant(LoadConstant(&memory.remote_keys) + peer)};
  }
  NCCL_DEVICE_INLINE mlx5::Place Local(const GdakiMemory& memory, uint64_t offset) const {
    return {offset, LoadConstant(&memory.local_key)};
  }
  NCCL_DEVICE_INLINE mlx5::Place SignalOf(int peer, uint32_t signal) const {
    return WordOf(context_->signals_table, peer, signal);
  }

  // Puts data, signals, or both. A put of no bytes is valid.
  NCCL_DEVICE_INLINE bool Put(int peer, const Data& data, const Signal& signal, uint32_t counter,
                              Manner manner) const {
    const uint32_t pieces = PiecesOf(data.bytes);
    const uint32_t entries = pieces + (signal.present ? 1 : 0);
    const auto make = [&](mlx5::Position at, uint32_t number) {
      if (number < pieces) return MakeWriteOf(at, data, number);
      return signal.present ? MakeFetchAdd(at, signal.word, signal.added, Sink())
                            : mlx5::MakeNop(at);
    };
    uint64_t end = 0;
    if (!Post(Main(peer), entries == 0 ? 1 : entries, manner, make, &end)) return false;
    return counter == kNoCounter || Count(peer, end - 1, counter, manner);
  }

  NCCL_DEVICE_INLINE bool Get(int peer, mlx5::Place from, mlx5::Place to, uint64_t bytes,
                              Manner manner) const {
    if (bytes == 0) return true;
    const Data data = {from, to, bytes, 0, false};
    const auto make = [&](mlx5::Position at, uint32_t number) {
      return MakePiece(at, mlx5::kRead, data, number);
    };
    uint64_t end = 0;
    if (!Post(Main(peer), PiecesOf(bytes), manner, make, &end)) return false;
    Raise(LoadConstant(&context_->last_issued_get) + peer, end);
    return true;
  }

  // Returns the number of entries toward a rank. Await waits for as many entries, and makes the
  // bytes of their gets visible.
  NCCL_DEVICE_INLINE uint64_t Posted(int peer) const { return Main(peer).reserved(); }
  NCCL_DEVICE_INLINE bool Await(int peer, uint64_t posted) const {
    if (posted == 0) return true;
    if (!Main(peer).AwaitDone(posted - 1)) return false;
    return ShowGets(peer, posted);
  }

  NCCL_DEVICE_INLINE uint64_t* SignalWord(uint32_t signal) const {
    return context_->signals_table.buffer + context_->signals_table.offset + signal;
  }
  NCCL_DEVICE_INLINE uint64_t* CounterWord(uint32_t counter) const {
    return context_->counters_table.buffer + context_->counters_table.offset + counter;
  }

 private:
  NCCL_DEVICE_INLINE mlx5::SendQueue Main(int peer) const {
    return mlx5::SendQueue(LoadConstant(&context_->gdqp) + peer, sharing_, abort_flag_);
  }
  NCCL_DEVICE_INLINE mlx5::Place Sink() const {
    return {0, LoadConstant(&context_->sink_buffer_lkey)};
  }
  NCCL_DEVICE_INLINE mlx5::Place WordOf(const GdakiTable& table, int peer, uint32_t number) const {
    const uint64_t place = uint64_t{LoadConstant(&table.offset)} + number;
    return {place * sizeof(uint64_t), LoadConstant(LoadConstant(&table.rkeys) + peer)};
  }

  NCCL_DEVICE_INLINE uint32_t PiecesOf(uint64_t bytes) const {
    return static_cast<uint32_t>((bytes + piece_bytes_ - 1) / piece_bytes_);
  }
  // Makes the entry of a piece. For a get, too, `data.to` is the remote end.
  NCCL_DEVICE_INLINE mlx5::Entry MakePiece(mlx5::Position at, mlx5::Operation operation,
                                           const Data& data, uint32_t piece) const {
    const uint64_t begin = piece * piece_bytes_, left = data.bytes - begin;
    return MakeTransfer(at, operation, {data.to.address + begin, data.to.key},
                        {data.from.address + begin, data.from.key},
                        static_cast<uint32_t>(left < piece_bytes_ ? left : piece_bytes_));
  }
  NCCL_DEVICE_INLINE mlx5::Entry MakeWriteOf(mlx5::Position at, const Data& data,
                                             uint32_t piece) const {
    if (!data.is_value) return MakePiece(at, mlx5::kWrite, data, piece);
    return mlx5::MakeWriteOfValue(at, data.to, data.value, static_cast<uint32_t>(data.bytes));
  }

  // Takes `count` entries at once, and posts the result of `make` for the position and number of
  // each. More entries than the queue has go in parts, each after the end of the part before, and
  // the card is told of each part at once, whatever `manner` says. Sets `end` to the index behind
  // the last.
  template <typename Make>
  NCCL_DEVICE_INLINE bool Post(const mlx5::SendQueue& queue, uint32_t count, Manner manner,
                               const Make& make, uint64_t* end) const {
    mlx5::Position first = queue.Claim(count);
    *end = first.index + count;
    const uint32_t size = queue.Size();
    const bool fits = count <= size;
    for (uint32_t number = 0; number < count;) {
      const uint32_t part = count - number < size ? count - number : size;
      if (!queue.AwaitRoom(first, part, fits && manner.has_room)) return false;
      for (uint32_t i = 0; i < part; ++i) {
        const mlx5::Position at = {first.queue, first.index + i};
        queue.Write(at.index, make(at, number + i));
      }
      number += part;
      if (!queue.Submit(first, part, !(fits && manner.rings_later))) return false;
      first.index += part;
    }
    return true;
  }

  // Has the companion add to a counter when entry `index` of the main queue is done. The card is
  // told of the addition at once, because a later call may have no counter.
  NCCL_DEVICE_INLINE bool Count(int peer, uint64_t index, uint32_t counter, Manner manner) const {
    const mlx5::SendQueue companion(LoadConstant(&context_->companion_gdqp) + peer, sharing_,
                                    abort_flag_);
    const mlx5::Position at = companion.Claim(2);
    const mlx5::SendQueue waited_for = Main(peer);
    if (!companion.AwaitRoom(at, 2, manner.has_room, &waited_for)) return false;
    const mlx5::QueuePair* const main = LoadConstant(&context_->gdqp) + peer;
    companion.Write(at.index, mlx5::MakeWait(at, index, LoadConstant(&main->completions.number)));
    const mlx5::Position add = {at.queue, at.index + 1};
    companion.Write(add.index,
                    MakeFetchAdd(add, WordOf(context_->counters_table, rank_, counter), 1, Sink()));
    if (!companion.Submit(at, 2, !manner.rings_later)) return false;
    return !manner.rings_later || companion.Ring();
  }

  // The bytes that a card has read lie in memory only when a DUMP behind them is done.
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
  uint64_t piece_bytes_;  // The longest piece: kGdakiPieceBytes but in tests.
};

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_GIN_GDAKI_H_
