// The two functions by which the rest of the library reaches the module.

#include "gin/direct.h"
#include "gin_direct/gin_direct.h"
#include "gin_direct/gpu_card.h"
#include "gin_direct/mlx5/card.h"

namespace tutti {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// Fails, with a sentence, if the settings ask for an unsupported way to tell cards of new entries.
Status CheckNicHandler(int64_t handler) {
  constexpr const char* kWays[] = {nullptr,
                                   "a thread of the host that rings",
                                   nullptr,
                                   "BlueFlame",
                                   "doorbells without doorbell records",
                                   "a thread of the host that rings, without doorbell records"};
  static_assert(device::mlx5::kRungByKernels == 2, "the way that is there");
  const char* const way = kWays[handler];
  if (way == nullptr) return Status::Ok();
  return InvalidArgument(
      "NCCL_GIN_GDAKI_NIC_HANDLER={} asks for {}, and here kernels tell a card of new entries by "
      "doorbell records and doorbells alone (2, or 0 for automatic)",
      handler, way);
}

class OpenedCard final : public DirectCard {
 public:
  OpenedCard(std::unique_ptr<Card> card, std::unique_ptr<GinGpuCard> gpu, int64_t query_ns)
      : card_(std::move(card)), gpu_(std::move(gpu)), query_ns_(query_ns) {}

  const std::string& name() const override { return card_->name(); }
  Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                               CardOrdering ordering) override {
    return gpu_ ? gpu_->Register(memory, begin, ordering)
                : card_->Register(memory, begin, ordering);
  }
  size_t OfferBytes(const GinPlan& plan, int num_ranks) const override {
    return GinDirect::OfferBytes(plan, static_cast<size_t>(num_ranks));
  }
  Result<std::unique_ptr<DirectBackend>> MakeBackend(BackendParts parts) override {
    TUTTI_ASSIGN(std::unique_ptr<GinDirect> made,
                 GinDirect::Create({{std::move(parts)}, card_.get(), gpu_.get(), query_ns_}));
    return std::unique_ptr<DirectBackend>(std::move(made));
  }

 private:
  const std::unique_ptr<Card> card_;
  const std::unique_ptr<GinGpuCard> gpu_;  // null where kernels are the host's
  const int64_t query_ns_;
};

}  // namespace

Result<std::vector<CardPort>> FindDirectPorts(const Settings& settings) {
  TUTTI_TRY(CheckNicHandler(settings.gin_nic_handler));
  return Mlx5Card::Find(settings);
}

Result<std::unique_ptr<DirectCard>> OpenDirectCard(const Settings& settings,
                                                   const std::string& port,
                                                   const cuda::Device* gpu) {
  TUTTI_ASSIGN(std::unique_ptr<Card> card, Mlx5Card::Open(settings, port));
  std::unique_ptr<GinGpuCard> on_gpu;
  if (gpu != nullptr) {
    TUTTI_ASSIGN(on_gpu,
                 GinGpuCard::Create(*gpu, *card, {.trusts_order = settings.gdr_flush_disable}));
  }
  return std::unique_ptr<DirectCard>(std::make_unique<OpenedCard>(
      std::move(card), std::move(on_gpu), settings.gin_error_query_s * kSecondNs));
}

}  // namespace tutti
