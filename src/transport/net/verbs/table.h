#pragma once

// The two tables of a connection. Each end writes into the peer's table. Both ends are
// little-endian, because setup.h joins queue pairs of such hosts only.
//
// Groups of receives are numbered from 1 on, over the connection's life; group g uses slot g mod
// kTableSlots of either table. A slot is used again only after the receiver has tested the slot's
// previous group.
//
// The processor reads entries while the NIC may still write them. An entry is whole when both its
// numbers equal the group's number: NICs write 64 aligned bytes, a cache line, in order or at once.

#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cstdint>

#include "transport/net/net.h"

namespace tutti {

static_assert(std::endian::native == std::endian::little);

// The most groups in flight on a connection.
inline constexpr uint64_t kTableSlots = 256;

// The most ports of an end of a connection. Each port may belong to a different NIC, with its own
// key for a buffer.
inline constexpr size_t kMaxPorts = 4;

// Ports of an end: bit i stands for port i.
using PortFlags = std::bitset<kMaxPorts>;

// Lies in the sender's memory, and describes a buffer that the sender may write.
struct GrantEntry {
  uint32_t number = 0;  // the low 32 bits of the group's number
  uint32_t tag = 0;
  uint64_t address = 0;
  uint32_t capacity = 0;
  uint32_t count = 0;                         // buffers in the group, 1 to kMaxNetGroup
  std::array<uint32_t, kMaxPorts> keys = {};  // a key for each port of the receiver
  std::array<uint32_t, 5> unused = {};
  uint32_t number_again = 0;
};
static_assert(sizeof(GrantEntry) == 64);
using GrantSlot = std::array<GrantEntry, kMaxNetGroup>;

// Lies in the receiver's memory, and describes the message in a buffer of a group.
struct RecordEntry {
  uint32_t number = 0;
  uint32_t bytes = 0;
  uint32_t op_tag = 0;
  uint32_t number_again = 0;
};
static_assert(sizeof(RecordEntry) == 16);
using RecordSlot = std::array<RecordEntry, kMaxNetGroup>;

// The bytes that the slots of either table take.
inline constexpr size_t kGrantBytes = kTableSlots * sizeof(GrantSlot);
inline constexpr size_t kRecordBytes = kTableSlots * sizeof(RecordSlot);

// A send behind the writes of a group, where no immediate value announces the writes.
struct Notice {
  enum class Kind : uint32_t {
    kEnd = 1,      // The group ends on its own queue pair.
    kSideEnd = 2,  // The group's pieces end on a further queue pair.
  };

  uint32_t group = 0;      // the low 32 bits of the group's number
  uint32_t immediate = 0;  // kEnd: the value that a write would carry
  uint32_t bytes = 0;      // kEnd: the length of the group's only message
  Kind kind = Kind::kEnd;
};
static_assert(sizeof(Notice) == 16);

// Returns whether `entry`, in memory that the peer writes, is whole and of group `group`. The
// caller may read the remaining fields of a whole entry.
template <class Entry>
bool IsWhole(const Entry& entry, uint64_t group) {
  const auto load = [](const uint32_t& word) {
    // The word is only read here; atomic_ref does not take a constant.
    return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
  };
  const auto number = static_cast<uint32_t>(group);
  return load(entry.number) == number && load(entry.number_again) == number;
}

}  // namespace tutti
