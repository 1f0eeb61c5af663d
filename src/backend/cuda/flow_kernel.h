#pragma once

// Sends and receives of a group over FIFOs (channel_args.h). A block runs one flow and takes the
// flow's messages in order. A flow waits only for its peers.

#include "backend/cuda/channel_fifo.h"

namespace tutti::cuda {

class FlowBlock {
 public:
  TUTTI_HD FlowBlock(const FlowArgs& args, const Flow& flow)
      : args_(args), flow_(flow), block_(args.common), send_(flow.send), receive_(flow.receive) {}

  TUTTI_HD void Run() {
    TUTTI_UNROLL_BY(1)
    for (uint32_t m = flow_.first; m < uint32_t{flow_.first} + flow_.count; ++m)
      Carry(args_.messages[m]);
    if (lends_ && Lanes::index() == 0) send_.AwaitAll(block_);
    Lanes::Sync();
    block_.KeepFailure();
    if (Lanes::index() != 0) return;
    send_.KeepCount();
    receive_.KeepCount();
  }

 private:
  TUTTI_HD void Carry(const FlowMessage& message) {
    if (flow_.kind == MessageKind::kCopy) {
      CopyByBlock(message.buffer, message.from, message.bytes);
      return;
    }
    TUTTI_UNROLL_BY(1)
    for (size_t at = 0; at < message.bytes && !block_.failed(); at += args_.slice_bytes) {
      const size_t bytes = ClampChunk(at, args_.slice_bytes, message.bytes);
      if (flow_.kind == MessageKind::kSend && message.from != nullptr)
        Lend(message.buffer + at, bytes);
      else if (flow_.kind != MessageKind::kReceive)
        Send(message.buffer + at, bytes);
      // A swap has sent the slice, and thus has already read the bytes that are overwritten now.
      if (flow_.kind != MessageKind::kSend && !block_.failed()) Receive(message.buffer + at, bytes);
    }
  }
  TUTTI_HD void Send(const std::byte* from, size_t bytes) {
    if (Lanes::index() == 0) send_.AwaitRoom(block_);
    block_.ShareFailure();
    if (block_.failed()) return;
    std::byte* const to = send_.slot();
    const auto at = [](uint32_t i) { return size_t{16} * i; };
    ForLinesOf(
        DivUp(bytes, 16),
        [&](Line& line, uint32_t i) { line = LoadAny<16>(from + at(i), bytes - at(i)); },
        [&](const Line& line, uint32_t i) { StoreLine(to + at(i), line); });
    Lanes::Sync();
    if (Lanes::index() == 0) {
      send_.Describe(bytes, block_.op_tag());
      FenceSystem();
      send_.Announce();
    }
    send_.Pass();
  }
  TUTTI_HD void Lend(const std::byte* from, size_t bytes) {
    lends_ = true;
    if (Lanes::index() == 0) {
      send_.AwaitRoom(block_);
      if (!block_.failed()) {
        send_.DescribeLent(from, bytes, block_.op_tag());
        FenceSystem();
        send_.Announce();
      }
    }
    block_.ShareFailure();
    send_.Pass();
  }
  TUTTI_HD void Receive(std::byte* to, size_t bytes) {
    if (Lanes::index() == 0) receive_.AwaitChunk(block_);
    block_.ShareFailure();
    if (block_.failed()) return;
    const std::byte* const from = receive_.slot();
    const auto at = [](uint32_t i) { return size_t{16} * i; };
    ForLinesOf(
        DivUp(bytes, 16), [&](Line& line, uint32_t i) { line = LoadSlot(from + at(i)); },
        [&](const Line& line, uint32_t i) { StoreAny<16>(to + at(i), line, bytes - at(i)); });
    Lanes::Sync();
    if (Lanes::index() == 0) receive_.Release();
    receive_.Pass();
  }

  const FlowArgs& args_;
  const Flow& flow_;
  ChannelBlock block_;
  DeviceProducer send_;
  DeviceConsumer receive_;
  bool lends_ = false;  // the network reads some of the messages in their buffers
};

TUTTI_HD void RunFlows(const FlowArgs& args, uint32_t block) {
  FlowBlock(args, args.flows[block]).Run();
}

}  // namespace tutti::cuda
