#pragma once

// An mlx5 network card that is none: a thread that reads queues by the published formats
// (nccl_device/impl/mlx5_entries.h has them; the words are decoded here once more, so that a
// mistake in one place is seen), checks every field, moves the bytes between the memories that were
// registered, and writes completions.
//
// It does what a card may do and programs must not mind: takes queues in any order, takes its time
// before an entry and before its completion, writes the bytes of a WRITE in pieces of any order,
// and keeps back what a READ has brought until something behind it on its queue makes it visible.
// It keeps back what a WRITE has brought, too, for a few rounds behind its completion, while later
// WRITEs of the queue to other places may pass it; what else follows on the queue finds it there.
// What is on one queue happens in its order otherwise. On demand it fails an entry or loses a
// doorbell.
//
// What a program does wrong is a complaint; what a card answers with an error (a key or a place
// that is none) is a completion with an error, and the queue is dead then.
//
// Queues may come and go while the card works, by any thread. Memory is that which was registered
// before it began, or what a function finds.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nccl_device/impl/mlx5_queue.h"

namespace tutti::testing {

// How a card reaches the memory that it finds, and that of queues but their doorbells. This one is
// that of the host's memory; another one reaches that of GPUs. Called by one thread at a time: the
// card's, or one that holds it at rest.
class CardReach {
 public:
  virtual ~CardReach() = default;
  virtual void Copy(std::byte* to, const std::byte* from, size_t bytes);
  // Read and write an aligned word: all that was written before is seen by whoever sees the word.
  virtual uint32_t Load(const std::byte* word);
  virtual void Store(std::byte* word, uint32_t value);
  // Adds to an aligned word behind all that was copied before, and returns what it held. It is
  // atomic among the additions of the card only: what others add meanwhile is lost.
  virtual uint64_t FetchAdd(std::byte* word, uint64_t added);
};

class FakeCard {
 public:
  // `most_delay`: it rests for up to so many rounds before an entry, and before a completion.
  explicit FakeCard(uint32_t seed, uint32_t most_delay = 4);
  ~FakeCard();
  FakeCard(const FakeCard&) = delete;
  FakeCard& operator=(const FakeCard&) = delete;

  // Makes memory of a rank known. Returns its key as the card has it, big endian; its addresses
  // begin at 0.
  uint32_t Register(int rank, std::span<std::byte> memory);
  // Finds memory of a rank, for one end of a transfer, in place of Register: returns null where the
  // key (in the order of the host) does not reach it.
  enum class End : uint8_t { kLocal, kRemoteWrite, kRemoteRead, kRemoteAtomic };
  using Finder =
      std::function<std::byte*(int rank, uint32_t key, uint64_t address, uint64_t bytes, End end)>;
  void SetFinder(Finder finder) { finder_ = std::move(finder); }
  // Has the card reach what it finds in another way, which outlives it. Before Start.
  void SetReach(CardReach* reach) { reach_ = reach; }

  // Makes a queue pair of a rank, with so many entries; returns its number.
  uint32_t MakeQueue(int rank, uint16_t size);
  // The memory of a queue pair that lies elsewhere, which but for the doorbell is reached as data
  // are. The entries of its completion queue, as many, begin as invalid ones.
  struct QueueMemory {
    device::mlx5::Entry* entries = nullptr;
    uint8_t* completions = nullptr;
    uint32_t* record = nullptr;  // two words, of which the card reads that of sends
    uint64_t* doorbell = nullptr;
    uint32_t completions_number = 0;
  };
  uint32_t AddQueue(int rank, uint16_t size, const QueueMemory& memory);
  // Takes a queue pair away, once all that it has brought lies in memory. Nothing more of it is
  // read or written then.
  void RemoveQueue(uint32_t queue);
  void Connect(uint32_t queue, uint32_t to);
  // Returns whether a queue pair has seen an error.
  bool IsDead(uint32_t queue) const;
  // Returns what kernels get of a queue that nothing was posted to.
  device::mlx5::QueuePair Export(uint32_t queue) const;
  // Begins to work. No more memory from here on.
  void Start();

  // Has the entry of this index fail.
  void FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome);
  // Has the next doorbell of a queue come to nothing.
  void LoseDoorbell(uint32_t queue);

  std::vector<std::string> complaints() const;
  // Returns a line for each queue that something was posted to: how far it has come, and what lies
  // in its doorbell, its record and the completion that comes next. Says so where the card does not
  // come to rest within a second.
  std::vector<std::string> Describe() const;
  // Returns how many doorbells came to nothing.
  int lost_doorbells() const { return lost_doorbells_; }
  // Returns how many entries of a queue are done.
  uint64_t done(uint32_t queue) const;

 private:
  struct Memory {
    int rank;
    std::span<std::byte> bytes;
  };
  struct Held {  // what a READ has brought
    std::byte* to;
    std::vector<std::byte> bytes;
  };
  struct Late {  // what a WRITE has brought; the place is found again when it lands
    int rank;
    uint32_t key;
    uint64_t address;
    std::vector<std::byte> bytes;
    uint32_t rounds;  // until it lands
  };
  // The memory of a queue that is this card's own.
  struct OwnMemory {
    explicit OwnMemory(uint16_t size) : entries(size), completions(size) {}
    std::vector<device::mlx5::Entry> entries;
    std::vector<std::array<uint8_t, 64>> completions;
    std::array<uint32_t, 2> record = {};
    uint64_t doorbell = 0;  // the word that kernels write
  };
  struct Queue {
    int rank = 0;
    uint32_t number = 0;
    uint32_t to = 0;  // the number of the queue that it is joined to
    uint16_t size = 0;
    QueueMemory memory;
    std::unique_ptr<OwnMemory> own;

    uint64_t seen_doorbell = 0;
    uint64_t rung = 0;                  // entries before it may be taken
    uint64_t taken = 0;                 // entries that were carried out
    std::atomic<uint64_t> written = 0;  // completions
    std::deque<uint8_t> outcomes;       // of entries that were carried out and have no completion
    uint32_t rest = 0;                  // rounds until the next step
    std::atomic<bool> dead = false;
    std::vector<Held> held;
    std::deque<Late> late;
    std::atomic<uint64_t> fails_at = UINT64_MAX;
    std::atomic<uint8_t> fails_with = 0;
    std::atomic<bool> loses_doorbell = false;
  };
  struct Decoded;

  // While the card works, queues may only be looked up by whoever holds it at rest.
  class AtRest;
  Queue* Find(uint32_t number) const;
  // Ends the process where there is no such queue.
  Queue& QueueOf(uint32_t number) const {
    Queue* const queue = Find(number);
    if (queue == nullptr) std::abort();
    return *queue;
  }
  uint32_t Add(std::unique_ptr<Queue> queue);
  void Run();
  bool Serve(Queue& queue);
  uint32_t RecordOf(const Queue& queue) const;
  void LookAtDoorbell(Queue& queue);
  bool CarryOut(Queue& queue);
  uint8_t CarryOut(Queue& queue, const Decoded& entry, bool* waits);
  uint8_t Transfer(Queue& queue, const Decoded& entry);
  void Write(Queue& queue, const Decoded& entry, std::byte* remote, const std::byte* local,
             uint32_t bytes);
  void Land(const Late& late);
  void LandAll(Queue& queue);
  bool LandSome(Queue& queue);
  uint8_t FetchAdd(Queue& queue, const Decoded& entry);
  void Show(Queue& queue);
  void WriteCompletion(Queue& queue);
  std::byte* Find(int rank, uint32_t key, uint64_t address, uint64_t bytes, End end) const;
  bool Answers(const Queue& queue) const;
  std::byte* FindRemote(const Queue& queue, const Decoded& entry, uint64_t bytes, End end) const;
  void CopyInPieces(std::byte* to, const std::byte* from, size_t bytes);
  void Complain(const Queue& queue, const std::string& what);
  uint32_t Random(uint32_t most) { return static_cast<uint32_t>(random_() % (most + 1)); }

  // Longer WRITEs come at once. Others are kept for at most so many rounds, by chance.
  static constexpr uint32_t kMostLateBytes = 64 << 10, kMostLateRounds = 64;
  static constexpr uint32_t kFirstQueue = 0x12345;
  static constexpr uint32_t kFirstCompletionQueue = 0x700;
  static constexpr uint32_t kFirstKey = 0x00a1b200;

  std::mt19937 random_;
  const uint32_t most_delay_;
  std::vector<Memory> memories_;
  Finder finder_;
  CardReach own_reach_;
  CardReach* reach_ = &own_reach_;
  // The card's thread holds the mutex while it works; those that wait for it say so.
  mutable std::timed_mutex queues_mutex_;
  mutable std::atomic<int> waiting_ = 0;
  std::vector<std::unique_ptr<Queue>> queues_;  // by number; null where one was taken away
  mutable std::mutex mutex_;                    // guards complaints_
  std::vector<std::string> complaints_;
  std::atomic<int> lost_doorbells_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace tutti::testing
