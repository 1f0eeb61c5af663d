#pragma once

// The commands by which mlx5 cards make completion queues and queue pairs, as bytes for DevX. Pure
// functions.
//
// A command is a run of big-endian words of 32 bits. A field is named here by its first bit,
// counted from the highest bit of word 0 on, and its width, as NVIDIA's "Adapters Programmer's
// Reference Manual" and the public interface of the driver (mlx5_ifc) number them. Fields without a
// name here are 0.
//
//   CREATE_CQ                                   CREATE_QP, and the commands that move its state
//   0x000 opcode                                0x000 opcode
//   0x080 context of the queue, 512 bits        0x040 number of the queue pair (not CREATE_QP)
//   0x280 where the entries lie in their umem   0x0c0 context of the queue pair, 1856 bits
//   0x2c0 that umem, and whether there is one   0x800 where entries lie, their umem (CREATE_QP)
//
// An answer begins with a status of 8 bits, 0 for success, and has the syndrome in word 1. Commands
// that create have the object's number in the low 24 bits of word 2.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gin_direct/card.h"

namespace tutti {

// A command of kBytes bytes.
template <size_t kBytes>
struct Mlx5Command {
  std::array<uint8_t, kBytes> bytes = {};
};
inline constexpr size_t kMlx5CommandBytes = 0x880 / 8;  // All commands here but the query.
using Mlx5LongCommand = Mlx5Command<kMlx5CommandBytes>;
using Mlx5ShortCommand = Mlx5Command<16>;
// Answers with a number or nothing, and the answer of the query.
using Mlx5ShortAnswer = Mlx5Command<16>;
using Mlx5QueryAnswer = Mlx5Command<kMlx5CommandBytes>;

// Memory within a umem: the number of the umem, and an offset.
struct Mlx5Place {
  uint32_t umem = 0;
  uint64_t offset = 0;
};

// Describes a completion queue to make. The completion queue has no interrupts, and nobody need
// tell how far it has been read, because the queue pair that completes there has no more entries.
struct Mlx5CompletionsSpec {
  uint32_t log_size = 0;
  uint32_t uar_page = 0;
  uint32_t event_queue = 0;
  Mlx5Place entries;
  Mlx5Place record;
};
Mlx5LongCommand CreateCompletions(const Mlx5CompletionsSpec& spec);

// Describes a reliable queue pair without a receive queue.
struct Mlx5PairSpec {
  uint32_t log_size = 0;
  uint32_t domain = 0;
  uint32_t uar_page = 0;
  uint32_t completions = 0;
  Mlx5Place entries;
  Mlx5Place record;
};
Mlx5LongCommand CreatePair(const Mlx5PairSpec& spec);

// The route from a queue pair to its other end.
struct Mlx5Route {
  uint8_t port = 1;
  uint16_t pkey_index = 0;
  uint32_t remote_pair = 0;
  CardEnd remote;
  std::array<uint8_t, 6> remote_mac = {};  // RoCE only
  bool global = false;                     // by GID; else by LID
  uint8_t gid_index = 0;
  uint8_t mtu = 0;  // an ibv_mtu
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t log_reads = 0;  // the most reads and atomic operations under way
};
// Take a queue pair from reset to a state in which it can be joined, join it, and let it send.
Mlx5LongCommand ResetToInit(uint32_t pair, const Mlx5Route& route);
Mlx5LongCommand InitToReceive(uint32_t pair, const Mlx5Route& route);
Mlx5LongCommand ReceiveToSend(uint32_t pair, const Mlx5Route& route);

Mlx5ShortCommand QueryPair(uint32_t pair);

// Read answers.
uint32_t NumberIn(const Mlx5ShortAnswer& answer);
uint32_t StatusIn(std::span<const uint8_t> answer);
uint32_t SyndromeIn(std::span<const uint8_t> answer);
// Returns whether the queue pair of a query has stopped because of an error.
bool HasStopped(const Mlx5QueryAnswer& answer);

}  // namespace tutti
