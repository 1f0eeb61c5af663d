#include "proxy/kernel_proxy.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/exceptions.h"
#include "base/wait.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// The most operations under way on a connection: fewer than its pool holds, and enough that the
// next is known before the last is done.
constexpr size_t kMostUnderWay = 8;

// Neither a GPU nor every network can wake a thread: after a while without news the thread looks
// again in steps. 20 us, and the 50 us by which Linux lets naps be late, are little beside the time
// of a message between hosts. Longer naps save no noticeable processor time, and make a message of
// 1 MiB take up to five times as long (bench/results/gpu.md).
constexpr WaitPolicy kPolicy = {.spin_ns = 50'000, .yield_ns = 2'000'000};
constexpr std::chrono::nanoseconds kNap = std::chrono::microseconds(20);
// An idle thread looks for the next operation for this long before it sleeps. A program that
// launches short operations in a row would otherwise wake the thread for each, at a cost of some
// microseconds for the program and more for the operation.
constexpr WaitPolicy kIdlePolicy = {.spin_ns = 20'000, .yield_ns = 100'000};

// A kernel that passes this many bytes through a connection, in chunks of this many, is a long
// kernel: a thread needs 200 us at either end to move the bytes. Short chunks may be steps of which
// each waits for the step before.
constexpr uint64_t kLongBytes = 1 << 20;
constexpr uint64_t kLongChunkBytes = 64 << 10;
// A wait for the end of the thread looks at the clock this often, and a sleep ends by itself.
constexpr int kLookAgainMs = 1000;

bool IsLong(const KernelOps& ops) {
  return std::any_of(ops.ops.begin(), ops.ops.end(), [](const KernelOp& op) {
    return op.bytes >= kLongBytes && op.bytes >= op.chunks * kLongChunkBytes;
  });
}

}  // namespace

Result<std::shared_ptr<KernelProxy>> KernelProxy::Create(const std::string& name,
                                                         KernelConnections& connections,
                                                         int harvest_every) {
  std::shared_ptr<KernelProxy> proxy(new KernelProxy(connections, harvest_every));
  TUTTI_ASSIGN(proxy->thread_, StartThread(name, [self = proxy.get()] { self->Run(); }));
  return proxy;
}

KernelProxy::~KernelProxy() {
  Abort(InternalError("the communicator is destroyed"));
  if (thread_.joinable()) thread_.join();
}

void KernelProxy::Post(std::shared_ptr<const KernelOps> ops) {
  {
    const MutexLock lock(mutex_);
    if (ending() != Ending::kNo) return;
    posted_.push_back(std::move(ops));
  }
  doorbell_.Ring();
}

void KernelProxy::Abort(const Status& reason) {
  {
    const MutexLock lock(mutex_);
    if (ending() == Ending::kNow) return;
    abort_reason_ = reason;
    ending_.store(Ending::kNow, std::memory_order_release);
  }
  doorbell_.Ring();
}

// The peers may never take the rest, so after the deadline the connections are broken.
void KernelProxy::Finish(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (ending() == Ending::kNo) ending_.store(Ending::kWhenIdle, std::memory_order_release);
    doorbell_.Ring();
    while (!ended_ && !deadline.Passed())
      ended_changed_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(kLookAgainMs)));
  }
  Abort(Timeout("the other ranks do not take what was sent to them"));
  if (thread_.joinable()) thread_.join();
}

// ---------------------------------------------------------------------------------------------------------------------
// The thread's side

// An exception ends the connections and not the process: the caller hears of it as a failure.
void KernelProxy::Run() {
  backoff_.emplace(kPolicy);
  int rounds = 0;
  while (true) {
    bool goes_on = true, moved = false;
    const Status status = WithoutExceptions([&]() -> Status {
      if (active_.empty() || ++rounds >= harvest_every_) {
        rounds = 0;
        goes_on = Harvest();
      }
      goes_on &= ending() != Ending::kNow;
      if (!goes_on) return Status::Ok();
      TUTTI_TRY(StartHarvested());
      TUTTI_ASSIGN(moved, MoveAll());
      return Status::Ok();
    });
    if (!goes_on) break;
    if (!status.ok()) {
      connections_.OnFailure(status);
      Abort(status);
      break;
    }
    if (moved) {
      backoff_.emplace(kPolicy);
    } else {
      Rest();
    }
  }
  CloseAll();
  const MutexLock lock(mutex_);
  ended_ = true;
  ended_changed_.NotifyAll();
}

// The doorbell is read before the queues: a post that comes in between has then rung beyond `seen`.
bool KernelProxy::Harvest() {
  while (true) {
    const uint64_t seen = doorbell_.rings.load(std::memory_order_acquire);
    const Ending ending = this->ending();
    const bool may_come = ending == Ending::kNo || connections_.MayAnnounce();
    TakePosted();
    if (ending == Ending::kNow) return false;
    if (!active_.empty() || !harvested_.empty() || !announced_.ops.empty()) return true;
    if (!may_come) return false;
    const auto rang = [&] { return doorbell_.rings.load(std::memory_order_acquire) != seen; };
    Backoff idle(kIdlePolicy);
    while (!rang() && idle.Pause()) {
    }
    if (!rang()) doorbell_.SleepBeyond(seen, int64_t{kLookAgainMs} * 1'000'000);
  }
}

void KernelProxy::TakePosted() {
  announced_ = connections_.Take();
  const MutexLock lock(mutex_);
  std::move(posted_.begin(), posted_.end(), std::back_inserter(harvested_));
  posted_.clear();
}

Status KernelProxy::StartAnnounced() {
  if (announced_.ops.empty()) return Status::Ok();
  TUTTI_TRY(connections_.Open(announced_));
  Start(announced_);
  announced_.ops.clear();
  return Status::Ok();
}

// Operations whose connections have to be made first wait until all earlier operations are done,
// because nobody moves the data of this rank while its thread waits for others to connect. The wait
// holds up nothing: kernels run one after another, in the order in which they are posted on all
// ranks.
Status KernelProxy::StartHarvested() {
  TUTTI_TRY(StartAnnounced());
  while (!harvested_.empty()) {
    const KernelOps& next = *harvested_.front();
    const bool open = std::all_of(next.ops.begin(), next.ops.end(), [&](const KernelOp& op) {
      return connections_.Find(op.connection) != nullptr;
    });
    if (!open && !active_.empty()) return Status::Ok();
    if (!open) TUTTI_TRY(connections_.Open(next));
    Start(next);
    harvested_.pop_front();
  }
  return Status::Ok();
}

// A connection may still have earlier kernels' operations, behind which the new operation waits.
void KernelProxy::Start(const KernelOps& ops) {
  const uint64_t number = kernels_++;
  const bool long_kernel = IsLong(ops);
  for (const KernelOp& op : ops.ops) {
    if (op.chunks == 0) continue;
    Active& active = all_[op.connection];
    active.connection = connections_.Find(op.connection);
    active.waiting.push_back({op.chunks, ops.op_tag, number, long_kernel});
    BeginWaiting(active);
    if (!std::exchange(active.listed, true)) active_.push_back(&active);
  }
}

// A bounded number of operations is begun, as the connection's pool has room for no more.
void KernelProxy::BeginWaiting(Active& active) {
  while (!active.waiting.empty() && active.under_way.size() < kMostUnderWay) {
    Share& share = active.under_way.emplace_back(active.waiting.front());
    active.waiting.pop_front();
    active.connection->Begin(share.chunks, share.op_tag);
    share.end = active.begun += share.chunks;
  }
}

void KernelProxy::Rest() {
  if (FirstIsLong() || !backoff_->Pause()) std::this_thread::sleep_for(kNap);
}

bool KernelProxy::FirstIsLong() const {
  const Share* first = nullptr;
  for (const Active* active : active_) {
    const Share& front = active->under_way.front();
    if (first == nullptr || front.number < first->number) first = &front;
  }
  return first != nullptr && first->long_kernel;
}

// A connection leaves the list when its last operation is done, so idle connections cost nothing.
Result<bool> KernelProxy::MoveAll() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    Active& active = *active_[i];
    moved |= active.connection->Poll();
    TUTTI_TRY(active.connection->status());
    const uint64_t done = active.connection->ChunksDone();
    while (!active.under_way.empty() && active.under_way.front().end <= done)
      active.under_way.pop_front();
    BeginWaiting(active);
    if (!active.under_way.empty()) {
      ++i;
      continue;
    }
    active.listed = false;
    active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
  }
  return moved;
}

// After an orderly end the connections stay whole, and flush what they have sent.
void KernelProxy::CloseAll() {
  if (ending() != Ending::kNow) return;
  Status reason;
  {
    const MutexLock lock(mutex_);
    reason = abort_reason_;
  }
  for (auto& [number, active] : all_) active.connection->Close(reason);
}

}  // namespace tutti
