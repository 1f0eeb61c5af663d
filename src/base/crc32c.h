#pragma once

// CRC32C, the checksum of Castagnoli's polynomial as in iSCSI, ext4 and SCTP: CRC32C finds every
// damage of up to 32 bits in a row, and any other damage with a miss in four billion. A checksum is
// no protection against people, who can compute it too.
//
// Pure functions. The processor's own instruction is used where available (SSE4.2, ARMv8), on three
// parts of the data at once, because a result of the instruction takes three cycles and a new
// instruction can begin in each cycle; tables are used elsewhere.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

// Returns the checksum of the data summed up in `crc`, followed by `data`; `crc` is 0 at the
// beginning.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> data);

// Returns the same, by tables alone, for processors without the instruction and for tests.
uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> data);

}  // namespace tutti
