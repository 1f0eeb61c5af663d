#include "watch/inquiry.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

Inquiry Example() {
  Inquiry inquiry;
  inquiry.shown = Inquiry::Shown::kReceive;
  inquiry.signature = {7, 100,  3,     0x1234, Collective::kReduceScatterV, DataType::kFloat64,
                       2, true, 0x5678};
  inquiry.pair = PairCounts{11, 12};
  return inquiry;
}

TEST(InquiryTest, IsReadAsItWasWritten) {
  Bytes bytes(1);
  AppendInquiry(Example(), bytes);
  ASSERT_EQ(bytes.size(), 1 + 56u);
  EXPECT_EQ(bytes[1 + 8], std::byte{3});  // the root, in little-endian order
  const auto read = ReadInquiry(std::span(bytes).subspan(1));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->shown, Example().shown);
  EXPECT_EQ(read->signature, Example().signature);
  EXPECT_EQ(read->pair, Example().pair);
}

TEST(InquiryTest, NothingElseIsRead) {
  Bytes bytes;
  AppendInquiry(Example(), bytes);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(ReadInquiry(std::span(bytes).first(n)));
  bytes.push_back({});
  EXPECT_FALSE(ReadInquiry(bytes));
  bytes.pop_back();
  // The kind, the collective and the type come first.
  for (size_t i = 0; i < 3; ++i) {
    Bytes wrong = bytes;
    wrong[i] = std::byte{200};
    EXPECT_FALSE(ReadInquiry(wrong));
  }
}

}  // namespace
}  // namespace tutti
