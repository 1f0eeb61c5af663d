#include "watch/leave_notice.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Departures, AreReadAsTheyWereWritten) {
  const Departure departure = {
      .rank = 1, .finished = true, .collectives = 7, .messages = {1, 2, 3, 4}};
  Bytes bytes(1);
  AppendDeparture(departure, bytes);
  const auto read = ReadDeparture(std::span(bytes).subspan(1), 2);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 1);
  EXPECT_TRUE(read->finished);
  EXPECT_EQ(read->collectives, 7u);
  EXPECT_EQ(read->messages, departure.messages);
}

TEST(Departures, NothingElseIsRead) {
  Departure departure = {.rank = 2, .messages = {1, 2, 3, 4}};
  Bytes bytes;
  AppendDeparture(departure, bytes);
  EXPECT_FALSE(ReadDeparture(bytes, 2));  // there is no rank 2
  departure.rank = 0;
  bytes.clear();
  AppendDeparture(departure, bytes);
  EXPECT_TRUE(ReadDeparture(bytes, 2));
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(ReadDeparture(std::span(bytes).first(n), 2));
  EXPECT_FALSE(ReadDeparture(bytes, 1));
  EXPECT_FALSE(ReadDeparture(bytes, 3));
}

}  // namespace
}  // namespace tutti
