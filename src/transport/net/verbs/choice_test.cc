// Tests the pure functions by which settings choose devices, ports and GIDs.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "transport/net/verbs/gid.h"
#include "transport/net/verbs/hca_filter.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

HcaFilter Filter(std::string_view text) { return HcaFilter::Parse(text).value(); }

TEST(HcaFilterTest, AnEmptyTextAdmitsAll) {
  EXPECT_TRUE(Filter("").Admits("mlx5_0", 2));
  EXPECT_TRUE(Filter(",").Admits("mlx5_0", 2));
}

TEST(HcaFilterTest, NamesArePrefixesUnlessExact) {
  EXPECT_TRUE(Filter("mlx5").Admits("mlx5_10", 1));
  EXPECT_TRUE(Filter("mlx5_1").Admits("mlx5_10", 1));
  EXPECT_FALSE(Filter("=mlx5_1").Admits("mlx5_10", 1));
  EXPECT_TRUE(Filter("=mlx5_1,mlx5_10").Admits("mlx5_10", 1));
  EXPECT_FALSE(Filter("mlx4,bnxt").Admits("mlx5_0", 1));
}

TEST(HcaFilterTest, ACaretExcludes) {
  EXPECT_FALSE(Filter("^mlx5_1").Admits("mlx5_10", 1));
  EXPECT_TRUE(Filter("^=mlx5_1").Admits("mlx5_10", 1));
  EXPECT_FALSE(Filter("^=mlx5_1").Admits("mlx5_1", 1));
  EXPECT_TRUE(Filter("^").Admits("mlx5_1", 1));
}

TEST(HcaFilterTest, APortIsOneOfADevice) {
  EXPECT_TRUE(Filter("mlx5_0:2").Admits("mlx5_0", 2));
  EXPECT_FALSE(Filter("mlx5_0:2").Admits("mlx5_0", 1));
  EXPECT_FALSE(Filter("^mlx5_0:2").Admits("mlx5_0", 2));
  EXPECT_TRUE(Filter("^mlx5_0:2").Admits("mlx5_0", 1));
}

TEST(HcaFilterTest, RefusesWhatItCannotRead) {
  for (const char* text : {"mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:one", "mlx5_0:1x", ":1"}) {
    const auto parsed = HcaFilter::Parse(text);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidUsage) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("NCCL_IB_HCA"));
  }
}

Gid MakeGid(uint32_t index, GidType type, const char* address) {
  Gid gid;
  gid.index = index;
  gid.type = type;
  if (inet_pton(AF_INET, address, &gid.bytes[12]) == 1) {
    gid.bytes[10] = gid.bytes[11] = 0xff;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, address, gid.bytes.data()), 1) << address;
  }
  return gid;
}

// Returns what a RoCE NIC with two addresses shows.
std::vector<Gid> Table() {
  return {MakeGid(0, GidType::kRoceV1, "fe80::1"),  MakeGid(1, GidType::kRoceV2, "fe80::1"),
          MakeGid(2, GidType::kRoceV1, "fd00::7"),  MakeGid(3, GidType::kRoceV2, "fd00::7"),
          MakeGid(4, GidType::kRoceV1, "10.1.2.3"), MakeGid(5, GidType::kRoceV2, "10.1.2.3")};
}

uint32_t Chosen(const Settings& settings, bool ethernet = true) {
  const std::vector<Gid> table = Table();
  const auto gid = ChooseGid(table, ethernet, GidWish::From(settings).value());
  EXPECT_TRUE(gid.ok()) << gid.status().message();
  return gid.ok() ? gid->index : 99;
}

TEST(GidTest, PrefersTheSecondVersionAndIpv4) {
  EXPECT_EQ(Chosen({}), 5u);
  Settings settings;
  settings.ib_roce_version = 1;
  EXPECT_EQ(Chosen(settings), 4u);
}

TEST(GidTest, PrefersAddressesThatAreNotLinkLocal) {
  Settings settings;
  settings.ib_addr_family = "AF_INET6";
  EXPECT_EQ(Chosen(settings), 3u);
}

TEST(GidTest, ARangeIsKeptTo) {
  Settings settings;
  settings.ib_addr_range = "fd00::/8";
  EXPECT_EQ(Chosen(settings), 3u);
  settings.ib_addr_range = "10.0.0.0/15";
  EXPECT_EQ(Chosen(settings), 5u);
  settings.ib_addr_range = "10.2.0.0/15";
  const std::vector<Gid> table = Table();
  const auto none = ChooseGid(table, true, GidWish::From(settings).value());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("NCCL_IB_ADDR_RANGE"));
}

TEST(GidTest, AnIndexWins) {
  Settings settings;
  settings.ib_gid_index = 2;
  EXPECT_EQ(Chosen(settings), 2u);
  settings.ib_gid_index = 6;
  const std::vector<Gid> table = Table();
  EXPECT_FALSE(ChooseGid(table, true, GidWish::From(settings).value()).ok());
}

TEST(GidTest, AFabricTakesItsFirst) { EXPECT_EQ(Chosen({}, false), 0u); }

TEST(GidTest, NoGidIsAReason) {
  EXPECT_THAT(std::string(ChooseGid({}, true, {}).status().message()), HasSubstr("no GID"));
}

TEST(GidTest, IsWrittenAsAnAddress) {
  EXPECT_EQ(Table()[5].ToString(), "10.1.2.3");
  EXPECT_EQ(Table()[3].ToString(), "fd00::7");
}

TEST(AddressRangeTest, RefusesWhatIsNone) {
  for (const char* text : {"", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1",
                           "fd00::/129", "fd00::/8x", "ten/8"}) {
    EXPECT_EQ(AddressRange::Parse(text).status().code(), Code::kInvalidUsage) << text;
  }
}

TEST(AddressRangeTest, ComparesBitsThatDoNotFillAByte) {
  const AddressRange range = AddressRange::Parse("10.1.2.128/25").value();
  EXPECT_TRUE(range.Holds(MakeGid(0, GidType::kRoceV2, "10.1.2.200")));
  EXPECT_FALSE(range.Holds(MakeGid(0, GidType::kRoceV2, "10.1.2.100")));
  EXPECT_TRUE(AddressRange::Parse("::/0")->Holds(MakeGid(0, GidType::kRoceV2, "10.1.2.100")));
}

}  // namespace
}  // namespace tutti
