#pragma once

// The TwoLevelPrimitives of kernels/two_level.h for one block over one channel. A chunk goes slice
// by slice through FIFOs, one slice per slot. Data from the host's ring and from the rail are read
// in their slots and added to this rank's elements. The sum is written at once into the slots of
// the next ranks and, if it is a result, into the output.

#include "backend/cuda/channel_fifo.h"
#include "backend/cuda/ring_elements.h"
#include "kernels/two_level.h"

namespace tutti::cuda {

template <class T>
class TwoLevelChannel {
 public:
  // `begin`: this channel's first element of input and output.
  TUTTI_HD TwoLevelChannel(const ChannelArgs& args, uint32_t channel, size_t begin)
      : args_(args),
        elements_(args.reduce),
        block_(args.common),
        host_next_(args.next[channel]),
        rail_next_(args.rail_next[channel]),
        host_previous_(args.previous[channel]),
        rail_previous_(args.rail_previous[channel]),
        begin_(begin) {}
  // Keeps the counts for the next kernel. Without the barrier a thread might still read old counts.
  TUTTI_HD void Finish() {
    if (Lanes::index() == 0) rail_next_.AwaitLent(block_);
    Lanes::Sync();
    block_.KeepFailure();
    if (Lanes::index() != 0) return;
    host_next_.KeepCount();
    rail_next_.KeepCount();
    host_previous_.KeepCount();
    rail_previous_.KeepCount();
  }

  // Out of line, because otherwise every call of the algorithms would contain a copy.
  TUTTI_OUTLINE void Move(uint32_t what, size_t in, size_t out, size_t n) {
    TUTTI_UNROLL_BY(1)
    for (size_t at = 0; at < n && !block_.failed(); at += args_.slice_elems)
      Slice(what, begin_ + in + at, begin_ + out + at, ClampChunk(at, args_.slice_elems, n));
  }

 private:
  using Sum = typename RingElements<T>::Sum;
  static constexpr size_t kSize = sizeof(T);

  TUTTI_HD static bool Has(uint32_t what, uint32_t bit) { return (what & bit) != 0; }

  TUTTI_HD void Slice(uint32_t what, size_t in, size_t out, size_t n) {
    WaitForPeers(what);
    if (block_.failed()) return;
    const std::byte* const input = Has(what, kernels::kReads) ? args_.input + in * kSize : nullptr;
    std::byte* const output = Has(what, kernels::kWrites) ? args_.output + out * kSize : nullptr;
    // Nothing is lent within a host, whose ranks reach one another's memory.
    const bool is_own = !Has(what, kernels::kFromHost | kernels::kFromRail);
    const std::byte* const lent = Has(what, kernels::kToRail)
                                      ? rail_next_.LentPlace(is_own ? input : nullptr, output)
                                      : nullptr;
    const uint32_t moves = lent != nullptr ? what & ~kernels::kToRail : what;
    if (elements_.ArePlain(input, output, n))
      MoveLines<true>(moves, input, output, n * kSize);
    else
      MoveLines<false>(moves, input, output, n * kSize);
    Announce(what, lent, n * kSize);
  }

  // Four warps wait, if there are enough warps.
  TUTTI_HD void WaitForPeers(uint32_t what) {
    const uint32_t apart = Lanes::count() > 96 ? 32 : 0;
    const uint32_t me = Lanes::index();
    if (Has(what, kernels::kFromHost) && me == 0) host_previous_.AwaitChunk(block_);
    if (Has(what, kernels::kFromRail) && me == apart) rail_previous_.AwaitChunk(block_);
    if (Has(what, kernels::kToHost) && me == 2 * apart) host_next_.AwaitRoom(block_);
    if (Has(what, kernels::kToRail) && me == 3 * apart) rail_next_.AwaitRoom(block_);
    block_.ShareFailure();
  }
  // One fence for all writes orders them before the announcements.
  TUTTI_HD void Announce(uint32_t what, const std::byte* lent, size_t bytes) {
    const bool to_host = Has(what, kernels::kToHost), to_rail = Has(what, kernels::kToRail);
    const bool from_host = Has(what, kernels::kFromHost), from_rail = Has(what, kernels::kFromRail);
    Lanes::Sync();
    if (Lanes::index() == 0) {
      if (to_host) host_next_.Describe(bytes, block_.op_tag());
      if (to_rail) rail_next_.DescribeAt(lent, bytes, block_.op_tag());
      if (to_host || to_rail) FenceSystem();
      if (to_host) host_next_.Announce();
      if (to_rail) rail_next_.Announce();
      if (from_host) host_previous_.Release();
      if (from_rail) rail_previous_.Release();
    }
    if (to_host) host_next_.Pass();
    if (to_rail) rail_next_.Pass();
    if (from_host) host_previous_.Pass();
    if (from_rail) rail_previous_.Pass();
  }

  // A pointer is null where a move neither takes nor gives data.
  template <bool kPlain>
  TUTTI_HD void MoveLines(uint32_t what, const std::byte* input, std::byte* output, size_t bytes) {
    const std::byte* const host = Has(what, kernels::kFromHost) ? host_previous_.slot() : nullptr;
    const std::byte* const rail = Has(what, kernels::kFromRail) ? rail_previous_.slot() : nullptr;
    std::byte* const to_host = Has(what, kernels::kToHost) ? host_next_.slot() : nullptr;
    std::byte* const to_rail = Has(what, kernels::kToRail) ? rail_next_.slot() : nullptr;
    const auto lines = static_cast<uint32_t>(DivUp(bytes, 16));
    const uint32_t step = Lanes::count();
    const auto at = [](uint32_t i) { return size_t{16} * i; };
    TUTTI_UNROLL_BY(1)
    for (uint32_t first = Lanes::index(); first < lines; first += step * kUnroll) {
      Line of_host[kUnroll] = {}, of_rail[kUnroll] = {}, mine[kUnroll] = {};
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        if (host != nullptr) of_host[u] = LoadSlot(host + at(i));
        if (rail != nullptr) of_rail[u] = LoadSlot(rail + at(i));
        if (input != nullptr)
          mine[u] = elements_.template Load<kPlain>(input + at(i), bytes - at(i));
      }
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * step;
        if (i >= lines) continue;
        const Line line = Joined(what, of_host[u], of_rail[u], mine[u]);
        if (to_host != nullptr) StoreLine(to_host + at(i), line);
        if (to_rail != nullptr) StoreLine(to_rail + at(i), line);
        if (output == nullptr) continue;
        if constexpr (kPlain)
          StoreLine(output + at(i), line);
        else
          StoreAny<16>(output + at(i), line, bytes - at(i));
      }
    }
  }
  // A sum of three is rounded once.
  TUTTI_HD Line Joined(uint32_t what, const Line& host, const Line& rail, const Line& mine) const {
    if (!Has(what, kernels::kReads)) return Has(what, kernels::kFromHost) ? host : rail;
    if (!Has(what, kernels::kFromHost | kernels::kFromRail)) return mine;
    auto sum = Sum::From(mine.w);
    if (Has(what, kernels::kFromHost)) sum.Combine(args_.reduce.kind, Sum::From(host.w));
    if (Has(what, kernels::kFromRail)) sum.Combine(args_.reduce.kind, Sum::From(rail.w));
    return elements_.Stored(sum, Has(what, kernels::kIsFinal));
  }

  const ChannelArgs& args_;
  const RingElements<T> elements_;
  ChannelBlock block_;
  DeviceProducer host_next_, rail_next_;
  DeviceConsumer host_previous_, rail_previous_;
  const size_t begin_;
};

}  // namespace tutti::cuda
