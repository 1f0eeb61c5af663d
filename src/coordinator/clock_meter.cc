#include "coordinator/clock_meter.h"

#include <bit>
#include <utility>

namespace tutti::coordinator {
namespace {

constexpr uint8_t kQuestion = 1;
constexpr uint8_t kAnswer = 2;
// Times further from 1970 than this are no times, and would overflow the arithmetic here.
constexpr int64_t kLatestNs = int64_t{1} << 62;

uint32_t LowestBit(int rank) {
  const auto bits = static_cast<uint32_t>(rank);
  return bits & (~bits + 1);
}

}  // namespace

ClockMeter::ClockMeter(int rank, int num_ranks, Hooks hooks)
    : rank_(rank), num_ranks_(num_ranks), hooks_(std::move(hooks)) {}

void ClockMeter::Measure() {
  if (rank_ == 0) return;
  Tell();
  open_ = kQuestions;
  Ask();
}

void ClockMeter::Tell() {
  if (best_) hooks_.measured(*std::exchange(best_, std::nullopt));
}

void ClockMeter::Ask() {
  ++number_;
  const int parent = rank_ - static_cast<int>(LowestBit(rank_));
  asked_ns_ = hooks_.now_ns();
  Send(parent, {kQuestion, rank_, number_, 0});
}

void ClockMeter::Send(int to, const Message& message) const {
  WireWriter writer;
  writer.U32(kClockMark);
  writer.U8(message.kind);
  writer.U32(static_cast<uint32_t>(message.asker));
  writer.U64(message.number);
  writer.U64(static_cast<uint64_t>(message.rank0_ns));
  hooks_.send(to, std::move(writer).Take());
}

// Returns whether this rank lies between rank 0, inclusive, and the asker: its bits are the asker's
// without some of the lowest.
bool ClockMeter::IsAboveAsker(int asker) const {
  if (asker <= 0 || asker >= num_ranks_ || asker == rank_) return false;
  if (rank_ == 0) return true;
  return static_cast<uint32_t>(asker ^ rank_) < LowestBit(rank_);
}

int ClockMeter::NextTowards(int asker) const {
  return rank_ + static_cast<int>(std::bit_floor(static_cast<uint32_t>(asker ^ rank_)));
}

bool ClockMeter::OnMessage(std::span<const std::byte> message) {
  WireReader reader(message);
  if (reader.U32() != kClockMark) return false;
  Message read;
  read.kind = reader.U8();
  read.asker = static_cast<int>(reader.U32());
  read.number = reader.U64();
  read.rank0_ns = static_cast<int64_t>(reader.U64());
  if (reader.failed() || !reader.AtEnd()) return true;
  if (read.kind == kAnswer && read.asker == rank_) {
    OnAnswer(read);
  } else if (!IsAboveAsker(read.asker)) {
    return true;
  } else if (read.kind == kAnswer && rank_ != 0) {
    Send(NextTowards(read.asker), read);
  } else if (read.kind == kQuestion && rank_ != 0) {
    Send(rank_ - static_cast<int>(LowestBit(rank_)), read);
  } else if (read.kind == kQuestion) {
    read.kind = kAnswer;
    read.rank0_ns = hooks_.now_ns();
    Send(NextTowards(read.asker), read);
  }
  return true;
}

void ClockMeter::OnAnswer(const Message& message) {
  const int64_t now_ns = hooks_.now_ns();
  if (open_ == 0 || message.number != number_) return;
  const auto is_time = [](int64_t ns) { return ns >= 0 && ns < kLatestNs; };
  // A clock that was set back meanwhile has measured nothing.
  if (is_time(message.rank0_ns) && is_time(asked_ns_) && is_time(now_ns) && now_ns >= asked_ns_) {
    const int64_t error_ns = (now_ns - asked_ns_ + 1) / 2;
    if (!best_ || error_ns < best_->error_ns) {
      best_ = {message.rank0_ns - (asked_ns_ + (now_ns - asked_ns_) / 2), error_ns};
    }
  }
  if (--open_ > 0) return Ask();
  Tell();
}

}  // namespace tutti::coordinator
