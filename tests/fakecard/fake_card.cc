#include "fakecard/fake_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace tutti::testing {
namespace {

uint32_t Big32(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}
uint64_t Big64(const uint8_t* at) { return uint64_t{Big32(at)} << 32 | Big32(at + 4); }

// Syndromes of completions with errors.
constexpr uint8_t kGood = 0, kLocalProtection = 0x04, kFlushed = 0x05, kRemoteInvalid = 0x12,
                  kRemoteAccess = 0x13, kNoAnswer = 0x15;

constexpr uint8_t kOpcodeError = 13;

// Passes about 100 ns, in which others see what the card has done so far. A sleep or a yield would
// take milliseconds on a busy machine.
void PauseByLoads() {
  const std::atomic<int> word = 0;
  for (int looks = 0; looks < 200; ++looks) static_cast<void>(word.load());
}

}  // namespace

void CardReach::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
uint32_t CardReach::Load(const std::byte* word) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(const_cast<std::byte*>(word)))
      .load(std::memory_order_acquire);
}
void CardReach::Store(std::byte* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(word))
      .store(value, std::memory_order_release);
}
uint64_t CardReach::FetchAdd(std::byte* word, uint64_t added) {
  const std::atomic_ref<uint64_t> shared(*reinterpret_cast<uint64_t*>(word));
  const uint64_t before = shared.load(std::memory_order_acquire);
  PauseByLoads();
  shared.store(before + added, std::memory_order_release);
  return before;
}

// An entry by its bytes.
struct FakeCard::Decoded {
  Decoded(CardReach& reach, const device::mlx5::Entry* entry) {
    reach.Copy(reinterpret_cast<std::byte*>(bytes), reinterpret_cast<const std::byte*>(entry),
               sizeof(bytes));
  }

  uint32_t opmod() const { return bytes[0]; }
  uint32_t index() const { return Big32(bytes) >> 8 & 0xffff; }
  uint32_t operation() const { return bytes[3]; }
  uint32_t queue() const { return Big32(bytes + 4) >> 8; }
  uint32_t segments() const { return bytes[7]; }
  uint32_t flags() const { return bytes[11]; }
  uint64_t remote_address() const { return Big64(bytes + 16); }
  uint32_t remote_key() const { return Big32(bytes + 24); }
  // Of a buffer in the segment of this number.
  uint32_t count(int segment) const { return Big32(bytes + 16 * segment); }
  uint32_t key(int segment) const { return Big32(bytes + 16 * segment + 4); }
  uint64_t address(int segment) const { return Big64(bytes + 16 * segment + 8); }
  bool inlined() const { return (count(2) & 0x80000000) != 0; }
  uint32_t inline_bytes() const { return count(2) & 0x7fffffff; }

  // Returns how many segments the operation has; 0 for one that is none.
  uint32_t WantedSegments() const {
    switch (operation()) {
      case 0x00:
        return 1;
      case 0x0f:
      case 0x23:
        return 2;
      case 0x08:
        return inlined() ? 2 + (4 + inline_bytes() + 15) / 16 : 3;
      case 0x10:
        return 3;
      case 0x12:
        return 4;
      default:
        return 0;
    }
  }
  // Returns whether all that says nothing is 0.
  bool RestIsZero() const {
    if (bytes[8] != 0 || bytes[9] != 0 || bytes[10] != 0 || Big32(bytes + 12) != 0) return false;
    const bool remote = operation() == 0x08 || operation() == 0x10 || operation() == 0x12;
    if (remote && Big32(bytes + 28) != 0) return false;
    if (operation() == 0x0f && Big64(bytes + 16) != 0) return false;
    return operation() != 0x12 || Big64(bytes + 40) == 0;
  }

  uint8_t bytes[64];
};

FakeCard::FakeCard(uint32_t seed, uint32_t most_delay) : random_(seed), most_delay_(most_delay) {}

FakeCard::~FakeCard() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

uint32_t FakeCard::Register(int rank, std::span<std::byte> memory) {
  memories_.push_back({rank, memory});
  return device::mlx5::BigEndian(kFirstKey + static_cast<uint32_t>(memories_.size() - 1));
}

// Has the card's thread let queues alone.
class FakeCard::AtRest {
 public:
  explicit AtRest(const FakeCard& card) : card_(card) {
    ++card_.waiting_;
    card_.queues_mutex_.lock();
    --card_.waiting_;
  }
  ~AtRest() { card_.queues_mutex_.unlock(); }
  AtRest(const AtRest&) = delete;
  AtRest& operator=(const AtRest&) = delete;

 private:
  const FakeCard& card_;
};

FakeCard::Queue* FakeCard::Find(uint32_t number) const {
  const size_t place = number - kFirstQueue;
  return number >= kFirstQueue && place < queues_.size() ? queues_[place].get() : nullptr;
}

uint32_t FakeCard::Add(std::unique_ptr<Queue> queue) {
  const AtRest rest(*this);
  queue->number = kFirstQueue + static_cast<uint32_t>(queues_.size());
  if (queue->memory.completions_number == 0)
    queue->memory.completions_number =
        kFirstCompletionQueue + static_cast<uint32_t>(queues_.size());
  queues_.push_back(std::move(queue));
  return queues_.back()->number;
}

uint32_t FakeCard::MakeQueue(int rank, uint16_t size) {
  auto queue = std::make_unique<Queue>();
  queue->rank = rank;
  queue->size = size;
  queue->own = std::make_unique<OwnMemory>(size);
  OwnMemory& own = *queue->own;
  for (auto& completion : own.completions) completion[63] = 0xf1;
  queue->memory = {.entries = own.entries.data(),
                   .completions = own.completions.front().data(),
                   .record = own.record.data(),
                   .doorbell = &own.doorbell};
  return Add(std::move(queue));
}

uint32_t FakeCard::AddQueue(int rank, uint16_t size, const QueueMemory& memory) {
  auto queue = std::make_unique<Queue>();
  queue->rank = rank;
  queue->size = size;
  queue->memory = memory;
  return Add(std::move(queue));
}

void FakeCard::RemoveQueue(uint32_t number) {
  const AtRest rest(*this);
  LandAll(QueueOf(number));
  queues_[number - kFirstQueue].reset();
}

void FakeCard::Connect(uint32_t queue, uint32_t to) {
  const AtRest rest(*this);
  QueueOf(queue).to = to;
}

device::mlx5::QueuePair FakeCard::Export(uint32_t number) const {
  const AtRest rest(*this);
  const Queue& queue = QueueOf(number);
  return device::mlx5::MakeQueuePair(number, queue.memory.entries, queue.size, queue.memory.record,
                                     queue.memory.doorbell, queue.memory.completions,
                                     queue.memory.completions_number, queue.size);
}

void FakeCard::Start() {
  thread_ = std::thread([this] { Run(); });
}

void FakeCard::FailEntry(uint32_t number, uint64_t index, uint8_t syndrome) {
  const AtRest rest(*this);
  QueueOf(number).fails_with = syndrome;
  QueueOf(number).fails_at = index;
}
void FakeCard::LoseDoorbell(uint32_t queue) {
  const AtRest rest(*this);
  QueueOf(queue).loses_doorbell = true;
}

std::vector<std::string> FakeCard::complaints() const {
  const std::lock_guard lock(mutex_);
  return complaints_;
}
uint64_t FakeCard::done(uint32_t queue) const {
  const AtRest rest(*this);
  return QueueOf(queue).written;
}
bool FakeCard::IsDead(uint32_t queue) const {
  const AtRest rest(*this);
  return QueueOf(queue).dead;
}

std::vector<std::string> FakeCard::Describe() const {
  ++waiting_;
  const bool rests = queues_mutex_.try_lock_for(std::chrono::seconds(1));
  --waiting_;
  if (!rests) return {"the card is in the middle of an entry"};
  std::vector<std::string> lines;
  for (const auto& queue : queues_) {
    if (queue == nullptr) continue;
    const QueueMemory& memory = queue->memory;
    const uint64_t doorbell = std::atomic_ref<uint64_t>(*memory.doorbell).load();
    const uint32_t record = RecordOf(*queue);
    if (doorbell == 0 && record == 0) continue;
    const uint8_t* const next = memory.completions + queue->written % queue->size * 64;
    const uint32_t next_ends = reach_->Load(reinterpret_cast<const std::byte*>(next + 60));
    uint32_t next_begins = 0;
    reach_->Copy(reinterpret_cast<std::byte*>(&next_begins),
                 reinterpret_cast<const std::byte*>(memory.entries + queue->taken % queue->size),
                 sizeof(next_begins));
    lines.push_back(fmt::format(
        "queue {:#x} of rank {} to {:#x}: rung {} taken {} completed {}{}; doorbell {:#018x} "
        "(seen {:#018x}) record {:#010x}, next entry begins {:#010x}, next completion ends {:#04x}",
        queue->number, queue->rank, queue->to, queue->rung, queue->taken, queue->written.load(),
        queue->dead ? " dead" : "", doorbell, queue->seen_doorbell, record, next_begins,
        next_ends >> 24));
  }
  queues_mutex_.unlock();
  return lines;
}

void FakeCard::Complain(const Queue& queue, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (complaints_.size() < 20)
    complaints_.push_back(
        fmt::format("queue {:#x}, entry {}: {}", queue.number, queue.taken, what));
}

// -------------------------------------------------------------------------------------------------
// The card's thread

void FakeCard::Run() {
  std::vector<Queue*> order;
  while (!ending_) {
    bool moved = false;
    if (waiting_ == 0) {
      const std::lock_guard lock(queues_mutex_);
      order.clear();
      for (const auto& queue : queues_)
        if (queue != nullptr) order.push_back(queue.get());
      std::shuffle(order.begin(), order.end(), random_);
      for (Queue* const queue : order) moved |= Serve(*queue);
    }
    if (!moved) std::this_thread::yield();
  }
}

bool FakeCard::Serve(Queue& queue) {
  LookAtDoorbell(queue);
  const bool landed = LandSome(queue);
  const bool busy = queue.taken < queue.rung || !queue.outcomes.empty();
  if (!busy) return landed;
  if (queue.rest > 0) {
    --queue.rest;
    return true;
  }
  queue.rest = Random(most_delay_);
  const bool completes = !queue.outcomes.empty() && (queue.taken == queue.rung || Random(1) == 0);
  if (completes)
    WriteCompletion(queue);
  else if (queue.taken < queue.rung)
    return CarryOut(queue);
  return true;
}

uint32_t FakeCard::RecordOf(const Queue& queue) const {
  return reach_->Load(reinterpret_cast<const std::byte*>(queue.memory.record + 1));
}

void FakeCard::LookAtDoorbell(Queue& queue) {
  const uint64_t rung =
      std::atomic_ref<uint64_t>(*queue.memory.doorbell).load(std::memory_order_acquire);
  if (rung == queue.seen_doorbell) return;
  queue.seen_doorbell = rung;
  uint8_t bytes[8];
  std::memcpy(bytes, &rung, sizeof(bytes));
  if (Big32(bytes + 4) != queue.number << 8) Complain(queue, "a doorbell of another queue");
  if ((Big32(bytes) & 0xff0000ff) != 0) Complain(queue, "a doorbell with more than an index");
  const uint32_t told = Big32(bytes) >> 8 & 0xffff;
  const uint32_t recorded = device::mlx5::BigEndian(RecordOf(queue));
  if (recorded > 0xffff || static_cast<int16_t>(recorded - told) < 0)
    Complain(queue, fmt::format("a doorbell for {} before its record, {}", told, recorded));
  if (queue.loses_doorbell.exchange(false)) {
    ++lost_doorbells_;
    return;
  }
  const auto more = static_cast<uint16_t>(told - static_cast<uint16_t>(queue.rung));
  queue.rung += more;
  if (queue.rung - queue.written > queue.size)
    Complain(queue,
             fmt::format("{} entries in a queue of {}", queue.rung - queue.written, queue.size));
}

// Carries out the next entry. Returns whether it could.
bool FakeCard::CarryOut(Queue& queue) {
  const Decoded entry(*reach_, queue.memory.entries + queue.taken % queue.size);
  if (entry.index() != (queue.taken & 0xffff))
    Complain(queue, fmt::format("it says that it is {}", entry.index()));
  if (entry.queue() != queue.number) Complain(queue, "it is of another queue");
  if (entry.opmod() != 0 || entry.flags() != 8) Complain(queue, "modifier or flags");
  if (entry.segments() != entry.WantedSegments())
    Complain(queue,
             fmt::format("operation {:#x} with {} segments", entry.operation(), entry.segments()));
  if (!entry.RestIsZero()) Complain(queue, "what is reserved is not 0");
  uint8_t outcome = kFlushed;
  if (!queue.dead) {
    bool waits = false;
    outcome =
        queue.taken == queue.fails_at ? queue.fails_with.load() : CarryOut(queue, entry, &waits);
    if (waits) return false;
  }
  if (outcome != kGood) queue.dead = true;
  queue.outcomes.push_back(outcome);
  ++queue.taken;
  return true;
}

uint8_t FakeCard::CarryOut(Queue& queue, const Decoded& entry, bool* waits) {
  switch (entry.operation()) {
    case 0x08:
    case 0x10:
      return Transfer(queue, entry);
    case 0x12:
      return FetchAdd(queue, entry);
    case 0x23:
      if (Find(queue.rank, entry.key(1), entry.address(1), entry.count(1), End::kLocal) == nullptr)
        return kLocalProtection;
      Show(queue);
      return kGood;
    case 0x0f: {
      const uint32_t number = Big32(entry.bytes + 28);
      const auto waited = std::find_if(queues_.begin(), queues_.end(), [&](const auto& other) {
        return other != nullptr && other->memory.completions_number == number;
      });
      if (waited == queues_.end() || (*waited)->rank != queue.rank) return kLocalProtection;
      const auto written = static_cast<uint32_t>((*waited)->written.load());
      *waits = static_cast<int32_t>(written - Big32(entry.bytes + 24)) <= 0;
      return kGood;
    }
    default:
      return kGood;
  }
}

// Carries out a WRITE, or keeps what it brings for later. It lands behind earlier ones to the same
// place.
void FakeCard::Write(Queue& queue, const Decoded& entry, std::byte* remote, const std::byte* local,
                     uint32_t bytes) {
  const uint64_t begin = entry.remote_address();
  const auto overlaps = [&](const Late& late) {
    return late.key == entry.remote_key() && late.address < begin + bytes &&
           begin < late.address + late.bytes.size();
  };
  if (std::any_of(queue.late.begin(), queue.late.end(), overlaps)) LandAll(queue);
  if (most_delay_ == 0 || bytes == 0 || bytes > kMostLateBytes || Random(1) == 0)
    return CopyInPieces(remote, local, bytes);
  Late& late =
      queue.late.emplace_back(Late{QueueOf(queue.to).rank, entry.remote_key(), begin,
                                   std::vector<std::byte>(bytes), Random(kMostLateRounds)});
  reach_->Copy(late.bytes.data(), local, bytes);
}

// Memory that is no longer registered takes nothing.
void FakeCard::Land(const Late& late) {
  std::byte* const to =
      Find(late.rank, late.key, late.address, late.bytes.size(), End::kRemoteWrite);
  if (to != nullptr) CopyInPieces(to, late.bytes.data(), late.bytes.size());
}

void FakeCard::LandAll(Queue& queue) {
  std::shuffle(queue.late.begin(), queue.late.end(), random_);
  for (const Late& late : queue.late) Land(late);
  queue.late.clear();
}

// Lands what has been late for long enough. Returns whether anything is late.
bool FakeCard::LandSome(Queue& queue) {
  const bool any = !queue.late.empty();
  for (Late& late : queue.late)
    if (late.rounds-- == 0) Land(late);
  std::erase_if(queue.late, [](const Late& late) { return late.rounds == UINT32_MAX; });
  return any;
}

uint8_t FakeCard::Transfer(Queue& queue, const Decoded& entry) {
  const bool inlined = entry.operation() == 0x08 && entry.inlined();
  const uint32_t bytes = inlined ? entry.inline_bytes() : entry.count(2);
  if (!Answers(queue)) return kNoAnswer;
  std::byte* const remote = FindRemote(
      queue, entry, bytes, entry.operation() == 0x10 ? End::kRemoteRead : End::kRemoteWrite);
  if (remote == nullptr) return kRemoteAccess;
  if (inlined) {
    Write(queue, entry, remote, reinterpret_cast<const std::byte*>(entry.bytes + 36), bytes);
    return kGood;
  }
  std::byte* const local = Find(queue.rank, entry.key(2), entry.address(2), bytes, End::kLocal);
  if (local == nullptr) return kLocalProtection;
  if (entry.operation() == 0x08) {
    Write(queue, entry, remote, local, bytes);
  } else {
    LandAll(queue);
    Held& held = queue.held.emplace_back(Held{local, std::vector<std::byte>(bytes)});
    reach_->Copy(held.bytes.data(), remote, bytes);
  }
  return kGood;
}

uint8_t FakeCard::FetchAdd(Queue& queue, const Decoded& entry) {
  if (!Answers(queue)) return kNoAnswer;
  std::byte* const word = FindRemote(queue, entry, 8, End::kRemoteAtomic);
  if (word == nullptr) return kRemoteAccess;
  if (reinterpret_cast<uintptr_t>(word) % 8 != 0) return kRemoteInvalid;
  std::byte* const old = Find(queue.rank, entry.key(3), entry.address(3), 8, End::kLocal);
  if (old == nullptr || entry.count(3) != 8) return kLocalProtection;
  LandAll(queue);
  const uint64_t before = reach_->FetchAdd(word, Big64(entry.bytes + 32));
  reach_->Copy(old, reinterpret_cast<const std::byte*>(&before), sizeof(before));
  return kGood;
}

void FakeCard::Show(Queue& queue) {
  for (const Held& held : queue.held) reach_->Copy(held.to, held.bytes.data(), held.bytes.size());
  queue.held.clear();
}

// The state of the entry comes last, so that whoever sees it sees the rest.
void FakeCard::WriteCompletion(Queue& queue) {
  const uint64_t index = queue.written;
  const uint8_t outcome = queue.outcomes.front();
  queue.outcomes.pop_front();
  auto* const completion =
      reinterpret_cast<std::byte*>(queue.memory.completions + index % queue.size * 64);
  std::array<std::byte, 60> body = {};
  body[55] = std::byte{outcome};
  reach_->Copy(completion, body.data(), body.size());
  const auto counter = static_cast<uint16_t>(index);
  const auto owner = static_cast<uint8_t>(index / queue.size % 2);
  const auto opcode = static_cast<uint8_t>(outcome == kGood ? 0 : kOpcodeError);
  const uint8_t last[4] = {static_cast<uint8_t>(counter >> 8), static_cast<uint8_t>(counter), 0,
                           static_cast<uint8_t>(opcode << 4 | owner)};
  uint32_t word = 0;
  std::memcpy(&word, last, sizeof(word));
  ++queue.written;
  reach_->Store(completion + 60, word);
}

// Returns whether the queue that a queue is joined to is there, and joined to it.
bool FakeCard::Answers(const Queue& queue) const {
  const Queue* const other = Find(queue.to);
  return other != nullptr && other->to == queue.number;
}

std::byte* FakeCard::FindRemote(const Queue& queue, const Decoded& entry, uint64_t bytes,
                                End end) const {
  return Find(QueueOf(queue.to).rank, entry.remote_key(), entry.remote_address(), bytes, end);
}

std::byte* FakeCard::Find(int rank, uint32_t key, uint64_t address, uint64_t bytes, End end) const {
  if (finder_) return finder_(rank, key, address, bytes, end);
  const size_t number = key - kFirstKey;
  if (key < kFirstKey || number >= memories_.size()) return nullptr;
  const Memory& memory = memories_[number];
  if (memory.rank != rank || address > memory.bytes.size() || bytes > memory.bytes.size() - address)
    return nullptr;
  return memory.bytes.data() + address;
}

// Writes the end first. Every write of several bytes is seen in pieces for a moment, and one in
// eight for as long as the other threads of a busy processor run.
void FakeCard::CopyInPieces(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t cut = bytes == 0 ? 0 : random_() % bytes;
  reach_->Copy(to + cut, from + cut, bytes - cut);
  if (bytes > 1) {
    PauseByLoads();
    if (Random(7) == 0) std::this_thread::yield();
  }
  reach_->Copy(to, from, cut);
}

}  // namespace tutti::testing
