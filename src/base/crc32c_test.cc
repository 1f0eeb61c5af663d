#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string_view>
#include <vector>

namespace tutti {
namespace {

using Function = uint32_t (*)(uint32_t, std::span<const std::byte>);

uint32_t Of(Function crc, std::string_view text) { return crc(0, std::as_bytes(std::span(text))); }

// RFC 3720 (iSCSI), B.4, and the check value of catalogues of checksums.
TEST(Crc32cTest, AgreesWithPublishedValues) {
  for (const Function crc : {&Crc32c, &Crc32cPortable}) {
    EXPECT_EQ(Of(crc, ""), 0u);
    EXPECT_EQ(Of(crc, "123456789"), 0xe3069283);
    std::vector<std::byte> bytes(32);
    EXPECT_EQ(crc(0, bytes), 0x8a9136aa);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
    EXPECT_EQ(crc(0, bytes), 0x62a8ab43);
    for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
    EXPECT_EQ(crc(0, bytes), 0x46dd794e);
    for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
    EXPECT_EQ(crc(0, bytes), 0x113fdb5c);
    constexpr unsigned char kReadCommand[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
        0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    EXPECT_EQ(crc(0, std::as_bytes(std::span(kReadCommand))), 0xd9963a56);
  }
}

// Bit by bit: the definition.
uint32_t Slow(std::span<const std::byte> data) {
  uint32_t crc = 0xffffffff;
  for (const std::byte byte : data) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

// Lengths on both sides of every part that is worked on at once, at any alignment, in pieces.
TEST(Crc32cTest, AgreesWithItsDefinitionAtAnyLengthAndCut) {
  std::mt19937 random(11);
  std::vector<std::byte> bytes(20'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  std::vector<size_t> lengths = {6143, 6144, 6145, 6144 + 384, 12288, 12289, 19'990};
  for (size_t i = 0; i < 800; ++i) lengths.push_back(i);
  for (const size_t length : lengths) {
    const auto data = std::span(bytes).subspan(random() % 9, length);
    const uint32_t expected = Slow(data);
    const size_t cut = length == 0 ? 0 : random() % length;
    for (const Function crc : {&Crc32c, &Crc32cPortable}) {
      ASSERT_EQ(crc(0, data), expected) << length;
      ASSERT_EQ(crc(crc(0, data.first(cut)), data.subspan(cut)), expected) << length << "," << cut;
    }
  }
}

}  // namespace
}  // namespace tutti
