#include "coordinator/set_making.h"

#include <utility>

#include "base/exceptions.h"
#include "sys/thread.h"

namespace tutti::coordinator {

void SetMaking::Adopt(BreakOff break_off) {
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->state == State::kMaking) {
      shared_->adopted.push_back(std::move(break_off));
      return;
    }
  }
  // Called without the lock, because `break_off` may take locks of its own.
  break_off();
}

SetMaking::Opened SetMaking::Run(std::function<Opened()> open) {
  Shared& shared = *shared_;
  {
    const MutexLock lock(shared.mutex);
    if (shared.state == State::kBroken) return shared.reason;
    shared.returned.reset();
  }
  // The thread may outlive this object after Break, and therefore shares the ownership of the
  // state.
  auto body = [owner = shared_, open = std::move(open)] {
    Opened result = InternalError("the call threw");
    const Status thrown = WithoutExceptions([&] {
      result = open();
      return Status::Ok();
    });
    if (!thrown.ok()) result = thrown;
    const MutexLock lock(owner->mutex);
    owner->returned = std::move(result);
    owner->changed.NotifyAll();
  };
  TUTTI_ASSIGN(std::thread thread, StartThread("tutti-open", std::move(body)));
  MutexLock lock(shared.mutex);
  while (!shared.returned && shared.state == State::kMaking) shared.changed.Wait(lock);
  if (!shared.returned) {
    thread.detach();
    return shared.reason;
  }
  Opened result = std::move(*shared.returned);
  lock.Unlock();
  thread.join();
  return result;
}

void SetMaking::Break(const Status& reason) {
  std::vector<BreakOff> adopted;
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->state == State::kBroken) return;
    shared_->state = State::kBroken;
    shared_->reason = reason;
    adopted.swap(shared_->adopted);
    shared_->changed.NotifyAll();
  }
  // Called without the lock, as in Adopt.
  for (const BreakOff& break_off : adopted) break_off();
}

}  // namespace tutti::coordinator
