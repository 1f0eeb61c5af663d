#include "bootstrap/frame_numbers.h"

#include <algorithm>
#include <utility>

#include "bootstrap/frame.h"

namespace tutti {

void SentFrames::Push(Bytes frame) {
  SetFrameNumber(frame, first_ + static_cast<uint32_t>(kept_.size()));
  bytes_ += frame.size();
  kept_.push_back(std::make_shared<const Bytes>(std::move(frame)));
}

size_t SentFrames::Rewind() {
  sent_ = std::max(sent_, next_);
  next_ = 0;
  return sent_;
}

// Acknowledgements may come over two connections, hence a late acknowledgement may name fewer
// frames than an earlier one.
Status SentFrames::Acknowledge(uint32_t received) {
  const auto count = static_cast<int32_t>(received - first_);
  if (count <= 0) return Status::Ok();
  const auto had = static_cast<size_t>(count);
  sent_ = std::max(sent_, next_);
  if (had > sent_) {
    return RemoteError("it has {} frames more than were sent to it", had - sent_);
  }
  for (size_t i = 0; i < had; ++i) bytes_ -= kept_[i]->size();
  kept_.erase(kept_.begin(), kept_.begin() + count);
  first_ = received;
  next_ -= std::min(next_, had);
  sent_ -= had;
  return Status::Ok();
}

// Repeated frames count as well, because their sender has missed what it was told before.
ReceivedFrames::Verdict ReceivedFrames::Take(uint32_t number, size_t bytes) {
  const auto ahead = static_cast<int32_t>(number - next_);
  if (ahead > 0) return Verdict::kMissing;
  ++frames_;
  bytes_ += bytes;
  if (ahead < 0) return Verdict::kRepeated;
  ++next_;
  return Verdict::kNew;
}

bool ReceivedFrames::TakeNews() {
  if (frames_ < kTellFrames && bytes_ < kTellBytes) return false;
  frames_ = 0;
  bytes_ = 0;
  return true;
}

}  // namespace tutti
