#pragma once

// The FifoPrimitives and ExchangePrimitives of kernels/primitives.h on host memory. A chunk goes
// slice by slice through FIFOs, one slice for each slot, hence the next rank works on the first
// slice while the second slice is on its way.
//
// The executing thread owns the object for one operation. The FIFOs belong to the communicator.

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/host/reduce_spec.h"
#include "backend/host/wait_context.h"
#include "base/copy.h"
#include "connection/fifo.h"
#include "kernels/primitives.h"
#include "plan/cost_table.h"

namespace tutti {

// The most peers of one primitive in either direction: the children of a binary tree.
inline constexpr int kMaxFan = 2;

struct SendLink {
  int peer = -1;
  FifoSender* fifo = nullptr;
  bool inline_small = true;  // puts small chunks into the header's line (FifoSender::TryAcquire)
  bool remote = false;       // a proxy connection empties the FIFO
};
struct RecvLink {
  int peer = -1;
  FifoReceiver* fifo = nullptr;
  bool remote = false;  // a proxy connection fills the FIFO
};

// The description of an operation, shared by all its primitives.
struct HostWork {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t elem_bytes = 1;
  size_t slice_elems = 1;  // elements per slot, equal on every rank of the operation
  uint32_t op_tag = 0;
  ReduceSpec reduce;
};

class HostFifoPrimitives {
 public:
  HostFifoPrimitives(WaitContext& wait, const HostWork& work) : wait_(wait), work_(work) {}

  void AddSend(SendLink link) {
    sends_[static_cast<size_t>(num_sends_++)] = link;
    remote_ |= link.remote;
  }
  void AddRecv(RecvLink link) {
    recvs_[static_cast<size_t>(num_recvs_++)] = link;
    remote_ |= link.remote;
  }

  void Send(size_t in, size_t n) { Run({.input = true, .send = true}, in, 0, n); }
  void CopySend(size_t in, size_t out, size_t n) {
    Run({.input = true, .output = true, .send = true}, in, out, n);
  }
  void Recv(size_t out, size_t n) { Run({.recv = true, .output = true}, 0, out, n); }
  void RecvCopySend(size_t out, size_t n) {
    Run({.recv = true, .output = true, .send = true}, 0, out, n);
  }
  void RecvReduceSend(size_t in, size_t n) {
    Run({.input = true, .recv = true, .send = true}, in, 0, n);
  }
  void RecvReduceCopyFinal(size_t in, size_t out, size_t n) {
    Run({.input = true, .recv = true, .output = true, .final = true}, in, out, n);
  }
  void RecvReduceCopySendFinal(size_t in, size_t out, size_t n) {
    Run({.input = true, .recv = true, .output = true, .send = true, .final = true}, in, out, n);
  }

 private:
  struct Step {
    bool input = false;
    bool recv = false;
    bool output = false;
    bool send = false;
    bool final = false;
  };
  void Run(Step step, size_t in, size_t out, size_t n);
  bool RunSlice(Step step, size_t in, size_t out, size_t n);

  WaitContext& wait_;
  const HostWork& work_;
  std::array<SendLink, kMaxFan> sends_;
  std::array<RecvLink, kMaxFan> recvs_;
  int num_sends_ = 0;
  int num_recvs_ = 0;
  bool remote_ = false;  // a proxy connection moves some of the chunks
  size_t bytes_since_poll_ = 0;
};

// AcquireSlot waits until the link has room for a slice of `bytes`, AwaitSlice until a slice of
// `bytes` has come. Both functions return null when the wait failed.
std::byte* AcquireSlot(WaitContext& wait, const SendLink& link, size_t bytes);
const std::byte* AwaitSlice(WaitContext& wait, const RecvLink& link, size_t bytes, uint32_t op_tag);

// Pairwise exchange for recursive doubling; `links` finds the connections of a peer.
template <class Links>
class HostExchangePrimitives {
 public:
  HostExchangePrimitives(WaitContext& wait, const HostWork& work, Links links)
      : wait_(wait), work_(work), links_(links) {}

  void LoadInput(size_t n) {
    const void* source = work_.input;
    if (work_.reduce.scale || work_.input != work_.output)
      work_.reduce.Apply(work_.output, &source, 1, n, true, false);
  }
  void SendOutput(int peer, size_t n) {
    const SendLink link = links_.SendTo(peer);
    for (Piece piece(n, work_.slice_elems); piece.More(); piece.Next())
      if (!SendSlice(link, piece)) return;
  }
  void RecvOutput(int peer, size_t n) {
    HostFifoPrimitives p(wait_, work_);
    p.AddRecv(links_.RecvFrom(peer));
    p.Recv(0, n);
  }
  void RecvReduceOutput(int peer, bool mine_first, size_t n) {
    const RecvLink link = links_.RecvFrom(peer);
    for (Piece piece(n, work_.slice_elems); piece.More(); piece.Next())
      if (!RecvReduceSlice(link, mine_first, piece)) return;
  }
  // Sends kSlicesPerStep slices ahead of the received slices. A long way between the ranks
  // therefore costs its latency once and not for each slice. Each end is at most kSlicesPerStep
  // slices ahead of the other end, hence a FIFO holds fewer than twice as many slices and has room.
  void ExchangeReduceOutput(int peer, bool mine_first, size_t n) {
    static_assert(2 * kSlicesPerStep <= kFifoSlots);
    const SendLink send = links_.SendTo(peer);
    const RecvLink recv = links_.RecvFrom(peer);
    Piece ahead(n, work_.slice_elems);
    size_t lead = 0;  // sent slices whose counterparts have not come
    for (Piece piece = ahead; piece.More(); piece.Next(), --lead) {
      for (; lead < kSlicesPerStep && ahead.More(); ahead.Next(), ++lead)
        if (!SendSlice(send, ahead)) return;
      if (!RecvReduceSlice(recv, mine_first, piece)) return;
    }
  }
  void FinishOutput(size_t n) {
    const void* source = work_.output;
    if (work_.reduce.divisor != 0) work_.reduce.Apply(work_.output, &source, 1, n, false, true);
  }

 private:
  std::byte* At(const Piece& piece) const {
    return work_.output + piece.offset() * work_.elem_bytes;
  }
  bool SendSlice(const SendLink& link, const Piece& piece) {
    const size_t bytes = piece.size() * work_.elem_bytes;
    std::byte* room = AcquireSlot(wait_, link, bytes);
    if (room == nullptr) return false;
    CopyBytes(room, At(piece), bytes);
    link.fifo->Publish(bytes, work_.op_tag);
    return true;
  }
  bool RecvReduceSlice(const RecvLink& link, bool mine_first, const Piece& piece) {
    const std::byte* theirs =
        AwaitSlice(wait_, link, piece.size() * work_.elem_bytes, work_.op_tag);
    if (theirs == nullptr) return false;
    std::byte* mine = At(piece);
    const void* sources[2] = {mine_first ? mine : theirs, mine_first ? theirs : mine};
    work_.reduce.Apply(mine, sources, 2, piece.size(), false, false);
    link.fifo->Release();
    return true;
  }

  WaitContext& wait_;
  const HostWork& work_;
  Links links_;
};

}  // namespace tutti
