#pragma once

// Measures how far this rank's clock is from rank 0's, for laying the timelines of several hosts
// over one another (timeline.h). One owner, on one thread: the coordinator's loop.
//
// A rank asks rank 0 for the time, kQuestions times one after another, and the answer with the
// shortest way counts. Rank 0 read its clock at some moment between question and answer. To take
// the middle of the two for the moment is wrong by half the time between them at most, however the
// delay was shared between the two ways:
//
//   asked ├──────────── answer ┤  on this rank's clock
//         └──► read ───────────┘  read - (asked + answer) / 2, within (answer - asked) / 2
//
// Questions travel as messages between coordinators, which are not collective: a rank may ask at
// any time, whatever the others do, and rank 0 answers without further knowledge. A rank that is
// asked does nothing but answer. A message that is lost with a dying rank leaves its question open,
// and the next measurement asks anew.
//
// Messages use the existing links, at distance 2^k, because a thousand ranks must not open
// connections to rank 0: up by clearing the lowest bit of the rank that holds the question, back by
// setting the bits of the asker from the highest on.
//
//   11 (1011) → 10 (1010) → 8 (1000) → 0 → 8 → 10 → 11
//
// Message (little-endian): kClockMark u32, kind u8 (1 question, 2 answer), asker u32, number u64,
// rank 0's clock u64 (0 in questions). Any further message has no effect.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "bootstrap/wire.h"

namespace tutti::coordinator {

// Stands at the place of the process set's number in other messages between coordinators.
inline constexpr uint32_t kClockMark = ~uint32_t{0};

// The difference to add to this rank's times to get rank 0's, and the bound of its error.
struct ClockDistance {
  int64_t to_rank0_ns = 0;
  int64_t error_ns = 0;
  friend bool operator==(const ClockDistance&, const ClockDistance&) = default;
};

class ClockMeter {
 public:
  struct Hooks {
    std::function<int64_t()> now_ns;  // Reads this rank's clock.
    // Sends to another rank of the job without waiting; a message may be lost.
    std::function<void(int rank, std::span<const std::byte> message)> send;
    std::function<void(const ClockDistance& distance)> measured;
  };
  // More would find a shorter way there and back now and then, by a microsecond or two.
  static constexpr int kQuestions = 8;

  ClockMeter(int rank, int num_ranks, Hooks hooks);

  // Begins to measure; `measured` is told once when all questions are answered. When questions of
  // the last measurement are still open, the result of its answers is told first. Rank 0 has
  // nothing to measure.
  void Measure();
  // Handles a message. Returns false when the message is no message of a meter.
  bool OnMessage(std::span<const std::byte> message);

 private:
  struct Message {
    uint8_t kind = 0;
    int asker = 0;
    uint64_t number = 0;
    int64_t rank0_ns = 0;
  };
  void Ask();
  void Tell();
  void OnAnswer(const Message& message);
  void Send(int to, const Message& message) const;
  bool IsAboveAsker(int asker) const;
  int NextTowards(int asker) const;

  const int rank_;
  const int num_ranks_;
  const Hooks hooks_;
  int open_ = 0;         // questions of this measurement without an answer
  uint64_t number_ = 0;  // the number of the last question
  int64_t asked_ns_ = 0;
  std::optional<ClockDistance> best_;
};

}  // namespace tutti::coordinator
