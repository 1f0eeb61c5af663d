#include "gin_direct/mlx5/queues.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/rounding.h"

namespace tutti {
namespace {

constexpr size_t kPage = 4096;
// Asks for an exclusive doorbell register; older libmlx5 have no name for the flag.
constexpr uint32_t kNotCachedDedicated = uint32_t{1} << 31;
// The last byte of a completion entry that the card has never written: invalid, with the owner of
// no first round.
constexpr uint8_t kNeverWritten = device::mlx5::kInvalid << 4 | 1;

}  // namespace

Mlx5QueueLayout::Mlx5QueueLayout(size_t count, uint32_t depth)
    : count_(count),
      depth_(depth),
      ring_bytes_(RoundUp(depth * device::mlx5::kEntryBytes, kPage)) {}

size_t Mlx5QueueLayout::bytes() const { return RoundUp(CompletionsRecordAt(count_), kPage); }

void Mlx5QueueLayout::Fill(std::byte* memory) const {
  for (size_t i = 0; i < count_; ++i)
    for (size_t entry = 1; entry <= depth_; ++entry)
      memory[CompletionsAt(i) + entry * device::mlx5::kEntryBytes - 1] = std::byte{kNeverWritten};
}

Result<std::unique_ptr<Mlx5QueueMemory>> Mlx5QueueMemory::Register(const Mlx5Card& card,
                                                                   std::span<std::byte> memory,
                                                                   int dmabuf, uint64_t offset) {
  Mlx5UmemIn in;
  in.addr = memory.data();
  in.size = memory.size();
  in.access = IBV_ACCESS_LOCAL_WRITE;
  // Objects begin at any of these pages. Otherwise the card may choose longer pages, and objects
  // may lie only at the beginning of a page.
  in.pgsz_bitmap = kPage;
  if (dmabuf >= 0) {
    in.addr = reinterpret_cast<void*>(offset);
    in.comp_mask = kMlx5UmemOfDmabuf;
    in.dmabuf_fd = dmabuf;
  }
  errno = 0;
  mlx5dv_devx_umem* const umem = card.mlx5().umem_reg(&card.context(), &in);
  if (!umem) return card.Refusal(errno, "giving it memory for queue pairs failed");
  return std::unique_ptr<Mlx5QueueMemory>(new Mlx5QueueMemory(card, memory, umem));
}

Result<std::unique_ptr<Mlx5QueueMemory>> Mlx5QueueMemory::Allocate(
    const Mlx5Card& card, const std::vector<std::byte>& image) {
  std::unique_ptr<std::byte, Free> own(
      static_cast<std::byte*>(std::aligned_alloc(kPage, image.size())));
  if (!own) return SystemError("there is no memory for queue pairs");
  std::memcpy(own.get(), image.data(), image.size());
  TUTTI_ASSIGN(std::unique_ptr<Mlx5QueueMemory> made,
               Register(card, {own.get(), image.size()}, /*dmabuf=*/-1, 0));
  made->own_ = std::move(own);
  return made;
}

Mlx5QueueMemory::~Mlx5QueueMemory() { card_.mlx5().umem_dereg(umem_); }

Mlx5Queues::Mlx5Queues(const Mlx5Card& card, size_t count, uint32_t depth,
                       std::unique_ptr<Mlx5QueueMemory> memory)
    : card_(card),
      depth_(depth),
      layout_(count, depth),
      memory_(std::move(memory)),
      queues_(count) {}

Result<std::unique_ptr<Mlx5Queues>> Mlx5Queues::Create(const Mlx5Card& card, size_t count,
                                                       uint32_t depth,
                                                       std::unique_ptr<Mlx5QueueMemory> memory) {
  std::unique_ptr<Mlx5Queues> made(new Mlx5Queues(card, count, depth, std::move(memory)));
  for (size_t i = 0; i < count; ++i) TUTTI_TRY(made->MakePair(i));
  return made;
}

std::span<std::byte> Mlx5Queues::RegisterPage(size_t queue) const {
  const auto at = reinterpret_cast<uintptr_t>(queues_[queue].uar->reg_addr);
  return {reinterpret_cast<std::byte*>(at / kPage * kPage), kPage};
}

Status Mlx5Queues::MakeUar(Queue& queue) const {
  errno = 0;
  for (const uint32_t kind : {kNotCachedDedicated, uint32_t{MLX5DV_UAR_ALLOC_TYPE_NC}}) {
    queue.uar = card_.mlx5().alloc_uar(&card_.context(), kind);
    if (queue.uar) return Status::Ok();
  }
  return card_.Refusal(errno, "allocating a doorbell register failed");
}

// Makes the completion queue first, whose number the command for the queue pair names.
Status Mlx5Queues::MakePair(size_t i) {
  Queue& queue = queues_[i];
  TUTTI_TRY(MakeUar(queue));
  const uint32_t log_size = static_cast<uint32_t>(std::bit_width(depth_)) - 1;
  const uint32_t umem = memory_->umem();
  TUTTI_ASSIGN(queue.completions,
               MakeObject(CreateCompletions({.log_size = log_size,
                                             .uar_page = queue.uar->page_id,
                                             .event_queue = card_.event_queue(),
                                             .entries = {umem, layout_.CompletionsAt(i)},
                                             .record = {umem, layout_.CompletionsRecordAt(i)}}),
                          "making a completion queue failed", &queue.completions_number));
  TUTTI_ASSIGN(queue.pair, MakeObject(CreatePair({.log_size = log_size,
                                                  .domain = card_.domain_number(),
                                                  .uar_page = queue.uar->page_id,
                                                  .completions = queue.completions_number,
                                                  .entries = {umem, layout_.EntriesAt(i)},
                                                  .record = {umem, layout_.RecordAt(i)}}),
                                      "making a queue pair failed", &queue.number));
  return Modify(queue, ResetToInit(queue.number, card_.LocalRoute()),
                "initialising a queue pair failed");
}

Result<mlx5dv_devx_obj*> Mlx5Queues::MakeObject(const Mlx5LongCommand& command, const char* what,
                                                uint32_t* number) const {
  Mlx5ShortAnswer answer;
  errno = 0;
  mlx5dv_devx_obj* const made =
      card_.mlx5().obj_create(&card_.context(), command.bytes.data(), command.bytes.size(),
                              answer.bytes.data(), answer.bytes.size());
  if (!made) return card_.Refusal(errno, what, answer.bytes);
  *number = NumberIn(answer);
  return made;
}

Status Mlx5Queues::Modify(const Queue& queue, const Mlx5LongCommand& command,
                          const char* what) const {
  Mlx5ShortAnswer answer;
  const int error = card_.mlx5().obj_modify(queue.pair, command.bytes.data(), command.bytes.size(),
                                            answer.bytes.data(), answer.bytes.size());
  return error == 0 ? Status::Ok() : card_.Refusal(error, what, answer.bytes);
}

Status Mlx5Queues::Join(size_t queue, const CardEnd& end, uint32_t number) {
  TUTTI_ASSIGN(const Mlx5Route route, card_.RouteTo(end, number));
  const Queue& joined = queues_[queue];
  TUTTI_TRY(Modify(joined, InitToReceive(joined.number, route), "joining a queue pair failed"));
  return Modify(joined, ReceiveToSend(joined.number, route), "opening a queue pair failed");
}

device::mlx5::QueuePair Mlx5Queues::Export(size_t i) const {
  std::byte* const memory = memory_->memory().data();
  const Queue& queue = queues_[i];
  // A queue of 65,536 entries would not fit; GinPlan allows at most half as many.
  return device::mlx5::MakeQueuePair(
      queue.number, reinterpret_cast<device::mlx5::Entry*>(memory + layout_.EntriesAt(i)),
      static_cast<uint16_t>(depth_), reinterpret_cast<uint32_t*>(memory + layout_.RecordAt(i)),
      static_cast<uint64_t*>(queue.uar->reg_addr),
      reinterpret_cast<uint8_t*>(memory + layout_.CompletionsAt(i)), queue.completions_number,
      depth_);
}

Result<bool> Mlx5Queues::HasStopped(size_t i) const {
  const Mlx5ShortCommand command = QueryPair(queues_[i].number);
  Mlx5QueryAnswer answer;
  const int error =
      card_.mlx5().obj_query(queues_[i].pair, command.bytes.data(), command.bytes.size(),
                             answer.bytes.data(), answer.bytes.size());
  if (error != 0)
    return card_.Refusal(error, "asking for a queue pair's state failed", answer.bytes);
  return tutti::HasStopped(answer);
}

// A completion is valid by its last word. The acquire load of the word orders the read of the
// syndrome behind it.
Result<CardCompletion> Mlx5Queues::Completion(size_t i, uint64_t index) const {
  std::byte* const entry = memory_->memory().data() + layout_.CompletionsAt(i) +
                           (index & (depth_ - 1)) * device::mlx5::kEntryBytes;
  CardCompletion seen;
  seen.word = std::atomic_ref<uint32_t>(
                  *reinterpret_cast<uint32_t*>(entry + device::mlx5::kCompletionWordAt))
                  .load(std::memory_order_acquire);
  if (device::mlx5::OpcodeOf(seen.word) == device::mlx5::kRequesterError)
    seen.syndrome = static_cast<uint8_t>(entry[device::mlx5::kSyndromeAt]);
  return seen;
}

Mlx5Queues::~Mlx5Queues() {
  for (const Queue& queue : queues_) {
    if (queue.pair) card_.mlx5().obj_destroy(queue.pair);
    if (queue.completions) card_.mlx5().obj_destroy(queue.completions);
    if (queue.uar) card_.mlx5().free_uar(queue.uar);
  }
}

}  // namespace tutti
