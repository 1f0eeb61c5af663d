#include "coordinator/inline_data.h"

#include <array>
#include <cstring>

#include "base/reduce.h"
#include "coordinator/staging.h"

namespace tutti::coordinator {
namespace {

constexpr int kEmpty = 0xffff;

int SlotOf(const uint8_t* block) { return block[0] | block[1] << 8; }

}  // namespace

// Groups run whole or not at all, and GPUs' data is not at hand: neither travels inline.
bool FitsInline(const Request& request) {
  if (request.kind != OpKind::kAllreduce || request.op == ReduceOp::kAdasum) return false;
  if (request.group_size > 0 || request.device >= 0) return false;
  const int64_t elements = request.elements();
  return elements > 0 && elements <= static_cast<int64_t>(kInlineDataBytes) &&
         static_cast<size_t>(elements) * WireSize(WireType(request)) <= kInlineDataBytes;
}

void WriteInlineBlock(const Request& request, int slot, const void* input,
                      std::span<uint8_t> blocks, int rank) {
  if (slot >= kEmpty) return;
  uint8_t* const block = blocks.data() + static_cast<size_t>(rank) * kInlineBlockBytes;
  block[0] = static_cast<uint8_t>(slot);
  block[1] = static_cast<uint8_t>(slot >> 8);
  // Blocks follow the states without regard to alignment.
  alignas(8) std::array<std::byte, kInlineDataBytes> data = {};
  const auto count = static_cast<size_t>(request.elements());
  StageIn(request, input, data.data(), count);
  std::memcpy(block + 2, data.data(), data.size());
}

// An empty block (0xffff) never equals a slot.
int SlotOfAllBlocks(std::span<const uint8_t> blocks) {
  if (blocks.empty()) return -1;
  const int slot = SlotOf(blocks.data());
  for (size_t at = kInlineBlockBytes; at < blocks.size(); at += kInlineBlockBytes) {
    if (SlotOf(blocks.data() + at) != slot) return -1;
  }
  return slot == kEmpty ? -1 : slot;
}

void ReduceInlineBlocks(const Request& request, std::span<const uint8_t> blocks,
                        std::byte* result) {
  std::array<const void*, kMostInlineRanks> sources;
  int ranks = 0;
  for (size_t at = 0; at < blocks.size(); at += kInlineBlockBytes) {
    sources[static_cast<size_t>(ranks++)] = blocks.data() + at + 2;
  }
  const auto type = static_cast<DataType>(WireType(request));
  const ncclRedOp_t op = WireOp(request);
  ReduceArgs args;
  if (op == ncclAvg) args.divisor = static_cast<uint64_t>(ranks);
  const auto count = static_cast<size_t>(request.elements());
  FindReduce(type, KindOf(op))(result, sources.data(), ranks, count, args);
}

}  // namespace tutti::coordinator
