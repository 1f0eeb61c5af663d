// The two functions by which the rest of the library reaches the module.

#include "gin/direct.h"
#include "gin_direct/card.h"
#include "gin_direct/gin_direct.h"
#include "gin_direct/gpu_card.h"
#include "gin_direct/options.h"

namespace tutti {
namespace {

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
  const GinOptions options = GinOptions::From(settings);
  TUTTI_TRY(options.CheckNicHandler());
  return Card::Find(settings, options);
}

Result<std::unique_ptr<DirectCard>> OpenDirectCard(const Settings& settings,
                                                   const std::string& port,
                                                   const cuda::Device* gpu) {
  const GinOptions options = GinOptions::From(settings);
  TUTTI_ASSIGN(std::unique_ptr<Card> card, Card::Open(settings, options, port));
  std::unique_ptr<GinGpuCard> on_gpu;
  if (gpu != nullptr) {
    TUTTI_ASSIGN(on_gpu,
                 GinGpuCard::Create(*gpu, *card, {.trusts_order = settings.gdr_flush_disable}));
  }
  return std::unique_ptr<DirectCard>(
      std::make_unique<OpenedCard>(std::move(card), std::move(on_gpu), options.query_ns));
}

}  // namespace tutti
