#include "comm/direct_gin.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "comm/communicator.h"

namespace tutti {
namespace {

constexpr const char* kCall = "ncclDevCommCreate";

}  // namespace

// A backend as its device communicator has it.
class DirectGin::Owned final : public GinBackend {
 public:
  Owned(DirectGin& gin, uint64_t number, std::unique_ptr<GinDirect> direct)
      : gin_(gin), number_(number), direct_(std::move(direct)) {}
  ~Owned() override { gin_.Retire(number_, std::move(direct_)); }

  void* handle() const override { return direct_->handle(); }
  bool is_direct() const override { return true; }
  Status Finish(Deadline deadline) override { return direct_->Finish(deadline); }

 private:
  DirectGin& gin_;
  const uint64_t number_;
  std::unique_ptr<GinDirect> direct_;
};

DirectGin::DirectGin(Communicator& comm, const GinOptions& options)
    : comm_(comm), options_(options) {}

DirectGin::~DirectGin() {
  FreeRetired(UINT64_MAX);
  const MutexLock lock(mutex_);
  windows_.clear();
}

// -------------------------------------------------------------------------------------------------
// The joint calls

Result<Agreement> DirectGin::Exchange(const Status& could, std::span<const std::byte> mine,
                                      std::vector<std::span<const std::byte>>& all) {
  const auto ranks = static_cast<size_t>(comm_.num_ranks());
  const size_t bytes = sizeof(StatusWire) + mine.size();
  heard_.assign(ranks * bytes, std::byte{0});
  std::byte* const own = heard_.data() + static_cast<size_t>(comm_.rank()) * bytes;
  const StatusWire wire = StatusWire::Of(could);
  std::memcpy(own, &wire, sizeof(wire));
  std::copy(mine.begin(), mine.end(), own + sizeof(wire));
  TUTTI_TRY(comm_.bootstrap().AllGather(heard_.data(), bytes, comm_.InitDeadline(),
                                        &comm_.watch().stop_flag()));
  Agreement agreement;
  all.clear();
  for (size_t r = 0; r < ranks; ++r) {
    StatusWire said;
    std::memcpy(&said, heard_.data() + r * bytes, sizeof(said));
    all.push_back(std::span(heard_).subspan(r * bytes + sizeof(said), mine.size()));
    if (agreement.go_on()) agreement.refusal = said.From(static_cast<int>(r), comm_.peers()[r]);
  }
  return agreement;
}

Result<Agreement> DirectGin::Open() {
  asked_ = true;
  Result<std::unique_ptr<Card>> card = Card::Open(comm_.settings(), options_, comm_.LocalRank());
  std::vector<std::span<const std::byte>> all;
  TUTTI_ASSIGN(Agreement agreement, Exchange(card.status(), {}, all));
  if (agreement.go_on()) {
    card_ = std::move(card).value();
    TUTTI_INFO(kLogNet, "kernels put over the network by driving {} themselves", card_->name());
  } else {
    why_none_ = agreement.refusal;
    TUTTI_INFO(kLogNet, "kernels cannot drive network cards: {}", why_none_.message());
  }
  return agreement;
}

Result<Agreement> DirectGin::Share(const Window& window) {
  if (!asked_) TUTTI_TRY(Open().status());
  if (card_ == nullptr) return Agreement();
  Shared shared;
  Status could;
  uint32_t key = 0;
  if (!window.own.empty()) {
    const bool strict = (window.flags & NCCL_WIN_STRICT_ORDERING) != 0;
    Result<std::unique_ptr<CardMemory>> own = card_->Register(
        window.own, window.offset, strict ? CardOrdering::kStrict : CardOrdering::kRelaxed);
    if (own.ok()) {
      shared.own = std::move(own).value();
      key = shared.own->remote_key();
    } else {
      could = std::move(own).status();
    }
  }
  std::vector<std::span<const std::byte>> all;
  TUTTI_ASSIGN(Agreement agreement, Exchange(could, std::as_bytes(std::span(&key, 1)), all));
  if (!agreement.go_on()) return agreement;
  for (const std::span<const std::byte> told : all)
    std::memcpy(&shared.keys.emplace_back(), told.data(), sizeof(uint32_t));
  const MutexLock lock(mutex_);
  Shared& kept = windows_[window.handle] = std::move(shared);
  kept.memory = {kept.keys.data(), kept.own ? kept.own->local_key() : 0};
  TUTTI_TRY(comm_.symmetric().SetGinName(window, &kept.memory));
  return agreement;
}

void DirectGin::Forget(ncclWindow_t window) {
  const MutexLock lock(mutex_);
  windows_.erase(window);
}

Result<std::unique_ptr<GinDirect>> DirectGin::Prepare(const GinPlan& plan) {
  return GinDirect::Create({.rank = comm_.rank(),
                            .num_ranks = comm_.num_ranks(),
                            .team = comm_.symmetric().team(),
                            .plan = plan,
                            .card = card_.get(),
                            .loop = &comm_.process().proxy().loop(),
                            .watch = &comm_.watch(),
                            .query_ns = options_.query_ns,
                            .name_of = [this](int rank) {
                              return RankName(rank, comm_.peers()[static_cast<size_t>(rank)]);
                            }});
}

Result<std::unique_ptr<GinBackend>> DirectGin::Make(const GinPlan& plan) {
  if (card_ == nullptr) return why_none_;
  Result<std::unique_ptr<GinDirect>> direct = Prepare(plan);
  const size_t offer_bytes = GinDirect::OfferBytes(plan, static_cast<size_t>(comm_.num_ranks()));
  GinDirect* const made = direct.ok() ? direct->get() : nullptr;
  TUTTI_TRY(JoinAll(made, direct.status(), offer_bytes));
  const uint64_t number = ++made_;
  {
    const MutexLock lock(mutex_);
    used_.insert(number);
  }
  return std::unique_ptr<GinBackend>(
      std::make_unique<Owned>(*this, number, std::move(direct).value()));
}

// Exchanges offers, and which device communicators this rank still has, and joins.
Status DirectGin::JoinAll(GinDirect* direct, const Status& could, size_t offer_bytes) {
  uint64_t oldest_used = made_ + 1;
  {
    const MutexLock lock(mutex_);
    if (!used_.empty()) oldest_used = *used_.begin();
  }
  std::vector<std::byte> mine(sizeof(oldest_used) + offer_bytes);
  std::memcpy(mine.data(), &oldest_used, sizeof(oldest_used));
  if (direct != nullptr) direct->Offer(std::span(mine).subspan(sizeof(oldest_used)));
  std::vector<std::span<const std::byte>> all;
  const Result<Agreement> agreed = Exchange(could, mine, all);
  if (!agreed.ok()) return comm_.StopAfterStep(agreed.status());
  for (std::span<const std::byte>& told : all) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, told.data(), sizeof(theirs));
    oldest_used = std::min(oldest_used, theirs);
    told = told.subspan(sizeof(theirs));
  }
  FreeRetired(oldest_used);
  if (!agreed->go_on()) return agreed->refusal;
  return comm_.AgreeInStep(kCall, direct->Join(all));
}

// -------------------------------------------------------------------------------------------------
// The end of device communicators

void DirectGin::Retire(uint64_t number, std::unique_ptr<GinDirect> direct) {
  direct->Retire();
  const MutexLock lock(mutex_);
  used_.erase(number);
  retired_.push_back({number, std::move(direct)});
}

// Ends what no rank uses any more.
void DirectGin::FreeRetired(uint64_t oldest_used) {
  std::vector<Retired> ended;
  const MutexLock lock(mutex_);
  for (Retired& retired : retired_)
    if (retired.number < oldest_used) ended.push_back(std::move(retired));
  std::erase_if(retired_, [](const Retired& retired) { return retired.direct == nullptr; });
}

}  // namespace tutti
