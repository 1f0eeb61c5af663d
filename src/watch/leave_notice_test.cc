#include "watch/leave_notice.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(LeaveNoticeTest, AreReadAsTheyWereWritten) {
  const LeaveNotice notice = {
      .rank = 1, .finished = true, .collectives = 7, .messages = {1, 2, 3, 4}};
  Bytes bytes(1);
  AppendLeaveNotice(notice, bytes);
  ASSERT_EQ(bytes.size(), 1 + 16 + 4 * 8u);
  EXPECT_EQ(bytes[1 + 8], std::byte{7});  // the collectives, in little-endian order
  const auto read = ReadLeaveNotice(std::span(bytes).subspan(1), 2);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 1);
  EXPECT_TRUE(read->finished);
  EXPECT_EQ(read->collectives, 7u);
  EXPECT_EQ(read->messages, notice.messages);
}

TEST(LeaveNoticeTest, NothingElseIsRead) {
  LeaveNotice notice = {.rank = 2, .messages = {1, 2, 3, 4}};
  Bytes bytes;
  AppendLeaveNotice(notice, bytes);
  EXPECT_FALSE(ReadLeaveNotice(bytes, 2));  // rank 2 does not exist
  notice.rank = 0;
  bytes.clear();
  AppendLeaveNotice(notice, bytes);
  EXPECT_TRUE(ReadLeaveNotice(bytes, 2));
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(ReadLeaveNotice(std::span(bytes).first(n), 2));
  EXPECT_FALSE(ReadLeaveNotice(bytes, 1));
  EXPECT_FALSE(ReadLeaveNotice(bytes, 3));
}

}  // namespace
}  // namespace tutti
