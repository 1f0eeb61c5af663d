#pragma once

// The numbers of the frames between two endpoints. A connection that breaks loses its frames under
// way. SentFrames keeps every frame until the receiver acknowledges the frame, and sends all kept
// frames again over the next connection. ReceivedFrames takes every number once and in order: a
// frame that comes over two connections counts once.
//
//   acknowledged │ kept, sent over this connection │ kept, to be sent │
//              first                              next              end
//
// Numbers are counted modulo 2^32; far fewer frames are kept than half of that.
//
// Plain values. The mutex of the Endpoint guards them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/status.h"
#include "bootstrap/wire.h"

namespace tutti {

// A frame on its way. Shared, because a connection may still send a frame that is kept no longer.
using FramePtr = std::shared_ptr<const Bytes>;

class SentFrames {
 public:
  // Begins with number `first`; tests begin elsewhere than at 0.
  explicit SentFrames(uint32_t first = 0) : first_(first) {}
  // Numbers an encoded frame, and keeps the frame.
  void Push(Bytes frame);
  bool HasNext() const { return next_ < kept_.size(); }
  // Returns the next frame for the present connection. REQUIRES: HasNext().
  FramePtr TakeNext() { return kept_[next_++]; }
  // Begins again with the first kept frame, for another connection. Returns how many frames are
  // sent a second time.
  size_t Rewind();
  // Forgets all frames before number `received`, which the other end has. Fails where a frame
  // among them was never sent.
  Status Acknowledge(uint32_t received);
  // Return how many frames, and how many bytes of frames, are kept.
  size_t size() const { return kept_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  std::deque<FramePtr> kept_;
  uint32_t first_;   // the number of kept_[0]
  size_t next_ = 0;  // the place in kept_ of the next frame
  size_t sent_ = 0;  // the frames of kept_ that some connection has sent, wholly or in part
  size_t bytes_ = 0;
};

class ReceivedFrames {
 public:
  // After so many frames, or bytes of frames, the sender is told. Few enough that a sender keeps
  // little, and enough that a small exchange costs no message.
  static constexpr uint32_t kTellFrames = 64;
  static constexpr size_t kTellBytes = size_t{64} << 10;

  enum class Verdict {
    kNew,
    kRepeated,  // has come before
    kMissing,   // an earlier frame has not come
  };
  explicit ReceivedFrames(uint32_t first = 0) : next_(first) {}
  Verdict Take(uint32_t number, size_t bytes);
  // Returns whether the sender is to be told next(), and counts the sender as told.
  bool TakeNews();
  // Returns the number of the next new frame.
  uint32_t next() const { return next_; }

 private:
  uint32_t next_;
  uint32_t frames_ = 0;  // since the sender was told
  size_t bytes_ = 0;
};

}  // namespace tutti
