#include "gin/mlx5/queues.h"

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/rounding.h"

namespace tutti {
namespace {

constexpr size_t kPage = 4096;
// Asks for a doorbell register that nobody else rings; older libmlx5 have no name for it.
constexpr uint32_t kNotCachedDedicated = uint32_t{1} << 31;
// The last byte of an entry of a completion queue that the card has never written: invalid, with
// an owner that is that of no first round.
constexpr uint8_t kNeverWritten = device::mlx5::kInvalid << 4 | 1;

}  // namespace

Mlx5Queues::Mlx5Queues(const Mlx5Card& card, size_t count, uint32_t depth)
    : card_(card),
      depth_(depth),
      ring_bytes_(RoundUp(depth * device::mlx5::kEntryBytes, kPage)),
      queues_(count) {}

Result<std::unique_ptr<Mlx5Queues>> Mlx5Queues::Create(const Mlx5Card& card, size_t count,
                                                       uint32_t depth) {
  std::unique_ptr<Mlx5Queues> made(new Mlx5Queues(card, count, depth));
  TUTTI_TRY(made->Allocate());
  for (size_t i = 0; i < count; ++i) TUTTI_TRY(made->MakePair(i));
  return made;
}

size_t Mlx5Queues::MemoryBytes() const {
  return RoundUp(CompletionsRecordAt(queues_.size()), kPage);
}
std::span<std::byte> Mlx5Queues::memory() const { return {memory_.get(), MemoryBytes()}; }

std::span<std::byte> Mlx5Queues::RegisterPage(size_t queue) const {
  const auto at = reinterpret_cast<uintptr_t>(queues_[queue].uar->reg_addr);
  return {reinterpret_cast<std::byte*>(at / kPage * kPage), kPage};
}

Status Mlx5Queues::Allocate() {
  const size_t bytes = MemoryBytes();
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
  if (!memory_) return SystemError("there is no memory for {} queue pairs", queues_.size());
  std::memset(memory_.get(), 0, bytes);
  for (size_t i = 0; i < queues_.size(); ++i)
    for (size_t entry = 1; entry <= depth_; ++entry)
      memory_.get()[CompletionsAt(i) + entry * device::mlx5::kEntryBytes - 1] =
          std::byte{kNeverWritten};
  errno = 0;
  umem_ = card_.mlx5().umem_reg(&card_.context(), memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
  if (!umem_) return card_.Refusal(errno, "giving it memory for queue pairs failed");
  return Status::Ok();
}

Status Mlx5Queues::MakeUar(Queue& queue) const {
  errno = 0;
  for (const uint32_t kind : {kNotCachedDedicated, uint32_t{MLX5DV_UAR_ALLOC_TYPE_NC}}) {
    queue.uar = card_.mlx5().alloc_uar(&card_.context(), kind);
    if (queue.uar) return Status::Ok();
  }
  return card_.Refusal(errno, "allocating a doorbell register failed");
}

Status Mlx5Queues::MakePair(size_t i) {
  Queue& queue = queues_[i];
  TUTTI_TRY(MakeUar(queue));
  const uint32_t log_size = static_cast<uint32_t>(std::bit_width(depth_)) - 1;
  TUTTI_ASSIGN(queue.completions,
               MakeObject(CreateCompletions({.log_size = log_size,
                                             .uar_page = queue.uar->page_id,
                                             .event_queue = card_.event_queue(),
                                             .entries = {umem_->umem_id, CompletionsAt(i)},
                                             .record = {umem_->umem_id, CompletionsRecordAt(i)}}),
                          "making a completion queue failed", &queue.completions_number));
  TUTTI_ASSIGN(queue.pair, MakeObject(CreatePair({.log_size = log_size,
                                                  .domain = card_.domain_number(),
                                                  .uar_page = queue.uar->page_id,
                                                  .completions = queue.completions_number,
                                                  .entries = {umem_->umem_id, EntriesAt(i)},
                                                  .record = {umem_->umem_id, RecordAt(i)}}),
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
  std::byte* const memory = memory_.get();
  const Queue& queue = queues_[i];
  // A queue of 65,536 entries would not fit; GinPlan has at most half of that.
  return device::mlx5::MakeQueuePair(
      queue.number, reinterpret_cast<device::mlx5::Entry*>(memory + EntriesAt(i)),
      static_cast<uint16_t>(depth_), reinterpret_cast<uint32_t*>(memory + RecordAt(i)),
      static_cast<uint64_t*>(queue.uar->reg_addr),
      reinterpret_cast<uint8_t*>(memory + CompletionsAt(i)), queue.completions_number, depth_);
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

Mlx5Queues::~Mlx5Queues() {
  for (const Queue& queue : queues_) {
    if (queue.pair) card_.mlx5().obj_destroy(queue.pair);
    if (queue.completions) card_.mlx5().obj_destroy(queue.completions);
    if (queue.uar) card_.mlx5().free_uar(queue.uar);
  }
  if (umem_) card_.mlx5().umem_dereg(umem_);
}

}  // namespace tutti
