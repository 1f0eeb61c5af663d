#include "comm/direct_gin.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/topology_step.h"
#include "window/record_memory.h"

namespace tutti {
namespace {

constexpr const char* kCall = "ncclDevCommCreate";

}  // namespace

// A backend for its device communicator.
class DirectGin::Owned final : public GinBackend {
 public:
  Owned(DirectGin& gin, uint64_t number, std::unique_ptr<DirectBackend> direct)
      : gin_(gin), number_(number), direct_(std::move(direct)) {}
  ~Owned() override { gin_.Retire(number_, std::move(direct_)); }

  void* handle() const override { return direct_->handle(); }
  bool is_direct() const override { return true; }
  Status Finish(Deadline deadline) override { return direct_->Finish(deadline); }

 private:
  DirectGin& gin_;
  const uint64_t number_;
  std::unique_ptr<DirectBackend> direct_;
};

DirectGin::DirectGin(Communicator& comm) : comm_(comm) {}

DirectGin::~DirectGin() {
  FreeRetired(UINT64_MAX);
  const MutexLock lock(mutex_);
  windows_.clear();
}

// -------------------------------------------------------------------------------------------------
// The joint calls

// Returns the port nearest to this rank's device, as rings choose NICs (comm/topology_step.h).
// Returns a port by the rank's number on its host where the topology does not know the ports.
Result<std::string> DirectGin::ChoosePort() const {
  TUTTI_ASSIGN(const std::vector<CardPort> ports, FindDirectPorts(comm_.settings()));
  const std::string& by_number = ports[static_cast<size_t>(comm_.LocalRank()) % ports.size()].name;
  const bool placed = std::none_of(ports.begin(), ports.end(),
                                   [](const CardPort& port) { return port.pci_path.empty(); });
  if (ports.size() == 1 || !placed) return by_number;
  const bool on_gpu = comm_.device().cuda_ordinal() >= 0;
  HostQuestion question;
  question.rank = comm_.rank();
  question.other_hosts = true;
  std::vector<topology::FoundPort> found;
  for (const CardPort& port : ports) {
    found.push_back({port.name, {port.pci_path}, port.speed_mbps, port.number, port.guid, on_gpu});
    question.nics.push_back({.name = port.name,
                             .speed_mbps = port.speed_mbps,
                             .pci_paths = {port.pci_path},
                             .port = port.number,
                             .guid = port.guid,
                             .gpu_memory = on_gpu});
  }
  for (const int r : comm_.operations().machines().here) {
    const PeerInfo& peer = comm_.peers()[static_cast<size_t>(r)];
    question.ranks.push_back(r);
    question.numas.push_back(peer.numa);
    if (on_gpu) question.gpus.push_back(BusIdOf(peer));
  }
  Settings settings = comm_.settings();
  settings.topo_dump_file.clear();
  settings.graph_dump_file.clear();
  TUTTI_ASSIGN(const auto host, comm_.process().FindHost(settings, found, on_gpu));
  const Result<HostAnswer> answer = AskTopology(settings, host->machine, host->hash, question);
  if (!answer.ok() || !answer->plain_since.empty()) return by_number;
  return ports[static_cast<size_t>(answer->nic)].name;
}

Status DirectGin::OpenCard() {
  TUTTI_ASSIGN(const std::string port, ChoosePort());
  TUTTI_ASSIGN(const cuda::Device* const gpu, comm_.device().OpenGpu());
  TUTTI_ASSIGN(card_, OpenDirectCard(comm_.settings(), port, gpu));
  const MutexLock lock(mutex_);
  if (gpu != nullptr) records_ = MakeDeviceRecordMemory(*gpu);
  return Status::Ok();
}

// All ranks tell one another whether they could open a card. A failed attempt is final, and windows
// go on without cards.
Result<Agreement> DirectGin::Open() {
  asked_ = true;
  const Status opened = OpenCard();
  TUTTI_ASSIGN(Agreement agreement, comm_.ranks().Agree(opened));
  if (agreement.go_on()) {
    TUTTI_INFO(kLogNet, "kernels put over the network by driving {} themselves", card_->name());
  } else {
    card_.reset();
    why_none_ = agreement.refusal;
    TUTTI_INFO(kLogNet, "kernels cannot drive network cards: {}", why_none_.message());
  }
  return agreement;
}

// Returns the record by which kernels find the keys of a window.
Result<const device::GdakiMemory*> DirectGin::RecordFor(Shared& shared) {
  shared.memory = {shared.keys.data(), shared.own ? shared.own->local_key() : 0};
  if (!records_) return &shared.memory;
  const std::span<const std::byte> keys = std::as_bytes(std::span(shared.keys));
  TUTTI_ASSIGN(shared.record, records_->Allocate(sizeof(shared.memory) + keys.size()));
  auto* const record = static_cast<device::GdakiMemory*>(shared.record);
  device::GdakiMemory memory = shared.memory;
  memory.remote_keys = reinterpret_cast<uint32_t*>(record + 1);
  TUTTI_TRY(records_->Write(record, std::as_bytes(std::span(&memory, 1))));
  TUTTI_TRY(records_->Write(memory.remote_keys, keys));
  return record;
}

// A rank whose part is empty has nothing to register and tells the key 0, to which no kernel puts.
Result<Agreement> DirectGin::Share(const Window& window) {
  if (!asked_) TUTTI_TRY(Open().status());
  if (card_ == nullptr) return Agreement();
  Shared shared;
  Status could;
  JointStep<uint32_t> step(comm_.ranks());
  if (!window.own.empty()) {
    const bool strict = (window.flags & NCCL_WIN_STRICT_ORDERING) != 0;
    Result<std::unique_ptr<CardMemory>> own = card_->Register(
        window.own, window.offset, strict ? CardOrdering::kStrict : CardOrdering::kRelaxed);
    if (own.ok()) {
      shared.own = std::move(own).value();
      step.mine() = shared.own->remote_key();
    } else {
      could = std::move(own).status();
    }
  }
  TUTTI_ASSIGN(Agreement agreement, step.Exchange(could));
  if (!agreement.go_on()) return agreement;
  shared.keys.assign(step.offers().begin(), step.offers().end());
  const MutexLock lock(mutex_);
  Shared& kept = windows_[window.handle] = std::move(shared);
  TUTTI_ASSIGN(const device::GdakiMemory* const record, RecordFor(kept));
  TUTTI_TRY(comm_.symmetric().SetGinName(window, const_cast<device::GdakiMemory*>(record)));
  return agreement;
}

void DirectGin::Forget(ncclWindow_t window) {
  const MutexLock lock(mutex_);
  const auto found = windows_.find(window);
  if (found == windows_.end()) return;
  if (found->second.record != nullptr) records_->Free(found->second.record);
  windows_.erase(found);
}

Result<std::unique_ptr<DirectBackend>> DirectGin::Prepare(const GinPlan& plan) {
  return card_->MakeBackend({.rank = comm_.rank(),
                             .num_ranks = comm_.num_ranks(),
                             .team = comm_.symmetric().team(),
                             .plan = plan,
                             .loop = &comm_.process().proxy().loop(),
                             .watch = &comm_.watch(),
                             .name_of = [this](int rank) {
                               return RankName(rank, comm_.peers()[static_cast<size_t>(rank)]);
                             }});
}

Result<std::unique_ptr<GinBackend>> DirectGin::Make(const GinPlan& plan) {
  if (card_ == nullptr) return why_none_;
  Result<std::unique_ptr<DirectBackend>> direct = Prepare(plan);
  const size_t offer_bytes = card_->OfferBytes(plan, comm_.num_ranks());
  DirectBackend* const made = direct.ok() ? direct->get() : nullptr;
  TUTTI_TRY(JoinAll(made, direct.status(), offer_bytes));
  const uint64_t number = ++made_;
  {
    const MutexLock lock(mutex_);
    used_.insert(number);
  }
  return std::unique_ptr<GinBackend>(
      std::make_unique<Owned>(*this, number, std::move(direct).value()));
}

// Exchanges the offers and the numbers of this rank's live device communicators, and joins.
Status DirectGin::JoinAll(DirectBackend* direct, const Status& could, size_t offer_bytes) {
  uint64_t oldest_used = made_ + 1;
  {
    const MutexLock lock(mutex_);
    if (!used_.empty()) oldest_used = *used_.begin();
  }
  const JointRanks ranks = comm_.ranks();
  const size_t bytes = sizeof(oldest_used) + offer_bytes;
  std::vector<std::byte> told(ranks.peers.size() * bytes);
  const std::span<std::byte> mine = std::span(told).subspan(ranks.me() * bytes, bytes);
  std::memcpy(mine.data(), &oldest_used, sizeof(oldest_used));
  if (direct != nullptr) direct->Offer(mine.subspan(sizeof(oldest_used)));
  const Result<Agreement> agreed = ranks.Exchange(could, told);
  if (!agreed.ok()) return comm_.StopAfterStep(agreed.status());
  std::vector<std::span<const std::byte>> all;
  for (size_t r = 0; r < ranks.peers.size(); ++r) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, &told[r * bytes], sizeof(theirs));
    oldest_used = std::min(oldest_used, theirs);
    all.push_back(std::span(told).subspan(r * bytes + sizeof(theirs), offer_bytes));
  }
  FreeRetired(oldest_used);
  if (!agreed->go_on()) return agreed->refusal;
  return comm_.AgreeInStep(kCall, direct->Join(all));
}

// -------------------------------------------------------------------------------------------------
// The end of device communicators

void DirectGin::Retire(uint64_t number, std::unique_ptr<DirectBackend> direct) {
  direct->Retire();
  const MutexLock lock(mutex_);
  used_.erase(number);
  retired_.push_back({number, std::move(direct)});
}

// Ends the backends that no rank uses any more.
void DirectGin::FreeRetired(uint64_t oldest_used) {
  std::vector<Retired> ended;
  const MutexLock lock(mutex_);
  for (Retired& retired : retired_)
    if (retired.number < oldest_used) ended.push_back(std::move(retired));
  std::erase_if(retired_, [](const Retired& retired) { return retired.direct == nullptr; });
}

}  // namespace tutti
