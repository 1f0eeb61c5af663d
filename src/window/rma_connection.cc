#include "window/rma_connection.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

// How often the progress thread looks at a network without descriptors.
constexpr int64_t kLookAgainNs = 1'000'000;
// The longest sleep of a thread that waits for a put of the peer: a NIC may write into memory
// without any descriptor becoming ready.
constexpr int64_t kLongestSleepNs = 1'000'000;
// The progress thread stays away from a connection for this time to twice this time after a thread
// has attended to it. A kernel takes less time between two operations, and a peer that waits for a
// get does not notice the delay.
constexpr int64_t kAttendedNs = 200'000;
// After so many moves in a row the progress thread turns to other connections.
constexpr int kMovesInARow = 16;

}  // namespace

RmaConnection::RmaConnection(EventLoop& loop, std::unique_ptr<NetRmaComm> comm)
    : loop_(loop), comm_(std::move(comm)) {
  const MutexLock lock(mutex_);
  std::vector<int> fds;
  comm_->AppendFds(fds);
  for (const int fd : fds) descriptors_.push_back({fd});
  ServeLater(0);
}

RmaConnection::~RmaConnection() {
  // On the loop's thread no callback runs at the same time, and none runs later.
  loop_.RunSync([this] {
    const MutexLock lock(mutex_);
    if (timer_ != 0) loop_.CancelTimer(timer_);
    for (const Descriptor& descriptor : descriptors_)
      if (descriptor.added) loop_.RemoveFd(descriptor.fd);
  });
}

Result<std::unique_ptr<NetMemory>> RmaConnection::Register(const NetRegion& region) {
  const MutexLock lock(mutex_);
  return comm_->Register(region);
}

void RmaConnection::End(std::unique_ptr<NetMemory> memory) {
  const MutexLock lock(mutex_);
  memory.reset();
}

void RmaConnection::Enter() {
  const MutexLock lock(mutex_);
  ++num_inside_;
}

void RmaConnection::Leave() {
  const MutexLock lock(mutex_);
  if (--num_inside_ == 0 && !broken_ && !attended_) Arm();
}

void RmaConnection::Linger() {
  const MutexLock lock(mutex_);
  NoteAttention();
}

void RmaConnection::NoteAttention() {
  attended_ = true;
  ServeLater(kAttendedNs);
}

Result<bool> RmaConnection::Attend() {
  const MutexLock lock(mutex_);
  if (!broken_) NoteAttention();
  Result<bool> moved = comm_->Progress();
  if (!moved.ok()) broken_ = true;
  return moved;
}

Result<NetRequest*> RmaConnection::Put(NetLocal from, NetRemote to, size_t bytes,
                                       const NetSignal* signal) {
  const MutexLock lock(mutex_);
  return comm_->Iput(from, to, bytes, signal);
}

Result<NetRequest*> RmaConnection::Get(NetLocal to, NetRemote from, size_t bytes) {
  const MutexLock lock(mutex_);
  return comm_->Iget(to, from, bytes);
}

Result<NetRequest*> RmaConnection::Flush() {
  const MutexLock lock(mutex_);
  return comm_->Iflush();
}

Result<bool> RmaConnection::Progress() {
  const MutexLock lock(mutex_);
  Result<bool> moved = comm_->Progress();
  if (!moved.ok()) broken_ = true;
  return moved;
}

Result<bool> RmaConnection::Test(NetRequest& request) {
  const MutexLock lock(mutex_);
  return comm_->Test(request);
}

void RmaConnection::Break() {
  const MutexLock lock(mutex_);
  broken_ = true;
  comm_->Shutdown();
}

bool RmaConnection::AppendWaits(std::vector<pollfd>& descriptors) {
  const MutexLock lock(mutex_);
  if (broken_) return true;
  waits_.clear();
  if (comm_->PrepareToWait(waits_) == NetIdle::kProgress) return false;
  for (const NetWait& wait : waits_)
    descriptors.push_back({wait.fd, static_cast<short>(wait.events), 0});
  return true;
}

void RmaConnection::SleepOn(std::span<RmaConnection* const> connections, int64_t timeout_ns) {
  std::vector<pollfd> descriptors;
  bool idle = true;
  for (RmaConnection* const connection : connections) {
    connection->Enter();
    idle = idle && connection->AppendWaits(descriptors);
  }
  if (idle) {
    const timespec timeout = {0, std::min(timeout_ns, kLongestSleepNs)};
    ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr);
  }
  for (RmaConnection* const connection : connections) connection->Leave();
}

void RmaConnection::Sleep(int64_t timeout_ns) {
  RmaConnection* const self = this;
  SleepOn(std::span(&self, 1), timeout_ns);
}

void RmaConnection::OnTimer() {
  const MutexLock lock(mutex_);
  timer_ = 0;
  if (std::exchange(attended_, false) && !broken_) return ServeLater(kAttendedNs);
  Serve();
}

void RmaConnection::OnReady() {
  const MutexLock lock(mutex_);
  // The timer is set where a thread attends to the connection.
  if (!attended_) Serve();
}

// Moves the data of the peer's operations, on the progress thread.
void RmaConnection::Serve() {
  if (num_inside_ > 0 || broken_) return;
  for (int moves = 0; moves < kMovesInARow; ++moves) {
    const Result<bool> moved = comm_->Progress();
    // The next user of the connection learns why it is broken.
    if (!moved.ok()) {
      broken_ = true;
      return;
    }
    if (!*moved) return Arm();
  }
  ServeLater(0);
}

// Has the progress thread woken for events that could let the connection go on.
void RmaConnection::Arm() {
  waits_.clear();
  const NetIdle idle = comm_->PrepareToWait(waits_);
  if (idle == NetIdle::kProgress) return ServeLater(0);
  if (idle == NetIdle::kPoll) return ServeLater(kLookAgainNs);
  for (Descriptor& descriptor : descriptors_) {
    uint32_t events = 0;
    for (const NetWait& wait : waits_)
      if (wait.fd == descriptor.fd) events |= wait.events;
    Status armed;
    if (descriptor.added) {
      armed = loop_.ModifyFd(descriptor.fd, events | EPOLLONESHOT);
    } else if (events != 0) {
      armed = loop_.AddFd(descriptor.fd, events | EPOLLONESHOT, [this](uint32_t) { OnReady(); });
      descriptor.added = armed.ok();
    }
    if (!armed.ok()) return ServeLater(kLookAgainNs);
  }
}

void RmaConnection::ServeLater(int64_t delay_ns) {
  if (timer_ == 0) timer_ = loop_.AddTimer(delay_ns, [this] { OnTimer(); });
}

}  // namespace tutti
