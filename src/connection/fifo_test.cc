#include "connection/fifo.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 256;

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class FifoTest : public ::testing::Test {
 protected:
  FifoTest() {
    const size_t bytes = FifoView::BytesFor(kSlotBytes);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
    std::memset(memory_.get(), 0, bytes);
    view_ = {memory_.get(), kSlotBytes};
    sender_ = FifoSender(view_);
    receiver_ = FifoReceiver(view_);
  }
  std::unique_ptr<std::byte, FreeDeleter> memory_;
  FifoView view_;
  FifoSender sender_;
  FifoReceiver receiver_;
};

// Small chunks lie beside their flag unless the sender says otherwise, and the receiver finds them
// in either place.
TEST_F(FifoTest, SmallChunksLieWhereTheSenderPutsThem) {
  uint64_t chunk = 0;
  for (const bool inline_small : {true, false, true}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, kInlineBytes, kInlineBytes + 1, kSlotBytes}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, inline " << inline_small);
      std::byte* const place = sender_.TryAcquire(bytes, inline_small);
      const bool is_inline = inline_small && bytes <= kInlineBytes;
      EXPECT_EQ(place, is_inline ? view_.header(chunk).inline_data : view_.data(chunk));
      std::memset(place, static_cast<int>(chunk + 1), bytes);
      sender_.Publish(bytes, 7);
      const FifoChunk got = receiver_.TryPeek();
      ASSERT_EQ(got.data, place);
      EXPECT_EQ(got.bytes, bytes);
      EXPECT_EQ(got.op_tag, 7u);
      receiver_.Release();
      ++chunk;
    }
  }
}

TEST_F(FifoTest, LengthsFromAnotherProcessAreClamped) {
  sender_.TryAcquire(8);
  sender_.Publish(8, 1);
  for (const uint32_t claimed : {~0u, kInDataArea - 1, static_cast<uint32_t>(kSlotBytes) + 1}) {
    view_.header(0).bytes = claimed;
    EXPECT_EQ(receiver_.TryPeek().bytes, kSlotBytes);
    EXPECT_EQ(receiver_.TryPeek().data, view_.data(0));
  }
}

}  // namespace
}  // namespace tutti
