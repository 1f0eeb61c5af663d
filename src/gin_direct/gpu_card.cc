#include "gin_direct/gpu_card.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "backend/cuda/own_stream.h"
#include "base/log.h"

namespace tutti {
namespace {

constexpr size_t kProbeBytes = 4096;
constexpr uint32_t kProbeDepth = 2;

// Returns the GPU's address of `at`, in memory that begins at `host` for the host and at `gpu` for
// the GPU.
template <typename T>
T* Moved(T* at, const std::byte* host, std::byte* gpu) {
  return reinterpret_cast<T*>(gpu + (reinterpret_cast<const std::byte*>(at) - host));
}

}  // namespace

// Queue pairs with the mappings for kernels of a GPU.
class GinGpuCard::Queues final : public CardQueues {
 public:
  explicit Queues(const cuda::Device& device) : device_(device) {}
  ~Queues() override {
    const cuda::ManagingScope scope(device_.driver(), device_.context());
    stream_.reset();
  }
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  uint32_t NumberOf(size_t queue) const override { return queues_->NumberOf(queue); }
  Status Join(size_t queue, const CardEnd& end, uint32_t number) override {
    return queues_->Join(queue, end, number);
  }
  Result<bool> HasStopped(size_t queue) const override { return queues_->HasStopped(queue); }
  std::span<std::byte> memory() const override { return queues_->memory(); }
  std::span<std::byte> RegisterPage(size_t queue) const override {
    return queues_->RegisterPage(queue);
  }

  // Queues in memory of the GPU have its addresses.
  device::mlx5::QueuePair Export(size_t queue) const override {
    device::mlx5::QueuePair pair = queues_->Export(queue);
    pair.doorbell =
        Moved(pair.doorbell, queues_->RegisterPage(queue).data(), registers_[queue]->data());
    if (pinned_.data() == nullptr) return pair;
    const std::byte* const host = queues_->memory().data();
    pair.entries = Moved(pair.entries, host, pinned_.data());
    pair.doorbell_record = Moved(pair.doorbell_record, host, pinned_.data());
    pair.completions.entries = Moved(pair.completions.entries, host, pinned_.data());
    return pair;
  }

  Result<CardCompletion> Completion(size_t queue, uint64_t index) const override {
    if (gpu_memory_.data() == nullptr) return queues_->Completion(queue, index);
    const device::mlx5::CompletionQueue completions = queues_->Export(queue).completions;
    const uint8_t* const at =
        completions.entries + (index & completions.mask) * device::mlx5::kEntryBytes;
    uint8_t entry[device::mlx5::kEntryBytes];
    const cuda::ManagingScope scope(device_.driver(), device_.context());
    TUTTI_TRY(stream_->CopyOut(entry, reinterpret_cast<cuda::DeviceAddress>(at), sizeof(entry)));
    CardCompletion seen;
    std::memcpy(&seen.word, entry + device::mlx5::kCompletionWordAt, sizeof(seen.word));
    seen.syndrome = entry[device::mlx5::kSyndromeAt];
    return seen;
  }

 private:
  friend class GinGpuCard;

  const cuda::Device& device_;
  std::unique_ptr<cuda::OwnStream> stream_;  // Present with gpu_memory_.
  cuda::MappedMemory gpu_memory_;            // the memory of queue pairs; none: the host's
  std::unique_ptr<CardQueues> queues_;       // ends before the memory, which the card reaches
  cuda::PinnedRange pinned_;                 // the host's memory, if queue pairs lie in it
  std::vector<std::shared_ptr<cuda::PinnedRange>> registers_;  // of each queue pair
};

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
  return MakeQueues(1, kProbeDepth).status();
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

// Notes the place of queue pairs, and logs a change.
void GinGpuCard::Settle(Place place, const std::string& why_not) {
  if (place == place_) return;
  place_ = place;
  const std::string reason = why_not.empty() ? "" : fmt::format(" ({})", why_not);
  switch (place) {
    case Place::kNotTried:
      break;
    case Place::kGpuByDmabuf:
      TUTTI_INFO(kLogNet, "queues of {} lie in memory of CUDA device {}, known by a DMA-BUF",
                 card_.name(), device_.ordinal());
      break;
    case Place::kGpuByAddress:
      TUTTI_INFO(kLogNet, "queues of {} lie in memory of CUDA device {}, known by its address{}",
                 card_.name(), device_.ordinal(), reason);
      break;
    case Place::kHost:
      TUTTI_INFO(kLogNet, "queues of {} lie in pinned memory of the host{}", card_.name(), reason);
      break;
  }
}

// Returns null where the card takes no queues in memory of the GPU.
Result<std::unique_ptr<CardQueueMemory>> GinGpuCard::RegisterQueues(std::span<std::byte> memory) {
  std::string refused;
  if (place_ <= Place::kGpuByDmabuf && card_.takes_dmabuf()) {
    Result<cuda::LentMemory> lent = cuda::ExportDmabufAround(device_, memory);
    Status could = lent.status();
    if (lent.ok()) {
      Result<std::unique_ptr<CardQueueMemory>> known =
          card_.RegisterQueues(memory, lent->fd.get(), lent->offset);
      if (known.ok()) {
        Settle(Place::kGpuByDmabuf, refused);
        return known;
      }
      could = known.status();
    }
    refused = fmt::format("by a DMA-BUF: {}", could.message());
  }
  Result<std::unique_ptr<CardQueueMemory>> known = card_.RegisterQueues(memory, -1, 0);
  if (known.ok()) {
    Settle(Place::kGpuByAddress, refused);
    return known;
  }
  Settle(Place::kHost, fmt::format("memory of the GPU {}{}by its address: {}", refused,
                                   refused.empty() ? "" : "; ", known.status().message()));
  return std::unique_ptr<CardQueueMemory>();
}

Result<std::shared_ptr<cuda::PinnedRange>> GinGpuCard::MapRegisters(std::span<std::byte> page) {
  std::shared_ptr<cuda::PinnedRange> known = pages_[page.data()].lock();
  if (known != nullptr) return known;
  TUTTI_ASSIGN(cuda::PinnedRange made, cuda::PinnedRange::MapRegisters(device_, page));
  known = std::make_shared<cuda::PinnedRange>(std::move(made));
  pages_[page.data()] = known;
  return known;
}

// Tries memory of the GPU first. The image is copied before the card learns of the memory
// (Card::QueueImage).
Result<std::unique_ptr<CardQueues>> GinGpuCard::MakeQueues(size_t count, uint32_t depth) {
  auto made = std::make_unique<Queues>(device_);
  std::unique_ptr<CardQueueMemory> known;
  if (place_ != Place::kHost) {
    const cuda::ManagingScope scope(device_.driver(), device_.context());
    const std::vector<std::byte> image = card_.QueueImage(count, depth);
    TUTTI_ASSIGN(cuda::OwnStream stream, cuda::OwnStream::Create(device_));
    made->stream_ = std::make_unique<cuda::OwnStream>(std::move(stream));
    TUTTI_ASSIGN(made->gpu_memory_, cuda::MappedMemory::Create(device_, image.size(), nullptr));
    TUTTI_TRY(made->stream_->CopyIn(made->gpu_memory_.address(), image.data(), image.size()));
    TUTTI_ASSIGN(known, RegisterQueues({made->gpu_memory_.data(), image.size()}));
    if (known == nullptr) made->gpu_memory_ = {};
  }
  TUTTI_ASSIGN(made->queues_, card_.MakeQueues(count, depth, std::move(known)));
  if (made->gpu_memory_.data() == nullptr) {
    TUTTI_ASSIGN(made->pinned_, cuda::PinnedRange::Pin(device_, made->queues_->memory()));
  }
  for (size_t i = 0; i < count; ++i) {
    TUTTI_ASSIGN(made->registers_.emplace_back(), MapRegisters(made->queues_->RegisterPage(i)));
  }
  std::erase_if(pages_, [](const auto& page) { return page.second.expired(); });
  return std::unique_ptr<CardQueues>(std::move(made));
}

}  // namespace tutti
