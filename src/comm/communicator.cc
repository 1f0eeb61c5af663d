#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "comm/gpu_one_sided.h"
#include "comm/join.h"
#include "window/host_one_sided.h"

namespace tutti {

// Ends users before the things they use. Operations end first, as long as the watch can still stop
// their waits; then the watch ends; the bootstrap, over which all of them talk, ends last.
Communicator::~Communicator() {
  if (operations_) operations_->Finish();
  if (const MutexLock lock(registrations_mutex_); one_sided_)
    one_sided_->EndQueuedCalls(InitDeadline());
  device_communicators_.Clear();
  if (const MutexLock lock(registrations_mutex_); one_sided_) one_sided_->Finish();
  slow_ranks_.reset();
  if (watch_) watch_->StopListening(process_.loop());
  one_sided_.reset();
  operations_.reset();  // the watch's stop hook reaches into these until here
  symmetric_.reset();
  watch_.reset();
  bootstrap_.reset();
}

int Communicator::LocalRank() const {
  const std::vector<int>& here = operations_->machines().here;
  return static_cast<int>(std::find(here.begin(), here.end(), rank()) - here.begin());
}

// Decides which windows this communicator can have. Ranks that map one another's memory form teams.
// Each remaining rank is a team of its own, whose windows are reached over the network.
Status Communicator::MakeSymmetricMemory() {
  const bool reaches = operations_->MapsPeerMemory();
  const int team_size =
      reaches ? LsaTeamSize(operations_->machines().leader, settings_.lsa_team_size) : 1;
  SymmetricMemory::Parts parts = {.bootstrap = bootstrap_.get(),
                                  .peers = peers_,
                                  .team = LsaTeamOf(rank(), team_size),
                                  .directory = &process_.windows()};
  const auto stride = static_cast<uint64_t>(settings_.win_stride);
  // A GPU that reaches no peer GPU still has windows, to which ranks put over the network.
  const bool can_map = reaches || std::none_of(peers_.begin(), peers_.end(), [](const PeerInfo& p) {
                         return p.cumem_disabled != 0;
                       });
  if (!can_map || !settings_.win_enable) {
    parts.why_no_space =
        InvalidUsage("{}", can_map ? "NCCL_WIN_ENABLE is 0"
                                   : "the GPUs do not reach one another's memory, and "
                                     "NCCL_CUMEM_ENABLE is 0 on a rank");
    parts.records = MakeHostRecordMemory();
  } else {
    const PeerInfo& self = peers_[static_cast<size_t>(rank())];
    const auto ranks_here = std::count_if(peers_.begin(), peers_.end(), [&](const PeerInfo& peer) {
      return SameProcess(peer, self);
    });
    TUTTI_ASSIGN(
        RankDevice::WindowMemory memory,
        device_->MakeWindowMemory(*bootstrap_, team_size, static_cast<int>(ranks_here), stride));
    parts.space = std::move(memory.space);
    parts.records = std::move(memory.records);
  }
  symmetric_ = std::make_unique<SymmetricMemory>(std::move(parts));
  return Status::Ok();
}

Result<std::shared_ptr<const Window>> Communicator::RegisterWindow(
    const SymmetricMemory::Request& request, WindowUse use) {
  const Watch::Step step(*watch_, "in ncclCommWindowRegister");
  Result<SymmetricMemory::Outcome> outcome = Register(request, use);
  if (outcome.ok()) {
    if (!outcome->refusal.ok()) return std::move(outcome->refusal);
    if (outcome->window == nullptr)
      TUTTI_INFO(kLogInit, "there is no window of {} bytes: {}", request.bytes,
                 outcome->why_none.message());
    return std::move(outcome->window);
  }
  return StopAfterStep(std::move(outcome).status());
}

Status Communicator::StopAfterStep(Status failure) {
  // The watch does not follow every wait.
  if (failure.code() == Code::kTimeout) watch_->FindHungRanks();
  Status status = watch_->FirstReason(std::move(failure));
  if (watch_->stopped()) return watch_->StopReason();
  watch_->Stop(status, /*tell=*/true);
  return status;
}

Status Communicator::AgreeInStep(const std::string& step, const Status& mine) {
  const Watch::Step here(*watch_, "in " + step);
  return Concluded(ranks().Agree(mine));
}

Result<SymmetricMemory::Outcome> Communicator::Register(const SymmetricMemory::Request& request,
                                                        WindowUse use) {
  const JointRanks ranks = this->ranks();
  TUTTI_ASSIGN(SymmetricMemory::Outcome outcome, symmetric_->Register(request, ranks));
  if (outcome.window == nullptr) return outcome;
  TUTTI_ASSIGN(Agreement shared, ShareWithOthers(*outcome.window, use, ranks));
  if (shared.go_on()) {
    TUTTI_ASSIGN(shared, device_communicators_.ShareDirect(*outcome.window));
  }
  if (!shared.go_on()) {
    TUTTI_TRY(DeregisterWindow(outcome.window->handle));
    return SymmetricMemory::Outcome{.refusal = std::move(shared.refusal)};
  }
  UseInOperations(*outcome.window, (request.flags & NCCL_WIN_COLL_SYMMETRIC) != 0);
  return outcome;
}

// Has operations work in this rank's part of a window. Operations work in all parts where the user
// promises symmetric use, the parts have one length, and all are within reach.
void Communicator::UseInOperations(const Window& window, bool is_symmetric) {
  const bool alike = std::all_of(window.bytes.begin(), window.bytes.end(),
                                 [&](uint64_t bytes) { return bytes == window.bytes[0]; });
  const bool in_all = is_symmetric && window.team.size == num_ranks() && alike;
  Operations::ReachedWindow reached = {window.own, {}};
  for (int r = 0; r < num_ranks() && in_all; ++r)
    reached.parts.push_back(r == rank() ? window.own.data() : window.At(r, 0));
  const void* const token = operations_->Register(std::move(reached));
  if (token == nullptr) return;
  const MutexLock lock(registrations_mutex_);
  registrations_[window.handle] = token;
}

bool Communicator::CanDoOneSided() const {
  if (!symmetric_->has_flat_space()) return false;
  return symmetric_->team().size == num_ranks() || HasOneSidedNetwork();
}

bool Communicator::HasOneSidedNetwork() const {
  const std::shared_ptr<Net> network = operations_->one_sided_network().net;
  return network != nullptr && network->rma() != nullptr;
}

bool Communicator::CanDoGin() const { return settings_.gin_enable && CanDoOneSided(); }

Result<OneSided*> Communicator::one_sided() {
  if (!CanDoOneSided())
    return InvalidUsage("one-sided calls do not reach all ranks of this communicator");
  const MutexLock lock(registrations_mutex_);
  if (!why_no_one_sided_.ok()) return why_no_one_sided_;
  if (one_sided_ == nullptr)
    return InvalidUsage("one-sided calls need a window: all ranks register one first");
  return one_sided_.get();
}

// Lets ranks outside the team reach a window by one-sided calls. The first window, on GPUs the
// first of the program's own, makes the common parts of all windows. All ranks call this together.
Result<Agreement> Communicator::ShareWithOthers(const Window& window, WindowUse use,
                                                const JointRanks& ranks) {
  if (!CanDoOneSided()) return Agreement();
  Result<OneSided*> one_sided = this->one_sided();
  if (!one_sided.ok()) {
    if (device_->manner().one_sided_on_streams) {
      if (use == WindowUse::kResource) return Agreement();
      Status made = MakeGpuOneSided();
      const MutexLock lock(registrations_mutex_);
      why_no_one_sided_ = std::move(made);
      return Agreement();
    }
    TUTTI_TRY(MakeOneSided(ranks));
    one_sided = this->one_sided();
  }
  if (!one_sided.ok() || (*one_sided)->remote() == nullptr) return Agreement();
  return (*one_sided)->remote()->Share(window, use == WindowUse::kResource, ranks.limits());
}

// Makes the common parts of one-sided calls: the window with the counters of signals, and the
// connections to ranks outside the team. REQUIRES: CanDoOneSided().
Status Communicator::MakeOneSided(const JointRanks& ranks) {
  SymmetricMemory::Request request;
  request.bytes = HostOneSided::SignalBytes(num_ranks());
  TUTTI_ASSIGN(const SymmetricMemory::Outcome counters, symmetric_->Register(request, ranks));
  if (counters.window == nullptr) {
    TUTTI_WARN("there are no one-sided calls: {}", counters.refusal.message());
    return Status::Ok();
  }
  HostOneSided::Parts parts;
  parts.rank = rank();
  parts.signals = counters.window;
  parts.watch = watch_.get();
  parts.wait_policy = operations_->wait_policy();
  if (symmetric_->team().size < num_ranks()) {
    const Operations::OneSidedNetwork network = operations_->one_sided_network();
    TUTTI_ASSIGN(parts.remote, RemoteWindows::Connect({.ranks = ranks,
                                                       .team = symmetric_->team(),
                                                       .loop = &process_.proxy().loop(),
                                                       .network = network.net,
                                                       .device = network.device,
                                                       .groups = network.groups,
                                                       .watch = watch_.get()}));
    TUTTI_TRY(parts.remote->Share(*counters.window, true, ranks.limits()).status());
  }
  const MutexLock lock(registrations_mutex_);
  one_sided_ = std::make_unique<HostOneSided>(std::move(parts));
  return Status::Ok();
}

// Makes the parts of GPUs' one-sided calls with the first window. Comes out alike on all ranks.
// Where one-sided calls cannot be had, windows still serve everything else.
Status Communicator::MakeGpuOneSided() {
  TUTTI_ASSIGN(GpuGin::ForStreams gin,
               device_communicators_.gpu_gin().MakeForStreams(GpuOneSided::PlanFor(num_ranks())));
  // The proxy has been made on the device, so this does not fail on one rank alone.
  TUTTI_ASSIGN(const cuda::Device* const device, device_->OpenGpu());
  auto made = std::make_unique<GpuOneSided>(
      GpuOneSided::Parts{
          .rank = rank(), .device = device, .symmetric = symmetric_.get(), .watch = watch_.get()},
      std::move(gin));
  const MutexLock lock(registrations_mutex_);
  calls_on_streams_.store(made.get(), std::memory_order_release);
  one_sided_ = std::move(made);
  return Status::Ok();
}

// Takes the window from the operations first, after the last kernel and put that may still use the
// window. Gives the memory back last.
Status Communicator::DeregisterWindow(ncclWindow_t handle) {
  TUTTI_TRY(symmetric_->Find(handle).status());
  const void* token = nullptr;
  {
    const MutexLock lock(registrations_mutex_);
    if (const auto found = registrations_.find(handle); found != registrations_.end())
      token = found->second;
  }
  // Where the device cannot tell whether its work is done, the memory stays mapped.
  TUTTI_TRY(operations_->Forget(token));
  if (OneSided* const calls = calls_on_streams_.load(std::memory_order_acquire)) calls->AwaitPuts();
  {
    const MutexLock lock(registrations_mutex_);
    registrations_.erase(handle);
    if (one_sided_ && one_sided_->remote() != nullptr) one_sided_->remote()->Forget(handle);
  }
  device_communicators_.ForgetDirect(handle);
  return symmetric_->Deregister(handle);
}

std::string Communicator::DescribeAsJson() const {
  std::string peers;
  for (int r = 0; r < num_ranks(); ++r) {
    const PeerInfo& peer = peers_[static_cast<size_t>(r)];
    // A host name has no characters that JSON would escape; the name of a plugin may.
    peers += fmt::format("{}{{\"rank\": {}, \"host\": \"{}\", \"pid\": {}, \"transport\": {:?}}}",
                         r == 0 ? "" : ", ", r, peer.host, peer.pid,
                         r == rank() ? "self" : operations_->TransportTo(r));
  }
  const std::vector<int>& leaders = operations_->machines().leader;
  const std::set<int> machines(leaders.begin(), leaders.end());
  return fmt::format(
      "{{\"rank\": {}, \"ranks\": {}, \"hosts\": {}, \"protection\": {}, \"peers\": [{}]}}", rank(),
      num_ranks(), machines.size(), DescribeProtection(), peers);
}

std::string Communicator::DescribeProtection() const {
  const Operations::NetworkNames network = operations_->network_names();
  const std::string secret = !settings_.encryption_key.empty()  ? "ncclSetEncryption"
                             : !settings_.secret_source.empty() ? settings_.secret_source
                                                                : "none";
  return fmt::format("{{\"network\": {:?}, \"encrypted\": {}, \"cipher\": {:?}, \"secret\": {:?}}}",
                     network.name, !network.cipher.empty(), network.cipher, secret);
}

void Communicator::LogTransports() const {
  TUTTI_INFO(kLogInit, "communicator {}{}{:016x}, rank {} of {}: {}", name_,
             name_.empty() ? "" : " ", bootstrap_->id(), rank(), num_ranks(),
             operations_->DescribeTransports());
}

}  // namespace tutti
