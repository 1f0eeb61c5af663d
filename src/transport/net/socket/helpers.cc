#include "transport/net/socket/helpers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <thread>

#include "sys/thread.h"

namespace tutti {

class LaneHelpers::Thread {
 public:
  explicit Thread(UniqueFd event) : event_(std::move(event)) {}
  ~Thread() {
    stopping_.store(true, std::memory_order_release);
    Ring();
    if (thread_.joinable()) thread_.join();
  }
  Status Start() {
    TUTTI_ASSIGN(thread_, StartThread("tutti-lanes", [this] { Run(); }));
    return Status::Ok();
  }

  void Attach(Lane& lane) {
    Edit([&] { lanes_.push_back(&lane); });
    Ring();  // pieces may already wait in it
  }
  void Detach(Lane& lane) {
    Edit([&] { std::erase(lanes_, &lane); });
    Ring();  // its descriptor must not stay in a poll
  }
  void Wake() {
    // Pairs with the exchange in Sleep: either this sees the sleeper, or the sleeper sees the
    // piece.
    if (asleep_.exchange(false, std::memory_order_acq_rel)) Ring();
  }

 private:
  template <typename Change>
  void Edit(Change change) {
    editors_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    editors_.fetch_sub(1, std::memory_order_relaxed);
    change();
  }
  void Ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
  }
  bool StepAll();
  void Sleep();
  void Run();

  UniqueFd event_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> asleep_ = false;
  std::atomic<int> editors_ = 0;  // threads that want mutex_: a busy helper lets them in
  std::mutex mutex_;              // guards lanes_, and is held while lanes are stepped
  std::vector<Lane*> lanes_;
  std::vector<pollfd> polls_;
  std::thread thread_;
};

bool LaneHelpers::Thread::StepAll() {
  const std::lock_guard lock(mutex_);
  bool moved = false;
  for (Lane* lane : lanes_) moved |= lane->HasWork() && lane->Step();
  return moved;
}

void LaneHelpers::Thread::Sleep() {
  asleep_.exchange(true, std::memory_order_acq_rel);
  polls_.assign(1, pollfd{event_.get(), POLLIN, 0});
  {
    const std::lock_guard lock(mutex_);
    for (const Lane* lane : lanes_) {
      // Level-triggered: work that could go on at once makes the poll return at once.
      const short events = lane->direction() == LaneDirection::kSend ? POLLOUT : POLLIN;
      if (lane->HasWork()) polls_.push_back({lane->fd(), events, 0});
    }
  }
  ::poll(polls_.data(), polls_.size(), -1);
  asleep_.store(false, std::memory_order_relaxed);
  if (polls_[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof(count));
  }
}

void LaneHelpers::Thread::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    while (editors_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    if (!StepAll()) Sleep();
  }
}

LaneHelpers::LaneHelpers() = default;
LaneHelpers::~LaneHelpers() = default;

Result<std::shared_ptr<LaneHelpers>> LaneHelpers::Create(int threads) {
  std::shared_ptr<LaneHelpers> helpers(new LaneHelpers);
  for (int i = 0; i < threads; ++i) {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.valid()) return ErrnoError(errno, "eventfd failed for a socket helper thread");
    helpers->threads_.push_back(std::make_unique<Thread>(std::move(event)));
    TUTTI_TRY(helpers->threads_.back()->Start());
  }
  return helpers;
}

LaneHelpers::Thread& LaneHelpers::Of(int index) const {
  return *threads_[static_cast<size_t>(index) % threads_.size()];
}
void LaneHelpers::Attach(Lane& lane, int index) { Of(index).Attach(lane); }
void LaneHelpers::Detach(Lane& lane, int index) { Of(index).Detach(lane); }
void LaneHelpers::Wake(int index) { Of(index).Wake(); }

}  // namespace tutti
