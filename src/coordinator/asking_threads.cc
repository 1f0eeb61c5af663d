#include "coordinator/asking_threads.h"

#include <fmt/format.h>
#include <unistd.h>

namespace tutti::coordinator {
namespace {

// Returns the number of the calling thread. With `anew`, asks the system even for a known number:
// in the child of a fork the calling thread has another number.
pid_t ThisThread(bool anew = false) {
  thread_local pid_t number = 0;
  if (number == 0 || anew) number = gettid();
  return number;
}

}  // namespace

bool ThreadLives(pid_t thread) {
  return access(fmt::format("/proc/self/task/{}", thread).c_str(), F_OK) == 0;
}

void AskingThreads::NoteAsking() {
  if (ThisThread() == last_asker_) return;
  last_asker_ = ThisThread(/*anew=*/true);
  askers_.insert(last_asker_);
  if (askers_.size() < most_askers_) return;
  // Done whenever the askers are twice as many as were left the last time.
  std::erase_if(askers_, [](pid_t asker) { return !ThreadLives(asker); });
  most_askers_ = std::max(kFewAskers, 2 * askers_.size());
}

void AskingThreads::BeginWait(const Ticket& ticket) { waits_.push_back({ThisThread(), &ticket}); }

void AskingThreads::EndWait(const Ticket& ticket) {
  const auto found = std::find_if(waits_.begin(), waits_.end(), [&](const Wait& wait) {
    return wait.ticket == &ticket && wait.thread == ThisThread();
  });
  if (found != waits_.end()) waits_.erase(found);
}

std::set<pid_t> AskingThreads::Blocked() const {
  std::set<pid_t> blocked;
  for (const Wait& wait : waits_) blocked.insert(wait.thread);
  return blocked;
}

}  // namespace tutti::coordinator
