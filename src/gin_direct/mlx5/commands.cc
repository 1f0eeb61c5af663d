#include "gin_direct/mlx5/commands.h"

#include <algorithm>

namespace tutti {
namespace {

enum Opcode : uint32_t {
  kCreateCompletions = 0x400,
  kCreatePair = 0x500,
  kResetToInit = 0x502,
  kInitToReceive = 0x503,
  kReceiveToSend = 0x504,
  kQueryPair = 0x50b,
};

// A field: its first bit and its width, at most 32 bits within one word.
struct Field {
  size_t bit;
  uint32_t width;
};
constexpr Field In(size_t base, Field field) { return {base + field.bit, field.width}; }

// Fields of commands, of answers, and of the contexts within them.
constexpr Field kOpcode{0x00, 16};
constexpr Field kPairNumber{0x48, 24};
constexpr Field kStatus{0x00, 8};
constexpr Field kSyndrome{0x20, 32};
constexpr Field kObject{0x48, 24};

constexpr size_t kCompletionsAt = 0x80;
namespace completions {
constexpr Field kRecordInUmem{0x06, 1}, kIgnoreOverrun{0x0e, 1}, kRecordUmem{0x20, 32},
    kLogSize{0x63, 5}, kUarPage{0x68, 24}, kEventQueue{0xa0, 32}, kRecord{0x1c0, 32};
}  // namespace completions
constexpr Field kCompletionsOffset{0x280, 32}, kCompletionsUmem{0x2c0, 32},
    kCompletionsInUmem{0x2e0, 1};

constexpr size_t kPairAt = 0xc0;
namespace pair {
constexpr Field kState{0x00, 4}, kMigration{0x13, 2}, kDomain{0x28, 24}, kMtu{0x40, 3},
    kLogMostBytes{0x43, 5}, kLogSendSize{0x51, 4}, kUarPage{0x68, 24}, kRemote{0xa8, 24},
    kLogReadsSent{0x388, 3}, kRetries{0x38d, 3}, kNotReadyRetries{0x390, 3},
    kCompletionsOfSends{0x3e8, 24}, kLogReadsServed{0x488, 3}, kAtomicMode{0x48c, 4},
    kServesReads{0x490, 1}, kServesWrites{0x491, 1}, kServesAtomics{0x492, 1},
    kNotReadyTimer{0x4a3, 5}, kCompletionsOfReceives{0x4e8, 24}, kRecord{0x500, 32},
    kReceiveKind{0x565, 3}, kRecordInUmem{0x683, 1}, kRecordUmem{0x720, 32};
}  // namespace pair
constexpr Field kEntriesOffset{0x800, 32}, kEntriesUmem{0x840, 32}, kEntriesInUmem{0x860, 1};

// The route to the other end, within the context of a queue pair.
constexpr size_t kRouteAt = kPairAt + 0xc0;
namespace route {
constexpr Field kPkey{0x10, 16}, kGlobal{0x28, 1}, kLid{0x30, 16}, kTimeout{0x40, 5},
    kGidIndex{0x48, 8}, kHops{0x58, 8}, kTrafficClass{0x64, 8}, kGid{0x80, 32}, kDscp{0x10a, 6},
    kUdpPort{0x110, 16}, kPriority{0x121, 3}, kServiceLevel{0x124, 4}, kPort{0x128, 8},
    kMacHigh{0x130, 16}, kMacLow{0x140, 32};
}  // namespace route

constexpr uint32_t kMigrated = 3;    // the only route is in use
constexpr uint32_t kNoReceives = 3;  // no receive queue
// Atomic operations as InfiniBand has them, on words of 8 bytes in the order of the host.
constexpr uint32_t kStandardAtomics = 1;
constexpr uint32_t kStopped = 6;        // the state of a queue pair after an error
constexpr uint32_t kLogMostBytes = 30;  // kernels put at most 1 GiB at a time
// 0.64 ms, by the code of the standard. No receive is ever waited for.
constexpr uint32_t kNotReadyTimer = 12;
constexpr uint32_t kNotReadyRetries = 7;
constexpr uint32_t kMostHops = 255;
// The first source port of RoCE, by which switches spread the traffic.
constexpr uint32_t kFirstUdpPort = 0xc000;

// Puts a value into a field, or the upper and lower half of a value into a field of 64 bits.
void Put(std::span<uint8_t> command, Field field, uint32_t value) {
  for (uint32_t i = 0; i < field.width; ++i) {
    if ((value >> i & 1) == 0) continue;
    const size_t bit = field.bit + field.width - 1 - i;
    command[bit / 8] = static_cast<uint8_t>(command[bit / 8] | 0x80u >> bit % 8);
  }
}
void Put64(std::span<uint8_t> command, Field upper, uint64_t value) {
  Put(command, upper, static_cast<uint32_t>(value >> 32));
  Put(command, {upper.bit + 32, 32}, static_cast<uint32_t>(value));
}
uint32_t Take(std::span<const uint8_t> answer, Field field) {
  uint32_t value = 0;
  for (size_t bit = field.bit; bit < field.bit + field.width; ++bit)
    value = value << 1 | (answer[bit / 8] >> (7 - bit % 8) & 1u);
  return value;
}

Mlx5LongCommand Begin(Opcode opcode) {
  Mlx5LongCommand command;
  Put(command.bytes, kOpcode, opcode);
  return command;
}

// A command to move the state of a queue pair.
class Move {
 public:
  Move(Opcode opcode, uint32_t number, const Mlx5Route& way) : command_(Begin(opcode)) {
    Put(command_.bytes, kPairNumber, number);
    OnRoute(route::kPort, way.port);
  }
  Move& OnPair(Field field, uint32_t value) {
    Put(command_.bytes, In(kPairAt, field), value);
    return *this;
  }
  Move& OnRoute(Field field, uint32_t value) {
    Put(command_.bytes, In(kRouteAt, field), value);
    return *this;
  }
  // Puts bytes at the beginning of a field.
  Move& OnRoute(Field field, std::span<const uint8_t> bytes) {
    std::copy(bytes.begin(), bytes.end(), command_.bytes.begin() + (kRouteAt + field.bit) / 8);
    return *this;
  }
  const Mlx5LongCommand& command() const { return command_; }

 private:
  Mlx5LongCommand command_;
};

}  // namespace

// The queue ignores overruns, because nobody tells the card how far kernels have read.
Mlx5LongCommand CreateCompletions(const Mlx5CompletionsSpec& spec) {
  Mlx5LongCommand command = Begin(kCreateCompletions);
  const auto put = [&](Field field, uint32_t value) {
    Put(command.bytes, In(kCompletionsAt, field), value);
  };
  put(completions::kIgnoreOverrun, 1);
  put(completions::kLogSize, spec.log_size);
  put(completions::kUarPage, spec.uar_page);
  put(completions::kEventQueue, spec.event_queue);
  put(completions::kRecordInUmem, 1);
  put(completions::kRecordUmem, spec.record.umem);
  Put64(command.bytes, In(kCompletionsAt, completions::kRecord), spec.record.offset);
  Put64(command.bytes, kCompletionsOffset, spec.entries.offset);
  Put(command.bytes, kCompletionsUmem, spec.entries.umem);
  Put(command.bytes, kCompletionsInUmem, 1);
  return command;
}

Mlx5LongCommand CreatePair(const Mlx5PairSpec& spec) {
  Mlx5LongCommand command = Begin(kCreatePair);
  const auto put = [&](Field field, uint32_t value) {
    Put(command.bytes, In(kPairAt, field), value);
  };
  put(pair::kMigration, kMigrated);
  put(pair::kDomain, spec.domain);
  put(pair::kLogSendSize, spec.log_size);
  put(pair::kReceiveKind, kNoReceives);
  put(pair::kUarPage, spec.uar_page);
  put(pair::kCompletionsOfSends, spec.completions);
  put(pair::kCompletionsOfReceives, spec.completions);
  put(pair::kRecordInUmem, 1);
  put(pair::kRecordUmem, spec.record.umem);
  Put64(command.bytes, In(kPairAt, pair::kRecord), spec.record.offset);
  Put64(command.bytes, kEntriesOffset, spec.entries.offset);
  Put(command.bytes, kEntriesUmem, spec.entries.umem);
  Put(command.bytes, kEntriesInUmem, 1);
  return command;
}

Mlx5LongCommand ResetToInit(uint32_t number, const Mlx5Route& way) {
  return Move(kResetToInit, number, way)
      .OnPair(pair::kMigration, kMigrated)
      .OnPair(pair::kServesReads, 1)
      .OnPair(pair::kServesWrites, 1)
      .OnPair(pair::kServesAtomics, 1)
      .OnPair(pair::kAtomicMode, kStandardAtomics)
      .OnRoute(route::kPkey, way.pkey_index)
      .command();
}

// Packets are numbered from 0 on both ways.
Mlx5LongCommand InitToReceive(uint32_t number, const Mlx5Route& way) {
  Move move(kInitToReceive, number, way);
  move.OnPair(pair::kMtu, way.mtu)
      .OnPair(pair::kLogMostBytes, kLogMostBytes)
      .OnPair(pair::kRemote, way.remote_pair)
      .OnPair(pair::kLogReadsServed, way.log_reads)
      .OnPair(pair::kNotReadyTimer, kNotReadyTimer);
  if (way.global) {
    move.OnRoute(route::kGlobal, way.remote.ethernet ? 0 : 1)
        .OnRoute(route::kGidIndex, way.gid_index)
        .OnRoute(route::kHops, kMostHops)
        .OnRoute(route::kTrafficClass, way.traffic_class)
        .OnRoute(route::kGid, way.remote.gid);
  }
  if (way.remote.ethernet) {
    move.OnRoute(route::kMacHigh, way.remote_mac)
        .OnRoute(route::kUdpPort, kFirstUdpPort)
        .OnRoute(route::kDscp, way.traffic_class >> 2u)
        .OnRoute(route::kPriority, way.service_level & 7u);
  } else {
    move.OnRoute(route::kLid, way.remote.lid).OnRoute(route::kServiceLevel, way.service_level);
  }
  return move.command();
}

Mlx5LongCommand ReceiveToSend(uint32_t number, const Mlx5Route& way) {
  return Move(kReceiveToSend, number, way)
      .OnPair(pair::kLogReadsSent, way.log_reads)
      .OnPair(pair::kRetries, way.retry_count)
      .OnPair(pair::kNotReadyRetries, kNotReadyRetries)
      .OnRoute(route::kTimeout, way.timeout)
      .command();
}

Mlx5ShortCommand QueryPair(uint32_t number) {
  Mlx5ShortCommand command;
  Put(command.bytes, kOpcode, kQueryPair);
  Put(command.bytes, kPairNumber, number);
  return command;
}

uint32_t NumberIn(const Mlx5ShortAnswer& answer) { return Take(answer.bytes, kObject); }
uint32_t StatusIn(std::span<const uint8_t> answer) { return Take(answer, kStatus); }
uint32_t SyndromeIn(std::span<const uint8_t> answer) { return Take(answer, kSyndrome); }
bool HasStopped(const Mlx5QueryAnswer& answer) {
  return Take(answer.bytes, In(kPairAt, pair::kState)) == kStopped;
}

}  // namespace tutti
