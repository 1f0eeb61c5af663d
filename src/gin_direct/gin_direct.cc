#include "gin_direct/gin_direct.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/rounding.h"
#include "gin/host_calls.h"
#include "grid/grid.h"

namespace tutti {
namespace {

using device::mlx5::QueuePair;

constexpr size_t kPage = 4096;
// The sleep between two looks of Finish.
constexpr timespec kFinishNap{.tv_sec = 0, .tv_nsec = 100'000};

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

// Returns the meaning of a completion's syndrome, as InfiniBand names it.
const char* Meaning(uint8_t syndrome) {
  switch (syndrome) {
    case 0x01:
      return "an entry names more bytes than the card moves at a time";
    case 0x02:
      return "an entry makes no sense to the card";
    case 0x04:
      return "an entry names memory of this rank that is outside of the window, or in none";
    case 0x12:
      return "the other card takes the request for invalid";
    case 0x13:
      return "an entry names memory of that rank that is outside of the window, or in none";
    case 0x14:
      return "the other card could not carry it out";
    case 0x15:
      return "the other card does not answer";
    default:
      return "the card has stopped it";
  }
}
constexpr uint8_t kFlushed = 0x05;  // the syndrome of entries behind a failed entry

}  // namespace

// Holds the data that kernels read and write besides the entries.
struct GinDirect::Block {
  Block(GinHostCalls* calls, size_t num_contexts, size_t num_ranks)
      : handle(calls, num_contexts),
        main(num_contexts * num_ranks),
        companion(num_contexts * num_ranks),
        signal_keys(num_ranks),
        counter_keys(num_ranks),
        issued_gets(num_contexts * num_ranks),
        visible_gets(num_contexts * num_ranks) {}

  GinHandle<device::GdakiContext> handle;
  std::vector<QueuePair> main, companion;  // in the order of contexts
  std::vector<uint32_t> signal_keys, counter_keys;
  std::vector<uint64_t> issued_gets, visible_gets;
};

// Says where tables lie, each in whole pages, and on a GPU the rest ahead of them.
struct GinDirect::Layout {
  Layout(const GinPlan& plan, size_t num_ranks, bool on_gpu) {
    const auto contexts = static_cast<size_t>(plan.num_contexts);
    if (on_gpu) {
      // The word ahead of the contexts is null: kernels of a GPU call nobody (GinHostCalls).
      Take(sizeof(device::GdakiContext), kLine);
      contexts_at = Take(contexts * sizeof(device::GdakiContext), kLine);
      main_at = Take(contexts * num_ranks * sizeof(QueuePair), kLine);
      companion_at = Take(contexts * num_ranks * sizeof(QueuePair), kLine);
      signal_keys_at = Take(num_ranks * sizeof(uint32_t), kLine);
      counter_keys_at = Take(num_ranks * sizeof(uint32_t), kLine);
      issued_gets_at = Take(contexts * num_ranks * sizeof(uint64_t), kLine);
      visible_gets_at = Take(contexts * num_ranks * sizeof(uint64_t), kLine);
      bytes = RoundUp(bytes, kPage);
    }
    signals_at = Take(WordsOf(contexts, plan.num_signals), kPage);
    counters_at = Take(WordsOf(contexts, plan.num_counters), kPage);
    sink_at = Take(kPage, kPage);
  }
  // Returns the bytes of a table. An empty table has one word, because no card takes 0 bytes.
  static size_t WordsOf(size_t contexts, uint32_t words) {
    return std::max(contexts * words, size_t{1}) * sizeof(uint64_t);
  }

  size_t contexts_at = 0, main_at = 0, companion_at = 0, signal_keys_at = 0, counter_keys_at = 0,
         issued_gets_at = 0, visible_gets_at = 0;
  size_t signals_at = 0, counters_at = 0, sink_at = 0;
  size_t bytes = 0;

 private:
  static constexpr size_t kLine = 128;
  size_t Take(size_t size, size_t unit) {
    const size_t begin = bytes;
    bytes = RoundUp(bytes + size, unit);
    return begin;
  }
};

GinDirect::GinDirect(Parts parts)
    : parts_(std::move(parts)), num_contexts_(static_cast<size_t>(parts_.plan.num_contexts)) {}

// Makes the tables and then the queue pairs of this rank. No queue pair is joined yet.
Result<std::unique_ptr<GinDirect>> GinDirect::Create(Parts parts) {
  std::unique_ptr<GinDirect> made(new GinDirect(std::move(parts)));
  const auto ranks = static_cast<size_t>(made->parts_.num_ranks);
  made->block_ = std::make_unique<Block>(made.get(), made->num_contexts_, ranks);
  TUTTI_TRY(made->MakeTables());
  made->NumberQueues();
  const uint32_t depth = made->parts_.plan.queue_depth;
  if (made->parts_.gpu != nullptr) {
    TUTTI_ASSIGN(made->queues_, made->parts_.gpu->MakeQueues(made->num_queues_, depth));
  } else {
    TUTTI_ASSIGN(made->queues_, made->parts_.card->MakeQueues(made->num_queues_, depth, nullptr));
  }
  return made;
}

GinDirect::~GinDirect() {
  Retire();
  if (stream_ == nullptr) return;
  const cuda::Device& device = parts_.gpu->device();
  const cuda::ManagingScope scope(device.driver(), device.context());
  stream_.reset();
}

// Words that kernels wait for must not become visible ahead of earlier puts.
Result<std::unique_ptr<CardMemory>> GinDirect::Share(std::byte* at, size_t bytes) {
  if (parts_.gpu != nullptr) return parts_.gpu->Register({at, bytes}, 0, CardOrdering::kStrict);
  return parts_.card->Register({at, bytes}, 0, CardOrdering::kStrict);
}

Status GinDirect::MakeTables() {
  const GinPlan& plan = parts_.plan;
  const Layout layout(plan, static_cast<size_t>(parts_.num_ranks), parts_.gpu != nullptr);
  std::byte* memory = nullptr;
  if (parts_.gpu != nullptr) {
    TUTTI_ASSIGN(gpu_memory_,
                 cuda::MappedMemory::Create(parts_.gpu->device(), layout.bytes, nullptr));
    memory = gpu_memory_.data();
  } else {
    tables_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, layout.bytes)));
    if (!tables_) return SystemError("there is no memory for signals and counters");
    std::memset(tables_.get(), 0, layout.bytes);
    memory = tables_.get();
  }
  signals_ = reinterpret_cast<uint64_t*>(memory + layout.signals_at);
  counters_ = reinterpret_cast<uint64_t*>(memory + layout.counters_at);
  // The card may reach existing words only.
  TUTTI_ASSIGN(signal_memory_,
               Share(memory + layout.signals_at, Layout::WordsOf(num_contexts_, plan.num_signals)));
  TUTTI_ASSIGN(counter_memory_, Share(memory + layout.counters_at,
                                      Layout::WordsOf(num_contexts_, plan.num_counters)));
  TUTTI_ASSIGN(sink_memory_, Share(memory + layout.sink_at, sizeof(uint64_t)));
  return Status::Ok();
}

bool GinDirect::Joins(int peer) const {
  return parts_.plan.connection == NCCL_GIN_CONNECTION_FULL ||
         peer % parts_.team.size == parts_.team.place;
}

// Numbers queue pairs context by context and rank by rank. The order is equal on all ranks, and an
// offer needs no names.
void GinDirect::NumberQueues() {
  toward_.resize(num_contexts_ * static_cast<size_t>(parts_.num_ranks));
  for (size_t context = 0; context < num_contexts_; ++context)
    for (int peer = 0; peer < parts_.num_ranks; ++peer) {
      if (!Joins(peer)) continue;
      Toward& toward = At(context, peer);
      toward.main = num_queues_++;
      if (peer == parts_.rank) toward.answers = num_queues_++;
      if (parts_.plan.num_counters == 0) continue;
      toward.companion = num_queues_++;
      toward.companion_answers = num_queues_++;
    }
}

void GinDirect::Offer(std::span<std::byte> offer) const {
  const OfferHead head = {.end = parts_.card->end(), .signal_key = signal_memory_->remote_key()};
  std::memcpy(offer.data(), &head, sizeof(head));
  for (size_t i = 0; i < toward_.size(); ++i) {
    const uint32_t number = toward_[i].main == kNone ? 0 : queues_->NumberOf(toward_[i].main);
    std::memcpy(offer.data() + sizeof(head) + i * sizeof(number), &number, sizeof(number));
  }
}

// An offer has the sender's queue pair numbers toward all ranks, and this rank picks the number
// toward itself.
Status GinDirect::Join(const std::vector<std::span<const std::byte>>& offers) {
  const auto ranks = static_cast<size_t>(parts_.num_ranks);
  for (int peer = 0; peer < parts_.num_ranks; ++peer) {
    const std::span<const std::byte> offer = offers[static_cast<size_t>(peer)];
    OfferHead head;
    std::memcpy(&head, offer.data(), sizeof(head));
    block_->signal_keys[static_cast<size_t>(peer)] = head.signal_key;
    for (size_t context = 0; context < num_contexts_; ++context) {
      if (!Joins(peer)) continue;
      if (peer == parts_.rank) {
        TUTTI_TRY(JoinSelf(context, peer));
        continue;
      }
      uint32_t number = 0;
      const size_t mine = context * ranks + static_cast<size_t>(parts_.rank);
      std::memcpy(&number, offer.data() + sizeof(head) + mine * sizeof(number), sizeof(number));
      Status joined = queues_->Join(At(context, peer).main, head.end, number);
      if (!joined.ok()) return std::move(joined).Annotate("toward " + parts_.name_of(peer));
    }
  }
  std::fill(block_->counter_keys.begin(), block_->counter_keys.end(),
            counter_memory_->remote_key());
  for (size_t context = 0; context < num_contexts_; ++context) FillContext(context);
  if (parts_.gpu != nullptr) TUTTI_TRY(FillGpu());
  AskLater();
  return Status::Ok();
}

// Joins the queue pairs whose both ends are this rank's: the queue pair toward itself, and the
// companions.
Status GinDirect::JoinSelf(size_t context, int self) {
  const CardEnd& end = parts_.card->end();
  const auto join = [&](size_t one, size_t other) -> Status {
    TUTTI_TRY(queues_->Join(one, end, queues_->NumberOf(other)));
    return queues_->Join(other, end, queues_->NumberOf(one));
  };
  TUTTI_TRY(join(At(context, self).main, At(context, self).answers));
  for (int peer = 0; peer < parts_.num_ranks; ++peer)
    if (const Toward& toward = At(context, peer); toward.companion != kNone)
      TUTTI_TRY(join(toward.companion, toward.companion_answers));
  return Status::Ok();
}

// Writes the context of a kernel on the host. FillGpu replaces the addresses for kernels of a GPU.
void GinDirect::FillContext(size_t context) {
  const size_t first = context * static_cast<size_t>(parts_.num_ranks);
  for (int peer = 0; peer < parts_.num_ranks; ++peer) {
    const Toward& toward = At(context, peer);
    const size_t at = first + static_cast<size_t>(peer);
    if (toward.main != kNone) block_->main[at] = queues_->Export(toward.main);
    if (toward.companion != kNone) block_->companion[at] = queues_->Export(toward.companion);
  }
  const auto number = static_cast<uint32_t>(context);
  device::GdakiContext& made = block_->handle.context(context);
  made = {};
  made.gdqp = &block_->main[first];
  made.companion_gdqp = &block_->companion[first];
  made.signals_table = {signals_, block_->signal_keys.data(), signal_memory_->local_key(),
                        number * parts_.plan.num_signals};
  made.counters_table = {counters_, block_->counter_keys.data(), counter_memory_->local_key(),
                         number * parts_.plan.num_counters};
  made.sink_buffer_lkey = sink_memory_->local_key();
  made.last_issued_get = &block_->issued_gets[first];
  made.last_visible_get = &block_->visible_gets[first];
}

// Copies the data that kernels read to the GPU, with addresses for the GPU.
Status GinDirect::FillGpu() {
  const auto ranks = static_cast<size_t>(parts_.num_ranks);
  const Layout layout(parts_.plan, ranks, /*on_gpu=*/true);
  std::vector<std::byte> image(layout.signals_at);
  const auto put = [&](size_t at, const auto& value) {
    std::memcpy(image.data() + at, &value, sizeof(value));
  };
  const auto on_gpu = [&]<typename T>(size_t at, size_t number, T*& pointer) {
    pointer = reinterpret_cast<T*>(gpu_memory_.data() + at) + number;
  };
  for (size_t context = 0; context < num_contexts_; ++context) {
    const size_t first = context * ranks;
    device::GdakiContext made = block_->handle.context(context);
    on_gpu(layout.main_at, first, made.gdqp);
    on_gpu(layout.companion_at, first, made.companion_gdqp);
    on_gpu(layout.signal_keys_at, 0, made.signals_table.rkeys);
    on_gpu(layout.counter_keys_at, 0, made.counters_table.rkeys);
    on_gpu(layout.issued_gets_at, first, made.last_issued_get);
    on_gpu(layout.visible_gets_at, first, made.last_visible_get);
    put(layout.contexts_at + context * sizeof(made), made);
  }
  for (size_t i = 0; i < toward_.size(); ++i) {
    put(layout.main_at + i * sizeof(QueuePair), block_->main[i]);
    put(layout.companion_at + i * sizeof(QueuePair), block_->companion[i]);
  }
  for (size_t peer = 0; peer < ranks; ++peer) {
    put(layout.signal_keys_at + peer * sizeof(uint32_t), block_->signal_keys[peer]);
    put(layout.counter_keys_at + peer * sizeof(uint32_t), block_->counter_keys[peer]);
  }
  const cuda::Device& device = parts_.gpu->device();
  const cuda::ManagingScope scope(device.driver(), device.context());
  TUTTI_ASSIGN(cuda::OwnStream stream, cuda::OwnStream::Create(device));
  stream_ = std::make_unique<cuda::OwnStream>(std::move(stream));
  TUTTI_TRY(stream_->CopyIn(gpu_memory_.address(), image.data(), image.size()));
  // CUDA prepares copies from the GPU at the first copy, and must not do so while kernels wait.
  return ReadTold().status();
}

// Kernels count the entries that they have told the card of (`rung`). A GPU's counts are copied,
// because the host does not map the memory of the GPU.
Result<GinDirect::Told> GinDirect::ReadTold() const {
  Told told;
  const auto note = [](const std::vector<QueuePair>& pairs, std::vector<uint64_t>& into) {
    for (const QueuePair& pair : pairs) into.push_back(Load(pair.rung));
  };
  if (parts_.gpu == nullptr) {
    note(block_->main, told.main);
    note(block_->companion, told.companion);
    return told;
  }
  const Layout layout(parts_.plan, static_cast<size_t>(parts_.num_ranks), /*on_gpu=*/true);
  const cuda::Device& device = parts_.gpu->device();
  const cuda::ManagingScope scope(device.driver(), device.context());
  std::vector<QueuePair> pairs(toward_.size());
  const auto read = [&](size_t at) {
    return stream_->CopyOut(pairs.data(), gpu_memory_.address() + at,
                            pairs.size() * sizeof(QueuePair));
  };
  TUTTI_TRY(read(layout.main_at));
  note(pairs, told.main);
  TUTTI_TRY(read(layout.companion_at));
  note(pairs, told.companion);
  return told;
}

void* GinDirect::handle() const {
  if (parts_.gpu == nullptr) return block_->handle.get();
  const Layout layout(parts_.plan, static_cast<size_t>(parts_.num_ranks), /*on_gpu=*/true);
  return gpu_memory_.data() + layout.contexts_at;
}

// -------------------------------------------------------------------------------------------------
// While kernels run

Status GinDirect::Finish(Deadline deadline) {
  // Nothing remains to wait for after a failure of CUDA.
  TUTTI_ASSIGN(const Told told, ReadTold());
  std::vector<std::pair<size_t, uint64_t>> left;  // queue pairs, and the last entry of each
  for (size_t i = 0; i < toward_.size(); ++i) {
    if (told.main[i] > 0) left.emplace_back(toward_[i].main, told.main[i] - 1);
    if (told.companion[i] > 0) left.emplace_back(toward_[i].companion, told.companion[i] - 1);
  }
  while (true) {
    while (!left.empty()) {
      TUTTI_ASSIGN(const bool done, IsDone(left.back().first, left.back().second));
      if (!done) break;
      left.pop_back();
    }
    if (left.empty() || parts_.watch->stopped()) return Status::Ok();
    TUTTI_TRY(FindFailure(told));
    if (deadline.Passed()) return Timeout("other ranks do not take what kernels have put");
    nanosleep(&kFinishNap, nullptr);
  }
}

// Returns whether an entry has its completion.
Result<bool> GinDirect::IsDone(size_t queue, uint64_t index) const {
  TUTTI_ASSIGN(const CardCompletion seen, queues_->Completion(queue, index));
  const uint32_t owner = (index & parts_.plan.queue_depth) != 0 ? 1 : 0;
  return device::mlx5::OwnerOf(seen.word) == owner &&
         device::mlx5::OpcodeOf(seen.word) != device::mlx5::kInvalid;
}

GinProxy* GinDirect::AsProxy() {
  Refuse(InvalidUsage(
      "the kernel was compiled with NCCL_GIN_GDAKI_ENABLE=0, and kernels of this communicator "
      "drive "
      "network cards themselves: compile it with 1, or set NCCL_GIN_TYPE=2 to have the proxy"));
  return nullptr;
}

void GinDirect::Wait(uint32_t, uint32_t round) {
  StopIfAlone(*parts_.watch, round);
  PauseInGrid(round);
}

void GinDirect::NoteMissing(bool is_signal, uint32_t number) {
  Refuse(NoSuchGinWord(parts_.plan, is_signal, number));
}

void GinDirect::NoteUnreached(int rank) {
  Refuse(InvalidArgument("{} is not on the rail that the device communicator joins",
                         parts_.name_of(rank)));
}

// Stops the communicator for an impossible operation, with the name of the kernel's thread.
void GinDirect::Refuse(Status failure) {
  parts_.watch->Stop(
      NameKernelThread(std::move(failure)).Annotate("a kernel's operation on the network"),
      /*tell=*/true);
}

void GinDirect::NoteFailed() {
  if (parts_.watch->stopped()) return;
  const Result<Told> told = ReadTold();
  if (!told.ok()) return;  // The failure is CUDA's and not the network's.
  const Status failure = FindFailure(*told);
  if (!failure.ok()) parts_.watch->Stop(failure, /*tell=*/true);
}

// Returns the syndrome of the entry that stopped a queue pair; kFlushed if the entry is no longer
// visible.
uint8_t GinDirect::SyndromeOf(size_t queue) const {
  for (uint64_t i = 0; i < parts_.plan.queue_depth; ++i) {
    const Result<CardCompletion> seen = queues_->Completion(queue, i);
    if (seen.ok() && device::mlx5::OpcodeOf(seen->word) == device::mlx5::kRequesterError &&
        seen->syndrome != kFlushed)
      return seen->syndrome;
  }
  return kFlushed;
}

// Returns why a used queue pair has stopped; ok if the queue pair works.
Status GinDirect::StateOf(size_t queue, int peer) const {
  TUTTI_ASSIGN(const bool stopped, queues_->HasStopped(queue));
  if (!stopped) return Status::Ok();
  const uint8_t syndrome = SyndromeOf(queue);
  return RemoteError(
      "a kernel's operation on the network: {} has stopped the queue pair toward {}: {} (syndrome "
      "{:#04x})",
      parts_.card->name(), parts_.name_of(peer), Meaning(syndrome), syndrome);
}

Status GinDirect::FindFailure(const Told& told) const {
  for (size_t context = 0; context < num_contexts_; ++context)
    for (int peer = 0; peer < parts_.num_ranks; ++peer) {
      const size_t at = context * static_cast<size_t>(parts_.num_ranks) + static_cast<size_t>(peer);
      if (told.main[at] > 0) TUTTI_TRY(StateOf(toward_[at].main, peer));
      if (told.companion[at] > 0) TUTTI_TRY(StateOf(toward_[at].companion, peer));
    }
  return Status::Ok();
}

// Asks the card on the progress thread, again and again.
void GinDirect::AskLater() {
  const MutexLock lock(mutex_);
  if (retired_ || parts_.query_ns == 0) return;
  timer_ = parts_.loop->AddTimer(parts_.query_ns, [this] {
    NoteFailed();
    if (!parts_.watch->stopped()) AskLater();
  });
}

void GinDirect::Retire() {
  parts_.loop->RunSync([this] {
    const MutexLock lock(mutex_);
    retired_ = true;
    if (timer_ != 0) parts_.loop->CancelTimer(timer_);
    timer_ = 0;
  });
}

}  // namespace tutti
