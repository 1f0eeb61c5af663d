#include "transport/net/verbs/placement.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "bootstrap/auth.h"

namespace tutti {

PairPlaces PlacesOf(const VerbsEnd& end) {
  PairPlaces places;
  places.own = end.own;
  for (const VerbsEnd::Pair& pair : end.queue_pairs) places.port_of.push_back(pair.port);
  return places;
}

Placement::Placement(const PortSet& ports, size_t pairs, const QueuePairDepths& depths,
                     uint32_t loopback_depth, CompletionQueues& completions)
    : ports_(ports),
      depths_(depths),
      loopback_depth_(loopback_depth),
      completions_(completions),
      pairs_(pairs),
      choice_(ports.own, ports.ports.size()) {}

std::vector<uint32_t> Placement::Numbers() const {
  std::vector<uint32_t> numbers;
  for (const Pair& pair : pairs_) numbers.push_back(pair.pair->number());
  return numbers;
}

PortFlags Placement::Active() const {
  PortFlags active;
  for (size_t i = 0; i < ports_.ports.size(); ++i) {
    const UsedPort& port = ports_.ports[i];
    active.set(i, port.nic->fault().ok() && port.nic->IsActive(port.port));
  }
  return active & ~barred_;
}

// The packets of a new life get random numbers, so that no late packet of an old life is taken for
// a new packet.
Status Placement::Place(const VerbsEnd* offer, int losses_in_a_row) {
  first_packet_ = static_cast<uint32_t>(RandomU64() & 0xffffff);
  PairPlaces theirs;
  if (offer) theirs = PlacesOf(*offer);
  const bool goes_with = offer && theirs.port_of.size() == pairs_.size();
  const PortFlags usable = choice_.Choose(Active(), losses_in_a_row, NowNs());
  const std::vector<uint8_t> places = PlacePairs(
      pairs_.size(), {ports_.own, ports_.ports.size(), usable}, goes_with ? &theirs : nullptr);
  for (size_t i = 0; i < pairs_.size(); ++i) TUTTI_TRY(Put(pairs_[i], places[i], depths_));
  completions_.Use(places);
  return loopbacks_.empty() ? Status::Ok() : PlaceLoopbacks();
}

// Makes a queue pair on a port, or moves the queue pair to the port. A queue pair cannot move
// between NICs: a new queue pair takes its place.
Status Placement::Put(Pair& pair, size_t port, const QueuePairDepths& depths) {
  const UsedPort& to = ports_.ports[port];
  if (pair.pair && completions_.OnOneNic(pair.port, port)) {
    TUTTI_TRY(pair.pair->Renew(to.port));
  } else {
    pair.pair.reset();
    TUTTI_ASSIGN(pair.pair, QueuePair::Create(to.nic, to.port, completions_.Of(port), depths));
  }
  pair.port = port;
  return Status::Ok();
}

Status Placement::MakeLoopbacks() {
  if (!loopbacks_.empty()) return Status::Ok();
  Status placed = PlaceLoopbacks();
  if (!placed.ok()) loopbacks_.clear();
  return placed;
}

Status Placement::PlaceLoopbacks() {
  std::vector<size_t> wanted;
  for (const Pair& pair : pairs_) {
    const bool there = std::any_of(wanted.begin(), wanted.end(), [&](size_t port) {
      return completions_.OnOneNic(port, pair.port);
    });
    if (!there) wanted.push_back(pair.port);
  }
  loopbacks_.resize(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    Pair& loop = loopbacks_[i];
    TUTTI_TRY(Put(loop, wanted[i], {loopback_depth_, 1}));
    const VerbsEnd::Port here = Describe(wanted[i]);
    TUTTI_TRY(loop.pair->Join({here, loop.pair->number(), first_packet_}, first_packet_,
                              ports_.ports.front().nic->options().traffic_class));
  }
  loops_ = true;
  return Status::Ok();
}

// A failed NIC carries no more data, so that a refusal of a failed NIC does no harm.
Status Placement::Stop(bool all) {
  if (all) loops_ = false;
  for (const auto* const pairs : {&pairs_, &loopbacks_}) {
    if (pairs == &loopbacks_ && !all) continue;
    for (const Pair& pair : *pairs) {
      Status stopped = pair.pair->Stop();
      if (!stopped.ok() && ports_.ports[pair.port].nic->fault().ok()) return stopped;
    }
  }
  return Status::Ok();
}

Status Placement::BarRefusing(const VerbsMemory& memory) {
  for (size_t port = ports_.own; port < ports_.ports.size(); ++port) {
    if (!memory.registration(port)) barred_.set(port);
  }
  for (const Pair& pair : pairs_) {
    if (barred_.test(pair.port))
      return SystemError("{} takes the place of {}, and does not take this memory",
                         Where(pair.port), ports_.Name());
  }
  return Status::Ok();
}

// A port that has gone down is left at once, before the NIC gives up its requests.
Status Placement::CheckPorts() {
  uint32_t changes = 0;
  for (const CompletionQueues::Queue& queue : completions_.queues())
    changes += queue.nic->port_changes();
  const bool due = choice_.misses() && choice_.IsDue(NowNs());
  if (changes == seen_changes_ && !due) return Status::Ok();
  seen_changes_ = changes;
  const PortFlags active = Active();
  for (const Pair& pair : pairs_) {
    if (active.any() && !active.test(pair.port)) return SystemError("{} is down", Where(pair.port));
  }
  if (!due || !choice_.Return(active, NowNs())) return Status::Ok();
  return SystemError("{} can be used again", ports_.Name());
}

Status Placement::PairFault(const VerbsNic& nic) const {
  for (const auto* const pairs : {&pairs_, &loopbacks_}) {
    for (const Pair& pair : *pairs) {
      if (ports_.ports[pair.port].nic.get() != &nic) continue;
      if (Status fault = nic.PairFault(pair.pair->number()); !fault.ok()) return fault;
    }
  }
  return Status::Ok();
}

// Queue pairs of two NICs may have the same number, so the queue of the completion counts too.
Placement::Source Placement::SourceOf(const ibv_wc& completion) const {
  for (const auto* const pairs : {&pairs_, &loopbacks_}) {
    for (const Pair& pair : *pairs) {
      if (pair.pair->number() == completion.qp_num && completions_.LastWereOf(pair.port))
        return {pair.port, pairs == &loopbacks_};
    }
  }
  return {};
}

std::string Placement::Where(size_t port) const {
  const VerbsPort& at = ports_.ports[port].port;
  return fmt::format("{} ({})", at.Name(), at.gid.ToString());
}

std::string Placement::PortsInUse() const {
  std::string all;
  for (size_t port = 0; port < ports_.ports.size(); ++port) {
    const bool used = std::any_of(pairs_.begin(), pairs_.end(),
                                  [&](const Pair& pair) { return pair.port == port; });
    if (used) all += (all.empty() ? "" : "+") + Where(port);
  }
  return all;
}

VerbsEnd::Port Placement::Describe(size_t index) const {
  const VerbsPort& port = ports_.ports[index].port;
  VerbsEnd::Port described;
  described.mtu = static_cast<uint8_t>(port.mtu);
  described.lid = port.lid;
  described.gid = port.gid.bytes;
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  described.speed_mbps = static_cast<uint32_t>(std::clamp<int64_t>(port.speed_mbps, 0, kMost));
  return described;
}

}  // namespace tutti
