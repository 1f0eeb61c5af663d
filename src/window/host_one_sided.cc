#include "window/host_one_sided.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/copy.h"

namespace tutti {
namespace {

// How long a leaving rank waits for others to take its puts. The communicator's own time-outs find
// a stuck rank.
constexpr double kFinishS = 60;

}  // namespace

HostOneSided::HostOneSided(Parts parts)
    : rank_(parts.rank),
      signals_(std::move(parts.signals)),
      remote_(std::move(parts.remote)),
      watch_(*parts.watch),
      wait_(parts.watch->stop_flag(), parts.wait_policy, *parts.watch),
      taken_(signals_->bytes.size()) {}

uint64_t HostOneSided::SignalBytes(int num_ranks) {
  return static_cast<uint64_t>(num_ranks) * sizeof(Counter);
}

Result<std::shared_ptr<const OneSidedCall>> HostOneSided::MakePut(Put put) {
  return std::shared_ptr<const OneSidedCall>(std::make_shared<OneSidedFunction>(
      /*waits=*/false, [this, put = std::move(put)](void*) { return RunPut(put); }));
}

std::shared_ptr<const OneSidedCall> HostOneSided::MakeWait(std::vector<Awaited> awaited) {
  return std::make_shared<OneSidedFunction>(
      /*waits=*/true, [this, awaited = std::move(awaited)](void*) { return RunWait(awaited); });
}

// Returns the counter of signals from rank `from` at `place` of the team. This rank's own counter
// has two addresses. The result is the address at which the network counts, because the thread
// sanitizer tells memory by its address.
HostOneSided::Counter& HostOneSided::CounterAt(int place, int from) const {
  std::byte* const counters =
      place == signals_->team.place ? signals_->own.data() : signals_->At(place, 0);
  return reinterpret_cast<Counter*>(counters)[from];
}

Status HostOneSided::RunPut(const Put& put) {
  if (watch_.stopped()) return watch_.StopReason();
  if (signals_->team.Has(put.peer)) return PutInTeam(put);
  const RemoteWindows::Place to = {put.window ? put.window->handle : nullptr, put.offset};
  Status status = remote_->Put(put.peer, to, put.data,
                               {signals_->handle, static_cast<uint64_t>(rank_) * sizeof(Counter)});
  if (status.ok()) return status;
  status = watch_.FirstReason(std::move(status), put.peer);
  watch_.Stop(status, /*tell=*/true);
  return watch_.StopReason();
}

Status HostOneSided::PutInTeam(const Put& put) {
  const int place = put.peer - signals_->team.first;
  if (!put.data.empty())
    CopyBytes(put.window->At(place, put.offset), put.data.data(), put.data.size());
  Counter& counter = CounterAt(place, rank_);
  counter.count.fetch_add(1, std::memory_order_release);
  WakeSleepers(counter.count, counter.sleepers);
  return Status::Ok();
}

Status HostOneSided::RunWait(std::span<const Awaited> awaited) {
  wait_.Reset();
  for (const Awaited& each : awaited) {
    const uint64_t until = taken_[static_cast<size_t>(each.peer)] + each.count;
    if (!Await(each.peer, until)) {
      Status status = watch_.FirstReason(wait_.status(), each.peer);
      watch_.Stop(status, /*tell=*/true);
      return watch_.StopReason();
    }
    taken_[static_cast<size_t>(each.peer)] = until;
  }
  return Status::Ok();
}

// Waits until `peer` has signalled `until` times in all. Returns false where the wait has ended for
// another reason.
bool HostOneSided::Await(int peer, uint64_t until) {
  Counter& counter = CounterAt(signals_->team.place, peer);
  uint64_t seen = 0;
  const auto arrived = [&] {
    seen = counter.count.load(std::memory_order_acquire);
    return seen >= until;
  };
  if (arrived()) return true;
  // Asking ranks learn of the wait by the step, which begins when the wait is long enough for
  // questions.
  std::optional<Watch::Step> step;
  const auto tell = [&] {
    if (!step)
      step.emplace(watch_, fmt::format("in ncclWaitSignal, for a signal of rank {}", peer));
  };
  if (signals_->team.Has(peer)) {
    return wait_.Wait(peer, arrived, [&](int64_t timeout_ns) {
      tell();
      SleepUntilChanged(counter.count, seen, counter.sleepers, timeout_ns);
    });
  }
  RmaConnection& connection = remote_->connection(peer);
  const RmaConnection::Inside inside(connection);
  const auto arrived_by_network = [&] {
    if (arrived()) return true;
    const Result<bool> moved = connection.Progress();
    if (!moved.ok()) wait_.Fail(moved.status());
    return moved.ok() && arrived();
  };
  return wait_.Wait(peer, arrived_by_network, [&](int64_t timeout_ns) {
    tell();
    const Deadline end = Deadline::After(timeout_ns);
    while (!end.Passed() && !wait_.failed() && !arrived_by_network()) connection.Sleep(timeout_ns);
  });
}

void HostOneSided::Finish() {
  if (remote_ != nullptr && !watch_.stopped()) remote_->Finish(Deadline::AfterSeconds(kFinishS));
}

}  // namespace tutti
