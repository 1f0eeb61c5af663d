#pragma once

// The emulated card as a test has it, with the memory that it shares with the program: in a thread
// of the program (fake_card.h), or in a process of its own, as FAKE_CARD_PROCESS=1 in the
// environment asks for. That process has nothing of the program but this memory: it reads queues,
// doorbells and records there and moves the bytes, and a mailbox in it takes what a test wants of
// the card or asks it.
//
// One thread at a time.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fakecard/fake_card.h"

namespace tutti::testing {

class CardProcess {
 public:
  CardProcess(uint32_t seed, uint32_t most_delay);
  ~CardProcess();
  CardProcess(const CardProcess&) = delete;
  CardProcess& operator=(const CardProcess&) = delete;

  // Before Start: memory that both see, zeroed, aligned to 64 bytes; and what FakeCard has.
  std::span<std::byte> Take(size_t bytes);
  uint32_t Register(int rank, std::span<std::byte> memory) { return card_->Register(rank, memory); }
  uint32_t MakeQueue(int rank, uint16_t size);
  void Connect(uint32_t queue, uint32_t to) { card_->Connect(queue, to); }
  device::mlx5::QueuePair Export(uint32_t queue) const { return card_->Export(queue); }
  void Start();

  // What FakeCard has of these names.
  void FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome);
  void LoseDoorbell(uint32_t queue);
  std::vector<std::string> complaints();
  int lost_doorbells();
  uint64_t done(uint32_t queue);

 private:
  enum class Wish : uint32_t { kFail, kLose, kComplaints, kLost, kDone, kEnd };
  struct Mailbox {
    std::atomic<uint32_t> asked = 0;
    std::atomic<uint32_t> answered = 0;
    Wish wish = Wish::kEnd;
    uint32_t queue = 0;
    uint64_t number = 0;
    uint8_t syndrome = 0;
    uint64_t answer = 0;
    char text[8192] = {};  // complaints, each with a line's end behind it
  };

  uint64_t Ask(Wish wish, uint32_t queue = 0, uint64_t number = 0, uint8_t syndrome = 0);
  void Serve();
  uint64_t Fulfil();

  std::unique_ptr<FakeCard> card_;
  const bool own_process_;
  std::byte* memory_ = nullptr;
  size_t taken_ = 0;
  Mailbox* mailbox_ = nullptr;
  pid_t process_ = 0;
};

}  // namespace tutti::testing
