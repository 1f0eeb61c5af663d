#include "backend/host/block_primitives.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/copy.h"

namespace tutti {
namespace {

// A thread that waits for two FIFOs in shared memory can sleep on only one of them. The thread
// checks the second FIFO again after this time.
constexpr int64_t kShortSleepNs = 500'000;

}  // namespace

// Adjacent blocks are moved as one block.
void BlockMover::Append(Block block, std::vector<Block>& blocks) {
  if (block.size == 0) return;
  if (!blocks.empty() && blocks.back().at + blocks.back().size == block.at)
    blocks.back().size += block.size;
  else
    blocks.push_back(block);
}

BlockMover::Cursor BlockMover::Begin(const std::vector<Block>& blocks) {
  size_t elems = 0;
  for (const Block& block : blocks) elems += block.size;
  return {blocks, elems};
}

// A slice may end in the middle of a block and may span several blocks. All slices therefore have
// one length, with any blocks.
template <class F>
void BlockMover::Take(Cursor& cursor, size_t n, F f) {
  for (size_t before = 0; before < n;) {
    const Block& block = cursor.blocks[cursor.block];
    const size_t part = std::min(n - before, block.size - cursor.in_block);
    f(block.at + cursor.in_block, before, part);
    before += part;
    cursor.in_block += part;
    if (cursor.in_block == block.size) {
      ++cursor.block;
      cursor.in_block = 0;
    }
  }
  cursor.left -= n;
}

// Alternates between both directions until both are done. The function waits only when neither
// direction can move, and then for the ranks of the unfinished directions. `peers` is {from, to},
// and `waited` the part with unfinished directions.
void BlockMover::Move(const SendLink& send, const RecvLink& recv, Receive how, bool of_input) {
  const std::byte* const source = of_input ? input_ : area_;
  Cursor out = Begin(outgoing_);
  Cursor in = Begin(incoming_);
  const std::array<int, 2> peers = {recv.peer, send.peer};
  const auto step = [&] {
    const bool sent = StepSend(send, out, source);
    return StepRecv(recv, in, how) || sent || wait_.failed();
  };
  const auto sleep = [&](int64_t timeout_ns) {
    const int64_t ns = out.left > 0 ? std::min(timeout_ns, kShortSleepNs) : timeout_ns;
    if (in.left > 0)
      recv.fifo->SleepForChunk(ns);
    else
      send.fifo->SleepForRoom(ns);
  };
  const bool remote = (out.left == 0 || send.remote) && (in.left == 0 || recv.remote);
  while (out.left > 0 || in.left > 0) {
    const std::span<const int> waited =
        std::span(peers).subspan(in.left > 0 ? 0 : 1, in.left > 0 && out.left > 0 ? 2 : 1);
    if (!wait_.WaitForAny([&] { return waited; }, step, sleep, remote)) return;
  }
}

// An input in the work area needs no copy.
void BlockMover::Load() {
  if (input_ == area_) return;
  for (const Block& block : incoming_)
    CopyBytes(area_ + block.at * work_.elem_bytes, input_ + block.at * work_.elem_bytes,
              block.size * work_.elem_bytes);
}

// Sends slices until the message is complete or the FIFO has no room.
bool BlockMover::StepSend(const SendLink& link, Cursor& cursor, const std::byte* source) {
  bool moved = false;
  while (cursor.left > 0) {
    const size_t n = std::min(cursor.left, work_.slice_elems);
    const size_t elem = work_.elem_bytes;
    std::byte* const slot = link.fifo->TryAcquire(n * elem, link.inline_small);
    if (slot == nullptr) break;
    Take(cursor, n, [&](size_t at, size_t before, size_t part) {
      CopyBytes(slot + before * elem, source + at * elem, part * elem);
    });
    link.fifo->Publish(n * elem, work_.op_tag);
    moved = true;
  }
  return moved;
}

// Takes all arrived chunks. A reduction adds them to the work area in place. The divisor of an
// average is applied with the last message only (kReduceFinal).
bool BlockMover::StepRecv(const RecvLink& link, Cursor& cursor, Receive how) {
  bool moved = false;
  while (cursor.left > 0 && !wait_.failed()) {
    const FifoChunk chunk = link.fifo->TryPeek();
    if (chunk.data == nullptr) break;
    const size_t n = std::min(cursor.left, work_.slice_elems);
    const size_t elem = work_.elem_bytes;
    if (chunk.op_tag != work_.op_tag || chunk.bytes != n * elem) [[unlikely]] {
      wait_.FailForeignChunk(link.peer, work_.op_tag, chunk.op_tag);
      return true;
    }
    Take(cursor, n, [&](size_t at, size_t before, size_t part) {
      std::byte* const mine = area_ + at * elem;
      const std::byte* const theirs = chunk.data + before * elem;
      if (how == Receive::kCopy) return CopyBytes(mine, theirs, part * elem);
      const void* sources[2] = {how == Receive::kReduceInput ? input_ + at * elem : mine, theirs};
      work_.reduce.Apply(mine, sources, 2, part, false, how == Receive::kReduceFinal);
    });
    link.fifo->Release();
    moved = true;
  }
  return moved;
}

}  // namespace tutti
