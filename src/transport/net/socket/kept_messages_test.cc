// Copies of messages in a ring.

#include "transport/net/socket/kept_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

namespace tutti {
namespace {

constexpr size_t kBytes = 5 * kKeepBytes;

struct Kept {
  uint64_t number;
  std::byte* place;
  size_t bytes;
};

std::byte Pattern(uint64_t number) { return static_cast<std::byte>(number % 251); }

void ExpectWhole(const Kept& kept) {
  EXPECT_TRUE(std::all_of(kept.place, kept.place + kept.bytes, [&](std::byte b) {
    return b == Pattern(kept.number);
  })) << kept.number;
}

// Messages of any lengths have room as long as their total is at most the requested size, with any
// order of releases. No message overwrites another.
TEST(KeptMessagesTest, HasRoomForAsManyBytesAsWereAskedFor) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    KeptMessages kept(kBytes);
    std::deque<Kept> live;
    size_t live_bytes = 0;
    for (uint64_t number = 0; number < 2000; ++number) {
      const size_t bytes = random() % 3 == 0 ? random() % 300 : random() % (kKeepBytes + 1);
      size_t back = random() % 4 == 0 ? random() % (live.size() + 1) : 0;
      for (; back > 0 || live_bytes + bytes > kBytes; back -= back > 0 ? 1 : 0) {
        ExpectWhole(live.front());
        live_bytes -= live.front().bytes;
        kept.GiveBack(live.front().number + 1);
        live.pop_front();
      }
      std::byte* const place = kept.TryTake(number, bytes);
      ASSERT_NE(place, nullptr) << "message " << number;
      std::fill_n(place, bytes, Pattern(number));
      live.push_back({number, place, bytes});
      live_bytes += bytes;
    }
    for (const Kept& each : live) ExpectWhole(each);
  }
}

TEST(KeptMessagesTest, RefusesWhatHasNoRoom) {
  KeptMessages kept(kKeepBytes);
  EXPECT_NE(kept.TryTake(0, kKeepBytes), nullptr);
  EXPECT_NE(kept.TryTake(1, kKeepBytes), nullptr);  // this room is for the ring's end
  EXPECT_EQ(kept.TryTake(2, 1), nullptr);
  kept.GiveBack(1);
  EXPECT_NE(kept.TryTake(2, 1), nullptr);
}

}  // namespace
}  // namespace tutti
