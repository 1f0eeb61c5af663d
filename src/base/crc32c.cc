#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define TUTTI_CRC32C_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define TUTTI_CRC32C_TARGET
#endif

namespace tutti {
namespace {

// The polynomial without its highest term, the lowest bit of a number standing for the highest
// power. All arithmetic below uses this order.
constexpr uint32_t kPolynomial = 0x82f63b78;

// a * b modulo the polynomial.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    if ((a >> (31 - i) & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x to the power of 8 * bytes: the factor by which `bytes` zero bytes change a remainder.
constexpr uint32_t PowerOfBytes(uint64_t bytes) {
  uint32_t result = 0x80000000;  // 1
  uint32_t square = 0x00800000;  // x^8
  for (; bytes > 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = Multiply(result, square);
    square = Multiply(square, square);
  }
  return result;
}

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// Table k has the remainder of each byte with k zero bytes behind the byte.
constexpr Tables MakeByteTables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kBytes = MakeByteTables();

uint32_t TakeByte(uint32_t crc, std::byte byte) {
  return (crc >> 8) ^ kBytes[0][(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
}

uint64_t LoadWord(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

// The three functions that follow work on remainders, which are inverted checksums.
uint32_t PortableRemainder(uint32_t crc, const std::byte* at, size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const uint64_t word = LoadWord(at) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kBytes[7 - i][word >> (8 * i) & 0xff];
  }
  for (; bytes > 0; ++at, --bytes) crc = TakeByte(crc, *at);
  return crc;
}

#if defined(TUTTI_CRC32C_TARGET)

// The lengths of the three parts that are worked on at once. Joining three remainders costs some 20
// cycles: little beside 3 * 2048 bytes; the short parts serve the rest of the data and short
// messages.
constexpr size_t kLongPart = 2048;
constexpr size_t kShortPart = 128;

// The changes to a remainder, by its bytes, caused by a fixed number of following bytes.
using ShiftTables = std::array<std::array<uint32_t, 256>, 4>;
constexpr ShiftTables MakeShiftTables(size_t bytes) {
  ShiftTables tables = {};
  const uint32_t power = PowerOfBytes(bytes);
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = Multiply(byte << (8 * k), power);
    }
  }
  return tables;
}
constexpr ShiftTables kShiftLong = MakeShiftTables(kLongPart);
constexpr ShiftTables kShiftShort = MakeShiftTables(kShortPart);

uint32_t Shift(const ShiftTables& tables, uint32_t crc) {
  return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^
         tables[3][crc >> 24];
}

#if defined(__x86_64__)
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
TUTTI_CRC32C_TARGET inline uint32_t TakeWord(uint32_t crc, const std::byte* from) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, LoadWord(from)));
}
#else
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
// Compilers differ in when they offer the intrinsic.
inline uint32_t TakeWord(uint32_t crc, const std::byte* from) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(LoadWord(from)));
  return crc;
}
#endif

template <size_t kPart>
TUTTI_CRC32C_TARGET inline uint32_t ThreeParts(uint32_t crc, const std::byte* at,
                                               const ShiftTables& shift) {
  uint32_t second = 0;
  uint32_t third = 0;
  for (size_t i = 0; i < kPart; i += 8) {
    crc = TakeWord(crc, at + i);
    second = TakeWord(second, at + kPart + i);
    third = TakeWord(third, at + 2 * kPart + i);
  }
  return Shift(shift, Shift(shift, crc) ^ second) ^ third;
}

TUTTI_CRC32C_TARGET uint32_t HardwareRemainder(uint32_t crc, const std::byte* at, size_t bytes) {
  for (; bytes >= 3 * kLongPart; at += 3 * kLongPart, bytes -= 3 * kLongPart) {
    crc = ThreeParts<kLongPart>(crc, at, kShiftLong);
  }
  for (; bytes >= 3 * kShortPart; at += 3 * kShortPart, bytes -= 3 * kShortPart) {
    crc = ThreeParts<kShortPart>(crc, at, kShiftShort);
  }
  for (; bytes >= 8; at += 8, bytes -= 8) crc = TakeWord(crc, at);
  for (; bytes > 0; ++at, --bytes) crc = TakeByte(crc, *at);
  return crc;
}

#endif  // TUTTI_CRC32C_TARGET

}  // namespace

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> data) {
#if defined(TUTTI_CRC32C_TARGET)
  static const bool has_instruction = HasInstruction();
  if (has_instruction) return ~HardwareRemainder(~crc, data.data(), data.size());
#endif
  return Crc32cPortable(crc, data);
}

uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> data) {
  return ~PortableRemainder(~crc, data.data(), data.size());
}

}  // namespace tutti
