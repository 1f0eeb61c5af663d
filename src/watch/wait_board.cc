#include "watch/wait_board.h"

#include <fmt/format.h>

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

}  // namespace tutti
