#include "watch/wait_board.h"

#include <fmt/format.h>

#include <algorithm>

#include "watch/watch.h"

namespace tutti {

void WaitBoard::Add(const Watch& watch) {
  const MutexLock lock(mutex_);
  watches_.insert(&watch);
}

void WaitBoard::Remove(const Watch& watch) {
  const MutexLock lock(mutex_);
  watches_.erase(&watch);
}

// Ranks of one communicator may be threads of one process. Their waits are told by the ranks
// themselves.
std::string WaitBoard::WaitsBeside(const Watch& asked) const {
  constexpr size_t kMostShown = 3;
  std::string text;
  size_t shown = 0;
  const MutexLock lock(mutex_);
  for (const Watch* const watch : watches_) {
    if (shown == kMostShown) break;
    const std::string wait = watch->HasSameRanksAs(asked) ? "" : watch->DescribeWait();
    if (wait.empty()) continue;
    text += fmt::format("{}{}", shown == 0 ? ", and its process waits in " : ", and in ", wait);
    ++shown;
  }
  return text;
}

void WaitBoard::SetLetterHandler(LetterHandler handler) {
  const MutexLock lock(handler_mutex_);
  letter_handler_ = std::move(handler);
}

const Watch* WaitBoard::Find(uint64_t communicator) const {
  for (const Watch* const watch : watches_)
    if (watch->communicator() == communicator) return watch;
  return nullptr;
}

// Several ranks of a communicator may be in this process, and have different links.
bool WaitBoard::SendLetter(uint64_t communicator, int to, std::span<const std::byte> letter) const {
  const MutexLock lock(mutex_);
  return std::any_of(watches_.begin(), watches_.end(), [&](const Watch* watch) {
    return watch->communicator() == communicator && watch->SendLetter(to, letter);
  });
}

void WaitBoard::OnLetter(const Watch& watch, int from, std::span<const std::byte> letter) const {
  const MutexLock lock(handler_mutex_);
  if (letter_handler_) letter_handler_(watch.communicator(), from, letter);
}

std::vector<int> WaitBoard::LostRanks(uint64_t communicator) const {
  const MutexLock lock(mutex_);
  const Watch* const watch = Find(communicator);
  return watch != nullptr ? watch->LostRanks() : std::vector<int>();
}

}  // namespace tutti
