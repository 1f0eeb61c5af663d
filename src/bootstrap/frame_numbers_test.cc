#include "bootstrap/frame_numbers.h"

#include <gtest/gtest.h>

#include "bootstrap/frame.h"

namespace tutti {
namespace {

using Verdict = ReceivedFrames::Verdict;

// Returns the number of the frame that is sent next.
uint32_t Next(SentFrames& frames) {
  const FramePtr frame = frames.TakeNext();
  return ParseFrameHeader(std::span(*frame).first<kFrameHeaderBytes>())->number;
}

void Push(SentFrames& frames, int count) {
  for (int i = 0; i < count; ++i) frames.Push(EncodeFrame({}, {}));
}

TEST(FrameNumbers, AnotherConnectionBeginsWithTheFirstFrameThatIsNotAcknowledged) {
  SentFrames frames;
  Push(frames, 4);
  for (uint32_t number = 0; number < 3; ++number) EXPECT_EQ(Next(frames), number);
  ASSERT_TRUE(frames.Acknowledge(2).ok());
  EXPECT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames.Rewind(), 1u);
  EXPECT_EQ(Next(frames), 2u);
  EXPECT_EQ(Next(frames), 3u);
  EXPECT_FALSE(frames.HasNext());
}

// The first connection has brought frames whose acknowledgement comes over the second connection.
TEST(FrameNumbers, AcknowledgedFramesAreNotSentAgain) {
  SentFrames frames;
  Push(frames, 5);
  for (int i = 0; i < 4; ++i) Next(frames);
  frames.Rewind();
  EXPECT_EQ(Next(frames), 0u);
  ASSERT_TRUE(frames.Acknowledge(3).ok());
  EXPECT_EQ(Next(frames), 3u);
  ASSERT_TRUE(frames.Acknowledge(1).ok());  // a late acknowledgement of the first connection
  EXPECT_EQ(frames.size(), 2u);
}

TEST(FrameNumbers, AFrameThatWasNeverSentCannotBeAcknowledged) {
  SentFrames frames;
  Push(frames, 3);
  Next(frames);
  EXPECT_FALSE(frames.Acknowledge(2).ok());
  EXPECT_TRUE(frames.Acknowledge(1).ok());
  EXPECT_EQ(frames.bytes(), 2 * kFrameHeaderBytes);
}

TEST(FrameNumbers, EveryNumberCountsOnceAndInOrder) {
  ReceivedFrames received;
  EXPECT_EQ(received.Take(0, 1), Verdict::kNew);
  EXPECT_EQ(received.Take(0, 1), Verdict::kRepeated);
  EXPECT_EQ(received.Take(2, 1), Verdict::kMissing);
  EXPECT_EQ(received.Take(1, 1), Verdict::kNew);
  EXPECT_EQ(received.next(), 2u);
}

TEST(FrameNumbers, NumbersGoOnAtZeroBehindTheLargest) {
  constexpr uint32_t kNearTheEnd = UINT32_MAX - 1;
  SentFrames frames(kNearTheEnd);
  ReceivedFrames received(kNearTheEnd);
  Push(frames, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(received.Take(Next(frames), 1), Verdict::kNew);
  EXPECT_EQ(received.next(), 2u);
  EXPECT_EQ(received.Take(UINT32_MAX, 1), Verdict::kRepeated);
  ASSERT_TRUE(frames.Acknowledge(UINT32_MAX).ok());
  EXPECT_EQ(frames.size(), 3u);
  ASSERT_TRUE(frames.Acknowledge(2).ok());
  EXPECT_EQ(frames.size(), 0u);
}

TEST(FrameNumbers, TheSenderIsToldAfterManyFramesOrManyBytes) {
  ReceivedFrames received;
  for (uint32_t number = 0; number + 1 < ReceivedFrames::kTellFrames; ++number) {
    received.Take(number, 24);
    EXPECT_FALSE(received.TakeNews());
  }
  received.Take(ReceivedFrames::kTellFrames - 1, 24);
  EXPECT_TRUE(received.TakeNews());
  EXPECT_FALSE(received.TakeNews());
  received.Take(ReceivedFrames::kTellFrames, ReceivedFrames::kTellBytes);
  EXPECT_TRUE(received.TakeNews());
}

}  // namespace
}  // namespace tutti
