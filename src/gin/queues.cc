#include "gin/queues.h"

#include <sys/mman.h>

#include <cerrno>

#include "gin/descriptor_slots.h"

namespace tutti {
namespace {

using device::GinDescriptor;

// Returns the counter that an operation increases at its end.
std::optional<uint32_t> CounterOf(const device::GinOperation& operation) {
  if ((operation.op & device::kGinWithCounter) == 0) return std::nullopt;
  return operation.counter;
}

// A thread leaves a connection after 64 rounds, even if the connection still moves, because the
// call that drives it has to end. The next caller goes on.
constexpr int kRoundsInARow = 64;

}  // namespace

Result<std::unique_ptr<GinMemory>> GinMemory::Allocate(size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return ErrnoError(errno, fmt::format("{} bytes for operations of kernels", bytes));
  return std::unique_ptr<GinMemory>(new GinMemory(data, bytes));
}

GinMemory::~GinMemory() { munmap(data_, bytes_); }

GinQueues::GinQueues(GinExecutor& executor, uint32_t context, GinDescriptor* descriptors)
    : executor_(executor),
      context_(context),
      num_queues_(executor.plan().num_queues),
      depth_(executor.plan().queue_depth),
      descriptors_(descriptors),
      producer_(num_queues_),
      consumer_(num_queues_),
      signal_offsets_(executor.plan().num_signals),
      last_issued_get_(num_queues_),
      last_visible_get_(num_queues_),
      rung_queues_(std::make_unique<std::atomic<bool>[]>(num_queues_)),
      queues_(num_queues_) {}

device::GinContext GinQueues::record() {
  device::GinContext record = {};
  record.nranks = static_cast<int>(num_queues_);
  record.queueSize = depth_;
  record.queues = descriptors_;
  record.pis = producer_.data();
  record.cis = consumer_.data();
  record.counters = executor_.CounterOf(context_, 0);
  record.signals = executor_.SignalsOf(context_);
  record.signalOffsets = signal_offsets_.data();
  record.lastIssuedGet = last_issued_get_.data();
  record.lastVisibleGet = last_visible_get_.data();
  return record;
}

bool GinQueues::Do(uint32_t queue, const uint64_t* words, Driven* driven) {
  if (queue >= num_queues_) {
    driven->failure = InvalidArgument(
        "there is no rank {} to put to, get from or signal: there are {}", queue, num_queues_);
    return true;
  }
  const device::GinOperation operation = device::UnpackGin(words);
  const GinExecutor::Position at = {context_, queue, 0};
  // Operations that this thread has posted come first.
  if (executor_.NeedsNetwork(queue, operation) ||
      std::atomic_ref<uint32_t>(producer_[queue]).load(std::memory_order_relaxed) !=
          std::atomic_ref<uint32_t>(consumer_[queue]).load(std::memory_order_acquire)) {
    // The operation is also checked here, because only here can the error name the thread that asks
    // for the operation.
    driven->failure = executor_.Check(at, operation);
    return !driven->failure.ok();
  }
  driven->failure = executor_.Begin(at, operation).status();
  if (driven->failure.ok()) IncreaseCounter(CounterOf(operation));
  return true;
}

GinQueues::Driven GinQueues::RingDoorbell(uint32_t queue) {
  if (queue >= num_queues_) return {};
  rung_queues_[queue].store(true);
  rung_.store(true);
  return Drive();
}

// The flags stored and loaded here are sequentially consistent: a thread that finds another thread
// driving has raised rung_ before, and the driving thread looks at rung_ after it has left.
GinQueues::Driven GinQueues::Drive() {
  Driven driven;
  while (rung_.load() || busy()) {
    if (driving_.exchange(true)) return driven;
    {
      const MutexLock lock(mutex_);
      rung_.store(false);
      driven = DriveAll();
    }
    driving_.store(false);
    if (!driven.failure.ok() || !rung_.load()) break;
  }
  return driven;
}

// Drives the queues with new or unfinished operations. The first failure ends the context, because
// later operations may rely on the failed operation.
GinQueues::Driven GinQueues::DriveAll() {
  Driven driven;
  if (broken_) return driven;
  for (uint32_t number = 0; number < num_queues_; ++number) {
    Queue& queue = queues_[number];
    if (!rung_queues_[number].exchange(false) && !queue.busy()) continue;
    driven.failure = DriveQueue(number);
    if (!driven.failure.ok()) {
      driven.peer = executor_.PeerOf(number);
      broken_ = true;
      busy_.store(false, std::memory_order_release);
      return driven;
    }
    driven.under_way |= queue.busy();
  }
  busy_.store(driven.under_way, std::memory_order_release);
  return driven;
}

// A window that is registered meanwhile may bring a connection to a rank of the team. The thread
// therefore looks up the connection for each operation.
Status GinQueues::DriveQueue(uint32_t number) {
  for (;;) {
    if (RmaConnection* const connection = executor_.ConnectionOf(number))
      return DriveConnection(number, *connection);
    TUTTI_ASSIGN(const bool took, Take(number, /*inside=*/false));
    if (!took && executor_.ConnectionOf(number) == nullptr) return Status::Ok();
  }
}

// Alternates between taking posted operations and completing operations of the network, until
// neither moves or all are done. Kernels ring for operations posted meanwhile.
Status GinQueues::DriveConnection(uint32_t number, RmaConnection& connection) {
  RmaConnection::Inside inside(connection);
  for (int round = 0; round < kRoundsInARow; ++round) {
    bool moved = false;
    for (bool took = true; took; moved |= took) {
      TUTTI_ASSIGN(took, Take(number, /*inside=*/true));
    }
    TUTTI_ASSIGN(const bool progressed, connection.Progress());
    TUTTI_TRY(Complete(number, connection, &moved));
    if (!queues_[number].busy() || !(moved || progressed)) break;
  }
  // A kernel's next operation comes soon. The progress thread also serves the rest.
  if (!queues_[number].busy()) inside.Linger();
  return Status::Ok();
}

// Takes the next descriptor if all its words have arrived and its operation has room. Returns
// whether a descriptor was taken. A caller outside the queue's connection takes no operation of the
// network. `inside` says that the caller is inside.
Result<bool> GinQueues::Take(uint32_t number, bool inside) {
  Queue& queue = queues_[number];
  const uint32_t slot = queue.taken & (depth_ - 1);
  GinDescriptor& descriptor = descriptors_[size_t{number} * depth_ + slot];
  GinWords words;
  if (!ReadDescriptor(descriptor.words, words)) return false;
  TUTTI_TRY(CheckVersion(words));
  const device::GinOperation operation = device::UnpackGin(words.data());
  const bool by_network = executor_.NeedsNetwork(number, operation);
  if (by_network && !inside && executor_.ConnectionOf(number) != nullptr) return false;
  // An operation of the processor comes behind the operations of the network.
  queue.blocked = !queue.flights.empty() && !by_network;
  if (queue.blocked) return false;
  TUTTI_ASSIGN(const GinExecutor::Begun begun,
               executor_.Begin({context_, number, slot}, operation));
  queue.blocked = begun.step == GinExecutor::Step::kNoRoom;
  if (queue.blocked) return false;
  ClearDescriptor(descriptor.words);
  ++queue.taken;
  const std::optional<uint32_t> counter = CounterOf(operation);
  if (begun.request == nullptr && queue.flights.empty())
    CountDone(number, counter);
  else
    queue.flights.push_back({begun.request, executor_.ConfirmsInTeam(number), counter});
  return true;
}

Result<bool> GinQueues::HasOldestEnded(Queue& queue, RmaConnection& connection, bool* moved) {
  Flight& flight = queue.flights.front();
  if (flight.request != nullptr) {
    TUTTI_ASSIGN(const bool done, connection.Test(*flight.request));
    if (!done) return false;
    flight.request = nullptr;
  }
  if (!flight.confirms || queue.flights.size() > 1) return true;
  TUTTI_ASSIGN(flight.request, connection.Flush());
  *moved = true;
  flight.confirms = flight.request == nullptr;
  return false;
}

// Counts the operations done at the front of the queue.
Status GinQueues::Complete(uint32_t number, RmaConnection& connection, bool* moved) {
  Queue& queue = queues_[number];
  while (!queue.flights.empty()) {
    TUTTI_ASSIGN(const bool ended, HasOldestEnded(queue, connection, moved));
    if (!ended) break;
    CountDone(number, queue.flights.front().counter);
    queue.flights.pop_front();
    *moved = true;
  }
  return Status::Ok();
}

void GinQueues::IncreaseCounter(const std::optional<uint32_t>& counter) {
  if (counter)
    std::atomic_ref<uint64_t>(*executor_.CounterOf(context_, *counter))
        .fetch_add(1, std::memory_order_release);
}

void GinQueues::CountDone(uint32_t number, const std::optional<uint32_t>& counter) {
  IncreaseCounter(counter);
  std::atomic_ref<uint32_t>(consumer_[number])
      .store(++queues_[number].done, std::memory_order_release);
}

void GinQueues::Drop() {
  const MutexLock lock(mutex_);
  broken_ = true;
  for (uint32_t number = 0; number < num_queues_; ++number) {
    if (queues_[number].flights.empty()) continue;
    executor_.ConnectionOf(number)->Break();
    queues_[number].flights.clear();
  }
  busy_.store(false, std::memory_order_release);
}

}  // namespace tutti
