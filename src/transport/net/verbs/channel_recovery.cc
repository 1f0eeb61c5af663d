// How a channel notices that its queue pairs are lost, and how it makes them again; channel.h has
// the rules.

#include <algorithm>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "transport/net/verbs/channel.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// Queue pairs that are lost so often in a row, without one message in between, are given up: each
// loss may cost what NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say.
constexpr int kMostLossesInARow = 3;

// So often in a row they are lost before a device is left for its spares although its ports are
// active.
constexpr int kLossesBeforeSpares = 2;

// A connection that loses its queue pairs again and again warns once in this time.
constexpr int64_t kBetweenWarningsNs = 60'000'000'000;

// The longest time after which it is looked whether a port can be used again; the shortest is
// kReturnAfterNs. Each return doubles it, so that a port which comes and goes is left alone.
constexpr int64_t kReturnAtMostNs = 64'000'000'000;

}  // namespace

uint32_t VerbsChannel::Active() const {
  uint32_t active = 0;
  for (size_t i = 0; i < ports_.ports.size(); ++i) {
    const UsedPort& port = ports_.ports[i];
    if (port.nic->fault().ok() && port.nic->IsActive(port.port)) active |= 1u << i;
  }
  return active & ~barred_;
}

// Ports behind which the other end did not answer are left out while others can be tried: its own
// at once, spares after another loss.
uint32_t VerbsChannel::Usable() {
  const uint32_t active = Active();
  const uint32_t sound = active & ~suspects_;
  if ((sound & Own()) != 0 || (sound != 0 && losses_in_a_row_ >= kLossesBeforeSpares)) return sound;
  suspects_ = 0;
  return active;
}

Status VerbsChannel::Place(const VerbsEnd* offer) {
  // Where there is no choice, a port that is down now may be up when it is needed.
  const uint32_t usable = ports_.ports.size() == 1 ? 1 : Usable();
  PairPlaces theirs;
  if (offer) theirs = PlacesOf(*offer);
  const bool goes_with = offer && theirs.port_of.size() == pairs_.size();
  const std::vector<uint8_t> places = PlacePairs(
      pairs_.size(), {ports_.own, ports_.ports.size(), usable}, goes_with ? &theirs : nullptr);
  for (Queue& queue : queues_) queue.used = false;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    TUTTI_TRY(Put(pairs_[i], places[i], depths_));
    queues_[queue_of_[places[i]]].used = true;
  }
  missed_ = Own() & ~usable;
  return_at_ns_ = NowNs() + return_after_ns_;
  return PlaceLoopbacks();
}

std::string VerbsChannel::PortsInUse() const {
  std::string all;
  for (size_t port = 0; port < ports_.ports.size(); ++port) {
    const bool used = std::any_of(pairs_.begin(), pairs_.end(),
                                  [&](const Pair& pair) { return pair.port == port; });
    if (used) all += (all.empty() ? "" : "+") + Where(port);
  }
  return all;
}

Status VerbsChannel::Stop(const std::vector<Pair>& pairs) const {
  for (const Pair& pair : pairs) {
    Status stopped = pair.pair->Stop();
    // A NIC that has failed carries nothing any more.
    if (!stopped.ok() && ports_.ports[pair.port].nic->fault().ok()) return stopped;
  }
  return Status::Ok();
}

Status VerbsChannel::Describe(const ibv_wc& completion, std::string_view doing, size_t port) const {
  return DescribeCompletion(nic().library(), completion, doing, Where(port), remote_.name,
                            options());
}

// Two NICs may have queue pairs of one number.
VerbsChannel::Source VerbsChannel::SourceOf(const ibv_wc& completion) const {
  for (const auto* const pairs : {&pairs_, &loopbacks_}) {
    for (const Pair& pair : *pairs) {
      if (pair.pair->number() == completion.qp_num && queue_of_[pair.port] == fetched_from_)
        return {pair.port, pairs == &loopbacks_};
    }
  }
  return {};
}

Status VerbsChannel::FailCompletion(const ibv_wc& completion, std::string_view doing) {
  return Fail(Describe(completion, doing, SourceOf(completion).port));
}

Status VerbsChannel::Lose(const ibv_wc& completion, std::string_view doing) {
  const Source source = SourceOf(completion);
  if (source.is_loopback) loops_ = false;
  if (lost()) return Status::Ok();  // Work of lost queue pairs completes with an error.
  Status why = Describe(completion, doing, source.port);
  if (!MayRecover(completion.status)) return Fail(std::move(why));
  const bool unanswered = completion.status == IBV_WC_RETRY_EXC_ERR;
  if (unanswered) suspects_ |= 1u << source.port;
  return Lose(std::move(why), unanswered && !source.is_loopback ? Loss::kUnanswered : Loss::kSeen);
}

Status VerbsChannel::Lose(Status why, Loss loss) {
  if (lost()) return Status::Ok();
  const bool seen = loss == Loss::kSeen || loss == Loss::kUnanswered;
  if (!recovers_ || !open() || (seen && ++losses_in_a_row_ > kMostLossesInARow)) {
    return Fail(std::move(why));
  }
  stage_ = Stage::kLost;
  lost_because_ = std::move(why);
  lost_since_ns_ = NowNs();
  Status stopped = Stop(pairs_);
  // The other end may have left, and what came from it is still to be read back.
  if (stopped.ok() && loss != Loss::kUnanswered && loss != Loss::kTold) {
    loops_ = false;
    stopped = Stop(loopbacks_);
  }
  if (!stopped.ok()) return Fail(std::move(stopped));
  // A control socket that has ended shows in Listen.
  if (loss != Loss::kTold) [[maybe_unused]]
    const Status told = control_.Send(ControlType::kLost, {});
  return Status::Ok();
}

Status VerbsChannel::CheckLost() {
  if (NowNs() - lost_since_ns_ < options().resume_within_ns) return Status::Ok();
  return Fail(
      Status(lost_because_.code(),
             fmt::format("{}; the queue pairs could not be joined again within {} s "
                         "(TUTTI_RESUME_TIMEOUT_S)",
                         lost_because_.message(), options().resume_within_ns / 1'000'000'000)));
}

// Returns why the connection cannot be used, after a look at what the NICs have reported meanwhile.
// A queue pair that failed by an event is lost as one is that failed by a completion.
Status VerbsChannel::failure() {
  if (!failure_.ok()) return failure_;
  if (shut_down_.load(std::memory_order_acquire)) return Fail(Status::Ok());
  if (lost()) return CheckLost();
  for (const Queue& queue : queues_) {
    if (!queue.used) continue;
    if (Status fault = queue.nic->fault(); !fault.ok()) return LeaveNic(std::move(fault));
    if (queue.nic->AnyPairFailed()) [[unlikely]]
      TUTTI_TRY(CheckPairs(*queue.nic));
  }
  return ports_.ports.size() > 1 ? CheckPorts() : Status::Ok();
}

// The NIC has failed, and with it all of its ports.
Status VerbsChannel::LeaveNic(Status fault) {
  return open() && recovers_ && Active() != 0 ? Lose(std::move(fault), Loss::kSeen)
                                              : Fail(std::move(fault));
}

Status VerbsChannel::CheckPairs(const VerbsNic& nic) {
  for (const auto* const pairs : {&pairs_, &loopbacks_}) {
    for (const Pair& pair : *pairs) {
      if (ports_.ports[pair.port].nic.get() != &nic) continue;
      Status fault = nic.PairFault(pair.pair->number());
      if (fault.ok()) continue;
      // An access of the other end to memory that it was not given would only happen again.
      if (!open() || fault.code() == Code::kRemoteError) return Fail(std::move(fault));
      return Lose(std::move(fault), Loss::kSeen);
    }
  }
  return Status::Ok();
}

// Leaves a port that has gone down for one that is up, without waiting until the NIC gives up on
// what is under way; and comes back to ports that had to be left.
Status VerbsChannel::CheckPorts() {
  if (!open() || !recovers_) return Status::Ok();
  uint32_t changes = 0;
  for (const Queue& queue : queues_) changes += queue.nic->port_changes();
  const bool changed = changes != seen_changes_;
  if (!changed && (missed_ == 0 || NowNs() < return_at_ns_)) return Status::Ok();
  seen_changes_ = changes;
  const uint32_t active = Active();
  for (const Pair& pair : pairs_) {
    if ((active >> pair.port & 1) == 0 && active != 0)
      return Lose(SystemError("{} is down", Where(pair.port)), Loss::kPlanned);
  }
  if (missed_ == 0 || NowNs() < return_at_ns_) return Status::Ok();
  return_at_ns_ = NowNs() + return_after_ns_;
  if ((active & missed_) == 0) return Status::Ok();
  suspects_ &= ~active;
  return_after_ns_ = std::min(2 * return_after_ns_, kReturnAtMostNs);
  return Lose(SystemError("{} can be used again", ports_.Name()), Loss::kPlanned);
}

// Makes the queue pairs ready to be joined again. Both ends begin with new packet numbers, and
// completions are told from those of the life before (Mark).
Status VerbsChannel::Renew(const VerbsEnd* offer) {
  if (Active() == 0) {
    return Status(lost_because_.code(),
                  fmt::format("{}; {} has no active port, and no other can take its place",
                              lost_because_.message(), ports_.Name()));
  }
  first_packet_ = static_cast<uint32_t>(RandomU64() & 0xffffff);
  life_ = (life_ + 1) % kLives;
  return Place(offer);
}

void VerbsChannel::TellRecovered(size_t repeated) {
  const int64_t now_ns = NowNs();
  const std::string line = fmt::format(
      "net IB: the connection with {} lost its queue pairs ({}) and goes on over {} after {} ms; "
      "{} messages are sent a second time",
      peer_, lost_because_.message(), PortsInUse(), (now_ns - lost_since_ns_) / 1'000'000,
      repeated);
  if (told_ns_ != 0 && now_ns - told_ns_ < kBetweenWarningsNs) {
    TUTTI_INFO(kLogNet, "{}", line);
    return;
  }
  told_ns_ = now_ns;
  TUTTI_WARN("{}", line);
}

}  // namespace tutti
