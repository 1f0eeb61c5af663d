#include "fakecard/card_process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>

namespace tutti::testing {
namespace {

constexpr size_t kBytes = size_t{64} << 20;
constexpr size_t kLine = 64;

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

CardProcess::CardProcess(uint32_t seed, uint32_t most_delay)
    : card_(std::make_unique<FakeCard>(seed, most_delay)),
      own_process_(std::getenv("FAKE_CARD_PROCESS") != nullptr) {
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("shared memory");
  memory_ = static_cast<std::byte*>(memory);
  mailbox_ = new (Take(sizeof(Mailbox)).data()) Mailbox;
}

CardProcess::~CardProcess() {
  if (process_ != 0) {
    Ask(Wish::kEnd);
    int status = 0;
    waitpid(process_, &status, 0);
    EXPECT_EQ(status, 0) << "how the card's process ended";
  }
  card_.reset();  // Its thread reads the memory until then.
  munmap(memory_, kBytes);
}

std::span<std::byte> CardProcess::Take(size_t bytes) {
  const size_t at = taken_;
  taken_ += (bytes + kLine - 1) / kLine * kLine;
  if (taken_ > kBytes) Fail("more memory than the card shares");
  return {memory_ + at, bytes};
}

uint32_t CardProcess::MakeQueue(int rank, uint16_t size) {
  const size_t ring = size * device::mlx5::kEntryBytes;
  FakeCard::QueueMemory memory;
  memory.entries = reinterpret_cast<device::mlx5::Entry*>(Take(ring).data());
  memory.completions = reinterpret_cast<uint8_t*>(Take(ring).data());
  for (size_t i = 1; i <= size; ++i) memory.completions[i * device::mlx5::kEntryBytes - 1] = 0xf1;
  memory.record = reinterpret_cast<uint32_t*>(Take(2 * sizeof(uint32_t)).data());
  memory.doorbell = reinterpret_cast<uint64_t*>(Take(sizeof(uint64_t)).data());
  return card_->AddQueue(rank, size, memory);
}

void CardProcess::Start() {
  if (!own_process_) return card_->Start();
  process_ = fork();
  if (process_ < 0) Fail("fork");
  if (process_ != 0) return;
  // It does not outlive the test.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  card_->Start();
  Serve();
  std::_Exit(0);
}

void CardProcess::Serve() {
  for (uint32_t seen = 0;;) {
    const uint32_t asked = mailbox_->asked.load(std::memory_order_acquire);
    if (asked == seen) {
      sched_yield();
      continue;
    }
    seen = asked;
    const bool ends = mailbox_->wish == Wish::kEnd;
    mailbox_->answer = ends ? 0 : Fulfil();
    mailbox_->answered.store(asked, std::memory_order_release);
    if (ends) return;
  }
}

uint64_t CardProcess::Fulfil() {
  const Mailbox& asked = *mailbox_;
  switch (asked.wish) {
    case Wish::kFail:
      card_->FailEntry(asked.queue, asked.number, asked.syndrome);
      return 0;
    case Wish::kLose:
      card_->LoseDoorbell(asked.queue);
      return 0;
    case Wish::kComplaints: {
      std::string text;
      for (const std::string& complaint : card_->complaints()) text += complaint + "\n";
      std::snprintf(mailbox_->text, sizeof(mailbox_->text), "%s", text.c_str());
      return 0;
    }
    case Wish::kLost:
      return static_cast<uint64_t>(card_->lost_doorbells());
    case Wish::kDone:
      return card_->done(asked.queue);
    case Wish::kEnd:
      break;
  }
  return 0;
}

uint64_t CardProcess::Ask(Wish wish, uint32_t queue, uint64_t number, uint8_t syndrome) {
  mailbox_->wish = wish;
  mailbox_->queue = queue;
  mailbox_->number = number;
  mailbox_->syndrome = syndrome;
  if (process_ == 0) return Fulfil();
  const uint32_t asked = mailbox_->asked.load(std::memory_order_relaxed) + 1;
  mailbox_->asked.store(asked, std::memory_order_release);
  while (mailbox_->answered.load(std::memory_order_acquire) != asked) {
    siginfo_t ended = {};
    if (waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != 0)
      Fail("the card's process has ended");
    sched_yield();
  }
  return mailbox_->answer;
}

void CardProcess::FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome) {
  Ask(Wish::kFail, queue, index, syndrome);
}
void CardProcess::LoseDoorbell(uint32_t queue) { Ask(Wish::kLose, queue); }
int CardProcess::lost_doorbells() { return static_cast<int>(Ask(Wish::kLost)); }
uint64_t CardProcess::done(uint32_t queue) { return Ask(Wish::kDone, queue); }

std::vector<std::string> CardProcess::complaints() {
  Ask(Wish::kComplaints);
  std::vector<std::string> all;
  std::istringstream lines(mailbox_->text);
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  return all;
}

}  // namespace tutti::testing
