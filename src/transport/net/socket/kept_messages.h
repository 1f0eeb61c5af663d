#pragma once

// KeptMessages: copies of the short messages that a connection may have to send again, one behind
// the other in a ring of fixed size. The receiver acknowledges messages in order, hence copies are
// given back in order.
//
//   given back │ kept, oldest first │ free
//             tail_                head_        both count bytes from when the ring was last empty
//
// A copy is in one piece. A copy that does not fit before the ring's end goes to its beginning.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "transport/net/socket/resume.h"

namespace tutti {

class KeptMessages {
 public:
  // Makes room for messages of up to kKeepBytes with `bytes` bytes together. The memory is touched
  // only by use.
  explicit KeptMessages(size_t bytes)
      : size_(bytes + kKeepBytes), ring_(std::make_unique_for_overwrite<std::byte[]>(size_)) {}

  // Returns the place for a copy of message `number`, or null where earlier copies leave no room.
  // REQUIRES: bytes <= kKeepBytes, and the numbers grow.
  std::byte* TryTake(uint64_t number, size_t bytes) {
    if (copies_.empty()) head_ = tail_ = 0;
    const size_t at = head_ % size_;
    const size_t skipped = at + bytes > size_ ? size_ - at : 0;
    if (head_ + skipped + bytes - tail_ > size_) return nullptr;
    head_ += skipped;
    std::byte* const place = &ring_[head_ % size_];
    head_ += bytes;
    copies_.push_back({number, head_});
    return place;
  }
  // Gives back the copies of all messages before number `end`.
  void GiveBack(uint64_t end) {
    for (; !copies_.empty() && copies_.front().number < end; copies_.pop_front()) {
      tail_ = copies_.front().end;
    }
  }

 private:
  struct Copy {
    uint64_t number = 0;  // of the message
    size_t end = 0;       // the value of head_ behind the copy
  };

  const size_t size_;
  const std::unique_ptr<std::byte[]> ring_;
  std::deque<Copy> copies_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace tutti
