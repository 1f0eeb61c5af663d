#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "operations/host_operations.h"
#include "window/host_flat_space.h"

namespace tutti {

Communicator::~Communicator() {
  if (operations_) operations_->Finish();
  device_communicators_.Clear();
  if (const MutexLock lock(registrations_mutex_); one_sided_) one_sided_->Finish();
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

void Communicator::MakeSymmetricMemory() {
  const PeerInfo& self = peers_[static_cast<size_t>(rank())];
  const bool on_host = cuda_device_ < 0;
  const int team_size = on_host ? LsaTeamSize(operations_->machines().leader, /*wished=*/0) : 1;
  std::unique_ptr<FlatSpace> space;
  if (on_host) {
    const auto ranks_here = std::count_if(peers_.begin(), peers_.end(), [&](const PeerInfo& peer) {
      return SameProcess(peer, self);
    });
    space = MakeHostFlatSpace(process_.memory(), process_.fd_server(), team_size,
                              static_cast<int>(ranks_here), /*stride=*/0);
  }
  symmetric_ =
      std::make_unique<SymmetricMemory>(SymmetricMemory::Parts{.bootstrap = bootstrap_.get(),
                                                               .peers = peers_,
                                                               .team = LsaTeamOf(rank(), team_size),
                                                               .space = std::move(space),
                                                               .records = MakeHostRecordMemory(),
                                                               .directory = &process_.windows()});
}

Result<std::shared_ptr<const Window>> Communicator::RegisterWindow(
    const SymmetricMemory::Request& request) {
  const Watch::Step step(*watch_, "in ncclCommWindowRegister");
  Result<SymmetricMemory::Outcome> outcome = Register(request);
  if (outcome.ok()) {
    if (outcome->refusal.ok()) return std::move(outcome->window);
    return std::move(outcome->refusal);
  }
  Status status = watch_->FirstReason(std::move(outcome).status());
  if (watch_->stopped()) return watch_->StopReason();
  // Some ranks may have got further than others: nothing that all do together would fit any more.
  if (status.code() == Code::kTimeout) status = watch_->Explain(status, bootstrap_->LinkedRanks());
  watch_->Stop(status, /*tell=*/true);
  return status;
}

Result<SymmetricMemory::Outcome> Communicator::Register(const SymmetricMemory::Request& request) {
  // Whatever ends the communicator, on any rank, ends this as well.
  const std::atomic<bool>* const abort_flag = &watch_->stop_flag();
  const Deadline deadline = InitDeadline();
  TUTTI_ASSIGN(SymmetricMemory::Outcome outcome,
               symmetric_->Register(request, deadline, abort_flag));
  if (outcome.window == nullptr) return outcome;
  TUTTI_TRY(ShareWithOthers(*outcome.window, deadline, abort_flag));
  if ((request.flags & NCCL_WIN_COLL_SYMMETRIC) == 0) return outcome;
  TUTTI_ASSIGN(const Operations::Registration registration,
               operations_->Register(outcome.window->own, deadline, abort_flag));
  if (!registration.refused.ok())
    TUTTI_INFO(kLogInit, "operations gain nothing by a window of {} bytes: {}", request.bytes,
               registration.refused.message());
  if (registration.token != nullptr) {
    const MutexLock lock(registrations_mutex_);
    registrations_[outcome.window->handle] = registration.token;
  }
  return outcome;
}

bool Communicator::CanDoOneSided() const {
  if (!symmetric_->has_flat_space()) return false;
  if (symmetric_->team().size == num_ranks()) return true;
  const auto& shared = static_cast<const HostOperations&>(*operations_).shared_with_one_sided();
  return shared.network != nullptr && shared.network->rma() != nullptr;
}

Result<OneSided*> Communicator::one_sided() {
  if (!CanDoOneSided())
    return InvalidUsage("one-sided calls do not reach all ranks of this communicator");
  const MutexLock lock(registrations_mutex_);
  if (one_sided_ == nullptr)
    return InvalidUsage("one-sided calls need a window: all ranks register one first");
  return one_sided_.get();
}

// Lets ranks outside the team reach a window by one-sided calls, after what all windows share was
// made with the first one. All ranks call it together.
Status Communicator::ShareWithOthers(const Window& window, Deadline deadline,
                                     const std::atomic<bool>* abort_flag) {
  if (!CanDoOneSided()) return Status::Ok();
  Result<OneSided*> one_sided = this->one_sided();
  if (!one_sided.ok()) {
    TUTTI_TRY(MakeOneSided(deadline, abort_flag));
    one_sided = this->one_sided();
  }
  if (!one_sided.ok() || (*one_sided)->remote() == nullptr) return Status::Ok();
  return (*one_sided)->remote()->Share(window, deadline);
}

Status Communicator::MakeOneSided(Deadline deadline, const std::atomic<bool>* abort_flag) {
  SymmetricMemory::Request request;
  request.bytes = OneSided::SignalBytes(num_ranks());
  TUTTI_ASSIGN(const SymmetricMemory::Outcome counters,
               symmetric_->Register(request, deadline, abort_flag));
  if (counters.window == nullptr) {
    TUTTI_WARN("there are no one-sided calls: {}", counters.refusal.message());
    return Status::Ok();
  }
  const auto& shared = static_cast<HostOperations&>(*operations_).shared_with_one_sided();
  OneSided::Parts parts;
  parts.rank = rank();
  parts.signals = counters.window;
  parts.watch = watch_.get();
  parts.wait_policy = shared.wait_policy;
  if (symmetric_->team().size < num_ranks()) {
    TUTTI_ASSIGN(parts.remote, RemoteWindows::Connect({.bootstrap = bootstrap_.get(),
                                                       .peers = peers_,
                                                       .team = symmetric_->team(),
                                                       .loop = &process_.proxy().loop(),
                                                       .network = shared.network,
                                                       .device = shared.network_device,
                                                       .watch = watch_.get()},
                                                      deadline));
    TUTTI_TRY(parts.remote->Share(*counters.window, deadline));
  }
  const MutexLock lock(registrations_mutex_);
  one_sided_ = std::make_unique<OneSided>(std::move(parts));
  return Status::Ok();
}

Status Communicator::DeregisterWindow(ncclWindow_t handle) {
  TUTTI_TRY(symmetric_->Find(handle).status());
  const void* token = nullptr;
  {
    const MutexLock lock(registrations_mutex_);
    if (const auto found = registrations_.extract(handle)) token = found.mapped();
    if (one_sided_ && one_sided_->remote() != nullptr) one_sided_->remote()->Forget(handle);
  }
  Status forgotten = operations_->Forget(token);
  Status gone = symmetric_->Deregister(handle);
  return forgotten.ok() ? gone : forgotten;
}

std::string Communicator::DescribeAsJson() const {
  std::string peers;
  for (int r = 0; r < num_ranks(); ++r) {
    const PeerInfo& peer = peers_[static_cast<size_t>(r)];
    // A host name has no characters that JSON would escape.
    peers += fmt::format("{}{{\"rank\": {}, \"host\": \"{}\", \"pid\": {}, \"transport\": \"{}\"}}",
                         r == 0 ? "" : ", ", r, peer.host, peer.pid,
                         r == rank() ? "self" : operations_->TransportTo(r));
  }
  const std::vector<int>& leaders = operations_->machines().leader;
  const std::set<int> machines(leaders.begin(), leaders.end());
  return fmt::format("{{\"rank\": {}, \"ranks\": {}, \"hosts\": {}, \"peers\": [{}]}}", rank(),
                     num_ranks(), machines.size(), peers);
}

void Communicator::LogTransports() const {
  TUTTI_INFO(kLogInit, "communicator {}{}{:016x}, rank {} of {}: {}", name_,
             name_.empty() ? "" : " ", bootstrap_->id(), rank(), num_ranks(),
             operations_->DescribeTransports());
}

}  // namespace tutti
