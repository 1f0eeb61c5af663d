#include "gin/device_proxy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "gin/descriptor_slots.h"
#include "gin/old_forms.h"
#include "sys/thread.h"

namespace tutti {
namespace {

using device::GinOperation;

// A kernel's next operation often comes within 2 ms, and then its thread is awake. The thread finds
// later operations after a nap, which is longer after an idle second.
constexpr WaitPolicy kPolicy = {.spin_ns = 50'000, .yield_ns = 2'000'000};
constexpr std::chrono::microseconds kNap{20}, kLongNap{1000};
constexpr int64_t kShortNapsNs = 1'000'000'000;
// How often a wait for the end of the thread looks at the clock.
constexpr int kLookAgainMs = 1000;
// The most descriptors that the thread takes from one queue before the next queue has its turn.
constexpr int kTakenInARow = 32;

// The operands of kernels' operations are found by a plan whose signals, counters and values lie in
// pinned memory of the host instead of the resource window.
GinPlan PlanOnHost(GinPlan plan, const GinHostLayout& layout) {
  // The proxies of GPUs add by processors, whatever network has brought a signal.
  plan.signals_at = plan.network_signals_at = layout.signals_at;
  plan.counters_at = layout.counters_at;
  plan.values_at = layout.values_at;
  return plan;
}

}  // namespace

GinDeviceProxy::GinDeviceProxy(Parts parts, GinPlan host_plan)
    : parts_(std::move(parts)),
      layout_(parts_.plan, parts_.host->team),
      block_layout_(parts_.plan),
      operands_({.rank = parts_.rank,
                 .plan = std::move(host_plan),
                 .resource = parts_.host,
                 .symmetric = parts_.symmetric}) {}

Result<std::unique_ptr<GinDeviceProxy>> GinDeviceProxy::Create(Parts parts) {
  GinPlan host_plan = PlanOnHost(parts.plan, GinHostLayout(parts.plan, parts.host->team));
  std::unique_ptr<GinDeviceProxy> proxy(new GinDeviceProxy(std::move(parts), std::move(host_plan)));
  TUTTI_TRY(proxy->Prepare());
  return proxy;
}

// Reserves pinned memory, memory of the GPU, and streams, and makes the mailboxes and queues. All
// calls of CUDA that may wait for kernels come here, before any kernel of the device communicator
// runs.
Status GinDeviceProxy::Prepare() {
  const cuda::Device& device = *parts_.device;
  TUTTI_ASSIGN(pinned_, cuda::PinnedRange::Pin(device, parts_.host->own));
  TUTTI_ASSIGN(block_, cuda::MappedMemory::Create(device, block_layout_.bytes, nullptr));
  const cuda::ManagingScope scope(device.driver(), device.context());
  for (std::optional<GinCopyLine>* const line : {&local_, &out_, &in_}) {
    TUTTI_ASSIGN(GinCopyLine made, GinCopyLine::Create(device));
    line->emplace(std::move(made));
  }
  TUTTI_ASSIGN(cuda::OwnStream stream, cuda::OwnStream::Create(device));
  word_stream_.emplace(std::move(stream));
  TUTTI_TRY(WriteContexts(*word_stream_));
  TUTTI_TRY(WarmUp());
  MakeMails();
  for (uint32_t i = 0; i < static_cast<uint32_t>(parts_.plan.num_contexts); ++i) {
    for (uint32_t number = 0; number < parts_.plan.num_queues; ++number) {
      Queue& queue = queues_.emplace_back();
      queue.context = i;
      queue.number = number;
      queue.peer = operands_.PeerOf(number);
      for (GinMail& mail : mails_)
        if (mail.peer() == queue.peer) queue.mail = &mail;
    }
  }
  return Status::Ok();
}

// Writes the contexts for kernels into memory of the GPU, once: the addresses of queues, indices,
// counters and signals.
Status GinDeviceProxy::WriteContexts(const cuda::OwnStream& stream) {
  const GinPlan& plan = parts_.plan;
  std::vector<device::GinContext> contexts;
  for (size_t i = 0; i < static_cast<size_t>(plan.num_contexts); ++i) {
    const size_t first = i * plan.num_queues;
    const auto on_gpu = [&](size_t at, size_t number) {
      return reinterpret_cast<uint32_t*>(block_.data() + at) + number;
    };
    device::GinContext context = {};
    context.nranks = static_cast<int>(plan.num_queues);
    context.queueSize = plan.queue_depth;
    context.queues = reinterpret_cast<device::GinDescriptor*>(PinnedAt(layout_.descriptors_at) +
                                                              first * plan.queue_depth *
                                                                  GinDescriptorBytes(plan.form));
    context.pis = on_gpu(block_layout_.producers_at, first);
    context.cis = reinterpret_cast<uint32_t*>(PinnedAt(layout_.consumers_at)) + first;
    context.counters =
        reinterpret_cast<uint64_t*>(PinnedAt(layout_.counters_at)) + i * plan.num_counters;
    context.signals =
        reinterpret_cast<uint64_t*>(PinnedAt(layout_.signals_at)) + i * plan.num_signals;
    context.signalOffsets =
        reinterpret_cast<uint64_t*>(block_.data() + block_layout_.resets_at) + i * plan.num_signals;
    context.lastIssuedGet = on_gpu(block_layout_.issued_gets_at, first);
    context.lastVisibleGet = on_gpu(block_layout_.visible_gets_at, first);
    contexts.push_back(context);
  }
  const cuda::DeviceAddress to = block_.address() + block_layout_.contexts_at;
  if (plan.form == GinForm::kToday) {
    std::vector<ncclGinGdakiGPUContext> records;
    for (const device::GinContext& context : contexts) records.push_back(RecordOf(context));
    const size_t bytes = contexts.size() * sizeof(device::GinContext);
    TUTTI_TRY(stream.CopyIn(to, contexts.data(), bytes));
    return stream.CopyIn(to + bytes, records.data(),
                         records.size() * sizeof(ncclGinGdakiGPUContext));
  }
  std::vector<GinContextBefore230> old;
  for (const device::GinContext& c : contexts)
    old.push_back({c.nranks, c.queueSize, c.queues, c.pis, c.cis, c.counters, c.signals});
  return stream.CopyIn(to, old.data(), old.size() * sizeof(GinContextBefore230));
}

// Makes each kind of copy once before any kernel runs. The driver may load its copy code at the
// first copy, and may then wait for kernels that wait for this very copy.
Status GinDeviceProxy::WarmUp() {
  std::byte* const scratch = block_.data() + block_layout_.scratch_at;
  std::byte* const host = parts_.host->own.data() + layout_.scratch_at;
  constexpr size_t kHalf = GinBlockLayout::kScratchBytes / 2;
  constexpr std::array<size_t, 2> kShort = {1, sizeof(uint64_t)};
  for (const size_t bytes : kShort) TUTTI_TRY(local_->In(scratch, host, bytes).status());
  for (const size_t bytes : kShort)
    TUTTI_TRY(local_->Between(scratch + kHalf, scratch, bytes).status());
  TUTTI_TRY(local_->Between(scratch + kHalf, scratch, kHalf).status());
  for (const size_t bytes : {kShort[0], kShort[1], kHalf})
    TUTTI_TRY(local_->Within(scratch + kHalf, scratch, bytes, Stage()).status());
  TUTTI_TRY(local_->Finish());
  for (const size_t bytes : kShort) TUTTI_TRY(in_->In(scratch, host, bytes).status());
  TUTTI_TRY(in_->Finish());
  for (const size_t bytes : kShort) TUTTI_TRY(out_->Out(host, scratch, bytes).status());
  return out_->Finish();
}

// Makes a mailbox for each rank outside the LSA team. Both ends compute the places of a mailbox
// from the ranks alone, and exchange nothing.
void GinDeviceProxy::MakeMails() {
  const LsaTeam& team = operands_.team();
  const GinPlan& plan = parts_.plan;
  for (uint32_t number = 0; number < plan.num_queues; ++number) {
    const int peer = operands_.PeerOf(number);
    if (team.Has(peer)) continue;
    const LsaTeam theirs = LsaTeamOf(peer, team.size);
    mails_.emplace_back(GinMail::Parts{
        .peer = peer,
        .layout = layout_.mail,
        .window = parts_.host.get(),
        .own_at = layout_.MailAt(GinHostLayout::MailNumber(plan, peer, team.first, team.size)),
        .peer_at =
            layout_.MailAt(GinHostLayout::MailNumber(plan, parts_.rank, theirs.first, team.size)),
        .remote = parts_.remote,
        .symmetric = parts_.symmetric,
        .rank = parts_.rank,
        .line_out = &*out_,
        .line_in = &*in_,
        .add_to_signal = [this, &plan](uint64_t number_of_all, uint64_t added) -> Status {
          if (number_of_all >=
              uint64_t{plan.num_signals} * static_cast<uint64_t>(plan.num_contexts))
            return InvalidArgument("there is no signal {}", number_of_all);
          std::atomic_ref<uint64_t>(operands_.SignalsOf(0)[number_of_all])
              .fetch_add(added, std::memory_order_release);
          return Status::Ok();
        },
        .add_to_word = [this](std::byte* word,
                              uint64_t added) { return AddToWord(word, added, parts_.rank); }});
  }
}

Status GinDeviceProxy::Start() {
  TUTTI_ASSIGN(thread_, StartThread("tutti-gin", [this] { Run(); }));
  return Status::Ok();
}

GinDeviceProxy::~GinDeviceProxy() {
  EndThread();
  const cuda::ManagingScope scope(parts_.device->driver(), parts_.device->context());
  for (GinMail& mail : mails_) mail.Drop();
  mails_.clear();
  local_.reset();
  out_.reset();
  in_.reset();
  word_stream_.reset();
}

void GinDeviceProxy::EndThread() {
  ending_.store(Ending::kNow, std::memory_order_release);
  if (thread_.joinable()) thread_.join();
  const cuda::ManagingScope scope(parts_.device->driver(), parts_.device->context());
  // Where CUDA has failed no copy runs any more.
  for (std::optional<GinCopyLine>* const line : {&local_, &out_, &in_})
    if (line->has_value()) static_cast<void>((*line)->Finish());
}

// The thread ends by itself once all operations are done. A proxy without a thread has nothing to
// wait for.
Status GinDeviceProxy::Finish(Deadline deadline) {
  if (!thread_.joinable()) return Status::Ok();
  Status finished;
  ending_.store(Ending::kWhenIdle, std::memory_order_release);
  {
    MutexLock lock(mutex_);
    while (!ended_ && !deadline.Passed())
      changed_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(kLookAgainMs)));
    if (!ended_) finished = Timeout("other ranks do not take what kernels have put");
  }
  EndThread();
  return finished;
}

bool GinDeviceProxy::IsForgotten() {
  return std::all_of(mails_.begin(), mails_.end(),
                     [](GinMail& mail) { return mail.PeerHasClosed() && mail.Settle(); });
}

// ---------------------------------------------------------------------------------------------------------------------
// The thread

void GinDeviceProxy::Run() {
  {
    const cuda::ManagingScope scope(parts_.device->driver(), parts_.device->context());
    Status served = Serve();
    if (!served.ok()) Fail(std::move(served));
  }
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

// Other ranks may still be agreeing on the reason for a broken connection. The thread waits for the
// reason, because it has nothing else to do.
void GinDeviceProxy::Fail(Status failure) {
  failure = std::move(failure).Annotate("a kernel's operation on the network");
  const bool of_network =
      failure.code() == Code::kRemoteError || failure.code() == Code::kSystemError;
  if (of_network) failure = parts_.watch->FirstReason(std::move(failure));
  parts_.watch->Stop(failure, /*tell=*/true);
}

Status GinDeviceProxy::Serve() {
  std::optional<Backoff> backoff(kPolicy);
  int64_t naps_since_ns = 0;
  bool long_naps = false;
  while (!parts_.watch->stopped()) {
    // The thread asks before the round. The round then finds all operations that kernels posted
    // before the end was asked for.
    const Ending asked = ending();
    if (asked == Ending::kNow) break;
    // The progress thread attends to the network during long naps of this thread.
    TUTTI_ASSIGN(const bool moved, Round(!long_naps));
    if (!moved && asked == Ending::kWhenIdle && Idle()) {
      TUTTI_ASSIGN(const bool closed, CloseMails());
      if (closed) break;
    }
    if (moved) {
      backoff.emplace(kPolicy);
      naps_since_ns = 0;
      long_naps = false;
    } else if (!backoff->Pause()) {
      if (naps_since_ns == 0) naps_since_ns = NowNs();
      const bool copying = local_->busy() || in_->busy() || out_->busy();
      long_naps = !copying && NowNs() - naps_since_ns > kShortNapsNs;
      if (copying)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(long_naps ? kLongNap : kNap);
    }
  }
  return Status::Ok();
}

// Drives all queues as far as possible without a wait. Returns whether anything moved.
Result<bool> GinDeviceProxy::Round(bool attend) {
  bool moved = false;
  for (Queue& queue : queues_) {
    for (int i = 0; i < kTakenInARow; ++i) {
      TUTTI_ASSIGN(const bool took, Take(queue));
      if (!took) break;
      moved = true;
    }
  }
  TUTTI_TRY(local_->Seal());
  TUTTI_ASSIGN(const bool mailed, MoveMails(attend));
  moved |= mailed;
  for (Queue& queue : queues_) {
    TUTTI_ASSIGN(const bool completed, Complete(queue));
    moved |= completed;
  }
  return moved;
}

// Moves the data of all mailboxes. One event behind the copies of a round serves all of them.
Result<bool> GinDeviceProxy::MoveMails(bool attend) {
  bool moved = false;
  for (GinMail& mail : mails_) {
    Result<bool> mail_moved = mail.Move(attend);
    if (mail_moved.ok()) {
      moved |= *mail_moved;
      continue;
    }
    TUTTI_TRY(OnFailure(mail, std::move(mail_moved).status()));
  }
  TUTTI_TRY(out_->Seal());
  TUTTI_TRY(in_->Seal());
  return moved;
}

// Notes that a rank is gone if its connection is broken because the rank has ended its communicator
// in order, with all its operations done. Returns every other failure.
Status GinDeviceProxy::OnFailure(GinMail& mail, Status failure) {
  if (failure.code() != Code::kRemoteError && failure.code() != Code::kSystemError) return failure;
  failure = parts_.watch->FirstReason(std::move(failure), mail.peer());
  if (parts_.watch->stopped() || !parts_.watch->HasLeft(mail.peer())) return failure;
  mail.NoteGone();
  return Status::Ok();
}

// Takes the next descriptor of a queue if all its words have arrived. Returns whether a descriptor
// was taken.
Result<bool> GinDeviceProxy::Take(Queue& queue) {
  const uint32_t depth = parts_.plan.queue_depth;
  const uint32_t slot = queue.taken & (depth - 1);
  const size_t ring = size_t{queue.context} * parts_.plan.num_queues + queue.number;
  const GinForm form = parts_.plan.form;
  auto* const descriptor =
      reinterpret_cast<uint64_t*>(parts_.host->own.data() + layout_.descriptors_at +
                                  (ring * depth + slot) * GinDescriptorBytes(form));
  GinWords words;
  if (!ReadDescriptor(descriptor, words)) return false;
  if (form == GinForm::kToday) TUTTI_TRY(CheckVersion(words));
  const GinOperation operation = form == GinForm::kToday ? device::UnpackGin(words.data())
                                                         : UnpackGinBefore230(form, words.data());
  TUTTI_TRY(Begin(queue, {queue.context, queue.number, slot}, operation));
  ClearDescriptor(descriptor);
  ++queue.taken;
  return true;
}

Status GinDeviceProxy::Begin(Queue& queue, const GinOperands::Position& at,
                             const GinOperation& operation) {
  TUTTI_ASSIGN(const Reached reached, operands_.Find(at, operation));
  Flight& flight = queue.flights.emplace_back();
  if (Has(operation, device::kGinWithCounter)) flight.counter = operation.counter;
  // A flush is done at its turn, because all earlier operations are then done and visible here.
  if (Has(operation, device::kGinFlush)) return Status::Ok();
  if (queue.mail == nullptr) return BeginInTeam(at, operation, reached, queue.peer, flight);
  BeginByMail(operation, reached, *queue.mail, flight);
  return Status::Ok();
}

Status GinDeviceProxy::BeginInTeam(const GinOperands::Position& at, const GinOperation& operation,
                                   const Reached& reached, int peer, Flight& flight) {
  const int from_rank = Has(operation, device::kGinGet) ? peer : parts_.rank;
  const int to_rank = Has(operation, device::kGinGet) ? parts_.rank : peer;
  if (operation.bytes > 0 && reached.to.window != nullptr) {
    std::byte* const to = operands_.Local(reached.to, to_rank);
    if (reached.from.window != nullptr) {
      const std::byte* const from = operands_.Local(reached.from, from_rank);
      TUTTI_ASSIGN(flight.copied_at, peer == parts_.rank
                                         ? local_->Within(to, from, operation.bytes, Stage())
                                         : local_->Between(to, from, operation.bytes));
    } else {
      const GinOperands::Range value = operands_.ValueOf(at);
      std::byte* const kept = parts_.host->own.data() + value.offset;
      std::memcpy(kept, &operation.value, sizeof(operation.value));
      TUTTI_ASSIGN(flight.copied_at, local_->In(to, kept, operation.bytes));
    }
  }
  if (reached.word.window == nullptr) return Status::Ok();
  flight.word_is_on_gpu = Has(operation, device::kGinVaSignal);
  // All threads of this host add to a rank's own signals at one address.
  flight.word = !flight.word_is_on_gpu && peer == parts_.rank
                    ? parts_.host->own.data() + reached.word.offset
                    : operands_.Local(reached.word, peer);
  flight.added = operation.added;
  return Status::Ok();
}

void GinDeviceProxy::BeginByMail(const GinOperation& operation, const Reached& reached,
                                 GinMail& mail, Flight& flight) {
  const auto in_slice = [](const GinOperands::Range& range) {
    return range.window->slice_offset + range.offset;
  };
  GinMail::Order order;
  order.bytes = reached.to.window != nullptr ? operation.bytes : 0;
  if (reached.to.window != nullptr) order.to_at = in_slice(reached.to);
  if (Has(operation, device::kGinGet)) {
    order.kind = GinMail::Order::Kind::kGet;
    order.from_at = in_slice(reached.from);
  } else if (Has(operation, device::kGinWithValue) && order.bytes > 0) {
    order.kind = GinMail::Order::Kind::kValue;
    order.value = operation.value;
  } else if (reached.from.window != nullptr) {
    order.from = operands_.Local(reached.from, parts_.rank);
  }
  if (reached.word.window != nullptr) {
    const bool in_window = Has(operation, device::kGinVaSignal);
    order.signal = in_window ? GinMail::Signal::kWord : GinMail::Signal::kNumbered;
    order.signal_at = in_window ? in_slice(reached.word)
                                : (reached.word.offset - layout_.signals_at) / sizeof(uint64_t);
    order.added = operation.added;
  }
  flight.done = false;
  order.done = &flight.done;
  mail.Send(order);
}

// Counts the operations done at the front of the queue.
Result<bool> GinDeviceProxy::Complete(Queue& queue) {
  bool moved = false;
  while (!queue.flights.empty()) {
    const Flight& oldest = queue.flights.front();
    if (!oldest.done) break;
    if (oldest.copied_at > 0) {
      TUTTI_ASSIGN(const uint64_t reached, local_->reached());
      if (oldest.copied_at > reached) break;
    }
    if (oldest.word != nullptr && oldest.word_is_on_gpu) {
      TUTTI_TRY(AddToWord(oldest.word, oldest.added, queue.peer));
    } else if (oldest.word != nullptr) {
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(oldest.word))
          .fetch_add(oldest.added, std::memory_order_release);
    }
    if (oldest.counter)
      std::atomic_ref<uint64_t>(*operands_.CounterOf(queue.context, *oldest.counter))
          .fetch_add(1, std::memory_order_release);
    queue.flights.pop_front();
    auto* const consumers =
        reinterpret_cast<uint32_t*>(parts_.host->own.data() + layout_.consumers_at);
    const size_t ring = size_t{queue.context} * parts_.plan.num_queues + queue.number;
    std::atomic_ref<uint32_t>(consumers[ring]).store(++queue.done, std::memory_order_release);
    moved = true;
  }
  return moved;
}

// Adds to a word in the memory of a GPU, where only copies reach. All proxies that add to words of
// `owner` are of ranks of this host. The word stays unchanged if another proxy keeps the lock until
// this proxy has to end.
Status GinDeviceProxy::AddToWord(std::byte* word, uint64_t added, int owner) {
  const int place = owner - operands_.team().first;
  const std::atomic_ref<uint64_t> lock(*reinterpret_cast<uint64_t*>(parts_.locks->At(place, 0)));
  while (lock.exchange(1, std::memory_order_acquire) != 0) {
    if (parts_.watch->stopped() || ending() == Ending::kNow) return Status::Ok();
    std::this_thread::yield();
  }
  std::byte* const scratch = parts_.host->own.data() + layout_.scratch_at;
  const auto address = cuda::AddressOf(word);
  uint64_t value = 0;
  Status status = word_stream_->CopyOut(scratch, address, sizeof(value));
  std::memcpy(&value, scratch, sizeof(value));
  value += added;
  std::memcpy(scratch, &value, sizeof(value));
  if (status.ok()) status = word_stream_->CopyIn(address, scratch, sizeof(value));
  lock.store(0, std::memory_order_release);
  return status;
}

bool GinDeviceProxy::Idle() const {
  return std::all_of(mails_.begin(), mails_.end(),
                     [](const GinMail& mail) { return mail.idle(); }) &&
         std::all_of(queues_.begin(), queues_.end(),
                     [](const Queue& queue) { return queue.flights.empty(); });
}

// Returns whether all peers have been told of the end, or are gone.
Result<bool> GinDeviceProxy::CloseMails() {
  bool closed = true;
  for (GinMail& mail : mails_) {
    Result<bool> mail_closed = mail.Close();
    if (mail_closed.ok()) {
      closed &= *mail_closed;
      continue;
    }
    TUTTI_TRY(OnFailure(mail, std::move(mail_closed).status()));
  }
  return closed;
}

}  // namespace tutti
