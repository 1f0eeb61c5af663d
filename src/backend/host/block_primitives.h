#pragma once

// The BlockPrimitives of kernels/primitives.h on host memory. A message is gathered from blocks of
// the work area, slice by slice, into the slots of one FIFO. At the same time the slices of another
// message are taken out of another rank's FIFO. Neither direction waits for the other, hence two
// ranks do not block when they send to each other more than their FIFOs hold.
//
// The executing thread owns the object for one operation. The FIFOs and the work area belong to the
// communicator.

#include <cstddef>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "backend/host/wait_context.h"
#include "kernels/primitives.h"

namespace tutti {

// Moves one message out of the work area and one message into it.
class BlockMover {
 public:
  BlockMover(WaitContext& wait, const HostWork& work, std::byte* area, const std::byte* input)
      : wait_(wait), work_(work), area_(area), input_(input) {}

 protected:
  enum class Receive { kCopy, kReduce, kReduceInput, kReduceFinal };

  template <class Run>
  static void List(const Run& run, std::vector<Block>& blocks) {
    blocks.clear();
    for (int i = 0; i < run.count(); ++i) Append(run[i], blocks);
  }
  // Sends the blocks of outgoing_ from the work area or the input, and receives those of incoming_.
  void Move(const SendLink& send, const RecvLink& recv, Receive how, bool of_input);
  // Copies the blocks of incoming_ from the input.
  void Load();

  std::vector<Block> outgoing_, incoming_;

 private:
  // Says how much of a message has been moved.
  struct Cursor {
    const std::vector<Block>& blocks;
    size_t left;  // elements
    // number of the block with the next element, and the element's place in the block
    size_t block = 0;
    size_t in_block = 0;
  };
  static void Append(Block block, std::vector<Block>& blocks);
  static Cursor Begin(const std::vector<Block>& blocks);
  // Calls f(place in the area, earlier elements of the slice, elements) for the next n elements.
  template <class F>
  static void Take(Cursor& cursor, size_t n, F f);
  bool StepSend(const SendLink& link, Cursor& cursor, const std::byte* source);
  bool StepRecv(const RecvLink& link, Cursor& cursor, Receive how);

  WaitContext& wait_;
  const HostWork& work_;
  std::byte* const area_;
  const std::byte* const input_;
};

// `links` finds the connections of a peer. `input` may be the work area itself.
template <class Links>
class HostBlockPrimitives : private BlockMover {
 public:
  HostBlockPrimitives(WaitContext& wait, const HostWork& work, std::byte* area, Links links,
                      const std::byte* input = nullptr)
      : BlockMover(wait, work, area, input), links_(links) {}

  template <class Send, class Recv>
  void Exchange(int to, const Send& send, int from, const Recv& recv) {
    Run(to, send, from, recv, Receive::kCopy, false);
  }
  template <class Send, class Recv>
  void ExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool final) {
    Run(to, send, from, recv, final ? Receive::kReduceFinal : Receive::kReduce, false);
  }
  // REQUIRES, for LoadBlocks and InputExchangeReduce: there is an input, without scaling.
  template <class Blocks>
  void LoadBlocks(const Blocks& blocks) {
    List(blocks, incoming_);
    Load();
  }
  template <class Send, class Recv>
  void InputExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool first) {
    Run(to, send, from, recv, first ? Receive::kReduceInput : Receive::kReduce, true);
  }

 private:
  template <class Send, class Recv>
  void Run(int to, const Send& send, int from, const Recv& recv, Receive how, bool of_input) {
    List(send, outgoing_);
    List(recv, incoming_);
    // A connection without traffic in the whole operation has not been opened.
    Move(outgoing_.empty() ? SendLink{} : links_.SendTo(to),
         incoming_.empty() ? RecvLink{} : links_.RecvFrom(from), how, of_input);
  }

  Links links_;
};

}  // namespace tutti
