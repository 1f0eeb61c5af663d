#include "perf/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Options, Bytes) {
  EXPECT_EQ(ParseBytes("8").value(), 8u);
  EXPECT_EQ(ParseBytes("32K").value(), 32768u);
  EXPECT_EQ(ParseBytes("1.5m").value(), 1572864u);
  EXPECT_EQ(ParseBytes("2GiB").value(), size_t{2} << 30);
  EXPECT_EQ(ParseBytes("4kb").value(), 4096u);
  EXPECT_EQ(ParseBytes("0").value(), 0u);
  for (const char* bad : {"", "x", "-1", "1X", "1KK", "0.3", "nan", "inf", "1e30", "8 K", "2P"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(Options, BytesAsText) {
  EXPECT_EQ(BytesText(0), "0");
  EXPECT_EQ(BytesText(1000), "1000");
  EXPECT_EQ(BytesText(32768), "32K");
  EXPECT_EQ(BytesText(size_t{3} << 30), "3G");
}

TEST(Options, Sizes) {
  EXPECT_THAT(SizesBetween(8, 64, 2, 0).value(), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(SizesBetween(8, 60, 4, 0).value(), ElementsAre(8, 32));
  EXPECT_THAT(SizesBetween(0, 16, 2, 0).value(), ElementsAre(0, 8, 16));
  EXPECT_THAT(SizesBetween(10, 40, 0, 15).value(), ElementsAre(10, 25, 40));
  EXPECT_THAT(SizesBetween(1, 4, 1.1, 0).value(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(SizesBetween(8, 8, 1, 0).value(), ElementsAre(8));
  EXPECT_THAT(std::string(SizesBetween(8, 4, 2, 0).status().message()),
              HasSubstr("above the last"));
  EXPECT_FALSE(SizesBetween(8, 16, 1, 0).ok());
  EXPECT_FALSE(SizesBetween(8, 1 << 30, 2, 1).ok());
}

TEST(Options, Types) {
  EXPECT_THAT(ParseTypes("float,half,bf16,fp8_e4m3").value(),
              ElementsAre(ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat8e4m3));
  EXPECT_EQ(ParseTypes("all").value().size(), 12u);
  EXPECT_EQ(ParseTypes("INT32").value().front(), ncclInt32);
  EXPECT_THAT(std::string(ParseTypes("float,flot").status().message()),
              HasSubstr("'flot' is no type"));
  EXPECT_FALSE(ParseTypes("").ok());
}

TEST(Options, Reductions) {
  EXPECT_THAT(ParseReductions("sum,max").value(), ElementsAre(Reduction::kSum, Reduction::kMax));
  EXPECT_EQ(ParseReductions("all").value().size(), 6u);
  EXPECT_FALSE(ParseReductions("none").ok());
}

TEST(Options, Roots) {
  EXPECT_THAT(ParseRoots("2", 3).value(), ElementsAre(2));
  EXPECT_THAT(ParseRoots("all", 3).value(), ElementsAre(0, 1, 2));
  for (const char* bad : {"3", "-2", "x", "", "1x"}) EXPECT_FALSE(ParseRoots(bad, 3).ok()) << bad;
}

TEST(Options, RotationExceedsTheCacheWithinBounds) {
  constexpr size_t kMiB = 1 << 20;
  EXPECT_EQ(ChooseRotation(kMiB, 32 * kMiB, 16384 * kMiB, 2), 32);
  EXPECT_EQ(ChooseRotation(64, 32 * kMiB, 16384 * kMiB, 2), 64);
  EXPECT_EQ(ChooseRotation(512 * kMiB, 32 * kMiB, 16384 * kMiB, 2), 1);
  EXPECT_EQ(ChooseRotation(8 * kMiB, 1024 * kMiB, 64 * kMiB, 2), 1);
  EXPECT_EQ(ChooseRotation(0, 32 * kMiB, 16384 * kMiB, 2), 1);
}

}  // namespace
}  // namespace tutti::tools
