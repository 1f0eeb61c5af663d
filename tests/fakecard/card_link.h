#pragma once

// The emulated card as the stand-in for libmlx5 has it: a thread of this process, or a process of
// its own, as FAKE_CARD_PROCESS=1 in the environment asks for. That process is made when the
// stand-in is loaded, ahead of main and of all threads. Of this one it has the page of doorbells
// and what it is given by descriptors: windows, tables and queues in memory that was registered by
// DMA-BUFs (of GPUs of tests/fakegpu, memory files). It reaches nothing by an address.
//
// Threads: any, but no two in calls of one link.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fakecard/fake_card.h"

namespace fakemlx5 {

struct Umem;
struct Uar;

// Where a queue pair lies: umems, and places in them.
struct PlacedQueue {
  const Umem* entries = nullptr;
  const Umem* completions = nullptr;
  const Umem* record = nullptr;
  uint64_t entries_at = 0, completions_at = 0, record_at = 0;
  const Uar* uar = nullptr;
  uint32_t completions_number = 0;
};

// What FakeCard has of these names. Queue pairs belong to a domain in place of a rank.
class CardLink {
 public:
  virtual ~CardLink() = default;
  virtual uint32_t AddQueue(uint32_t domain, uint16_t size, const PlacedQueue& queue) = 0;
  virtual void RemoveQueue(uint32_t queue) = 0;
  virtual void Connect(uint32_t queue, uint32_t to) = 0;
  virtual bool IsDead(uint32_t queue) = 0;
  virtual void FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome) = 0;
  virtual std::vector<std::string> complaints() = 0;
  virtual std::vector<std::string> Describe() = 0;
};

// Makes the card, which finds memory of this process by `finder` and reaches it by `reach` (null:
// as the host's), where it is a thread of it. One at a time.
std::unique_ptr<CardLink> MakeCard(tutti::testing::FakeCard::Finder finder,
                                   tutti::testing::CardReach* reach);

// Returns whether cards are a process of their own.
bool CardIsApart();
// Tell that process of a umem; `fd` is -1 for memory that has no descriptor, which it cannot reach:
// they return false then. Nothing, and true, where there is no such process.
bool GiveUmem(const Umem& umem, int fd, uint64_t offset);
void TakeUmemBack(const Umem& umem);

}  // namespace fakemlx5
