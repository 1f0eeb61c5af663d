#include "gin/gpu_card.h"

#include <utility>

namespace tutti {
namespace {

constexpr size_t kProbeBytes = 4096;
constexpr uint32_t kProbeDepth = 2;

// Returns where a GPU sees what `at` shows in memory that begins at `host` here, and `gpu` there.
template <typename T>
T* Moved(T* at, const std::byte* host, std::byte* gpu) {
  return reinterpret_cast<T*>(gpu + (reinterpret_cast<const std::byte*>(at) - host));
}

}  // namespace

Result<std::unique_ptr<GinGpuCard>> GinGpuCard::Create(const cuda::Device& device, Card& card,
                                                       const Options& options) {
  if (!options.trusts_order && !cuda::OrdersWritesOfNics(device))
    return InvalidUsage(
        "kernels of CUDA device {} may see a signal before the data that a card has written ahead "
        "of it (NCCL_GDR_FLUSH_DISABLE=1 says that they do not)",
        device.ordinal());
  std::unique_ptr<GinGpuCard> made(new GinGpuCard(device, card));
  TUTTI_TRY(made->Try());
  return made;
}

Status GinGpuCard::Try() {
  TUTTI_ASSIGN(const cuda::MappedMemory memory,
               cuda::MappedMemory::Create(device_, kProbeBytes, nullptr));
  TUTTI_TRY(Register({memory.data(), kProbeBytes}, 0, CardOrdering::kStrict).status());
  TUTTI_ASSIGN(const std::unique_ptr<CardQueues> queues, card_.MakeQueues(1, kProbeDepth));
  return Map(*queues, 1).status();
}

Result<std::unique_ptr<CardMemory>> GinGpuCard::Register(std::span<std::byte> memory,
                                                         uint64_t begin, CardOrdering ordering) {
  Status refused;
  if (card_.takes_dmabuf()) {
    Result<cuda::LentMemory> lent = cuda::ExportDmabufAround(device_, memory);
    refused = lent.status();
    if (lent.ok()) {
      Result<std::unique_ptr<CardMemory>> known =
          card_.RegisterGpu(memory, begin, ordering, lent->fd.get(), lent->offset);
      if (known.ok()) return known;
      refused = known.status();
    }
  }
  Result<std::unique_ptr<CardMemory>> known = card_.RegisterGpu(memory, begin, ordering, -1, 0);
  if (known.ok() || refused.ok()) return known;
  return SystemError("{}; and by its address: {}", refused.message(), known.status().message());
}

Result<GinGpuCard::Mapped> GinGpuCard::Map(const CardQueues& queues, size_t count) {
  Mapped mapped;
  mapped.queues_ = &queues;
  TUTTI_ASSIGN(mapped.memory_, cuda::PinnedRange::Pin(device_, queues.memory()));
  for (size_t i = 0; i < count; ++i) {
    const std::span<std::byte> page = queues.RegisterPage(i);
    std::shared_ptr<cuda::MappedRegisters> known = pages_[page.data()].lock();
    if (known == nullptr) {
      TUTTI_ASSIGN(cuda::MappedRegisters made, cuda::MappedRegisters::Map(device_, page));
      known = std::make_shared<cuda::MappedRegisters>(std::move(made));
      pages_[page.data()] = known;
    }
    mapped.registers_.push_back(std::move(known));
  }
  std::erase_if(pages_, [](const auto& page) { return page.second.expired(); });
  return mapped;
}

device::mlx5::QueuePair GinGpuCard::Mapped::Export(size_t queue) const {
  device::mlx5::QueuePair pair = queues_->Export(queue);
  const std::byte* const host = queues_->memory().data();
  std::byte* const gpu = memory_.data();
  pair.entries = Moved(pair.entries, host, gpu);
  pair.doorbell_record = Moved(pair.doorbell_record, host, gpu);
  pair.completions.entries = Moved(pair.completions.entries, host, gpu);
  pair.doorbell =
      Moved(pair.doorbell, queues_->RegisterPage(queue).data(), registers_[queue]->data());
  return pair;
}

}  // namespace tutti
