#pragma once

// The BlockPrimitives of kernels/primitives.h on host memory: a message is gathered from the blocks
// of the work area slice by slice into the slots of one FIFO, while the slices of another message
// are taken out of the FIFO of another rank. Neither waits for the other, so that two ranks that
// send to each other more than their FIFOs hold do not block.
//
// Owned by the executing thread for one operation; holds pointers to FIFOs and to a work area that
// belong to the communicator.

#include <cstddef>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "backend/host/wait_context.h"
#include "kernels/primitives.h"

namespace tutti {

// Moves one message out of the work area and one into it.
class BlockMover {
 public:
  BlockMover(WaitContext& wait, const HostWork& work, std::byte* area)
      : wait_(wait), work_(work), area_(area) {}

 protected:
  enum class Receive { kCopy, kReduce, kReduceFinal };

  template <class Run>
  static void List(const Run& run, std::vector<Block>& blocks) {
    blocks.clear();
    for (int i = 0; i < run.count(); ++i) Append(run[i], blocks);
  }
  // Moves the blocks of outgoing_ and incoming_.
  void Move(const SendLink& send, const RecvLink& recv, Receive how);

  std::vector<Block> outgoing_, incoming_;

 private:
  // Says how far a message has got.
  struct Cursor {
    const std::vector<Block>& blocks;
    size_t left;       // elements
    size_t block = 0;  // the next element is number `in_block` of this one
    size_t in_block = 0;
  };
  static void Append(Block block, std::vector<Block>& blocks);
  static Cursor Begin(const std::vector<Block>& blocks);
  // Calls f(place in the area, elements before it in the slice, elements) for the next n elements.
  template <class F>
  static void Take(Cursor& cursor, size_t n, F f);
  bool StepSend(const SendLink& link, Cursor& cursor);
  bool StepRecv(const RecvLink& link, Cursor& cursor, Receive how);

  WaitContext& wait_;
  const HostWork& work_;
  std::byte* const area_;
};

// `links` finds the connections of a peer.
template <class Links>
class HostBlockPrimitives : private BlockMover {
 public:
  HostBlockPrimitives(WaitContext& wait, const HostWork& work, std::byte* area, Links links)
      : BlockMover(wait, work, area), links_(links) {}

  template <class Send, class Recv>
  void Exchange(int to, const Send& send, int from, const Recv& recv) {
    Run(to, send, from, recv, Receive::kCopy);
  }
  template <class Send, class Recv>
  void ExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool final) {
    Run(to, send, from, recv, final ? Receive::kReduceFinal : Receive::kReduce);
  }

 private:
  template <class Send, class Recv>
  void Run(int to, const Send& send, int from, const Recv& recv, Receive how) {
    List(send, outgoing_);
    List(recv, incoming_);
    // A connection that nothing passes in the whole operation has not been opened.
    Move(outgoing_.empty() ? SendLink{} : links_.SendTo(to),
         incoming_.empty() ? RecvLink{} : links_.RecvFrom(from), how);
  }

  Links links_;
};

}  // namespace tutti
