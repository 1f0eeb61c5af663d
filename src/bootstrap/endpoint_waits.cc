// The waits of an Endpoint's calls for other ranks, by the rule of time of base/long_wait.h.

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "bootstrap/endpoint.h"

namespace tutti {
namespace {

// A wait looks at its abort flag, and at the clock, this often. Less often than LongWait demands, a
// wait would take its own sleep for a pause of the process.
constexpr int64_t kAbortCheckNs = int64_t{kAbortCheckMs} * 1'000'000;
constexpr int64_t kLookNs = 500'000'000;
static_assert(kLookNs < LongWait::kStoodStillNs);
// A rank that waits for a rank which waits itself reports its time-out this much later.
constexpr int64_t kNearerGraceNs = 1'000'000'000;
// A rank tells its links again and again who holds it up. Its last word counts for kFreshNs, which
// is longer than the grace: a rank that has come to its time-out says nothing more.
constexpr int64_t kTellHolderNs = 300'000'000;
constexpr int64_t kFreshNs = kNearerGraceNs + 2 * kLookNs;

}  // namespace

void Endpoint::SetWaitListener(Membership& membership, WaitListener* listener) {
  const MutexLock lock(mutex_);
  membership.listener = listener;
}

void Endpoint::Postpone(Membership& membership, Deadline deadline, Deadline until) {
  const MutexLock lock(mutex_);
  membership.postponed_ns = deadline.at_ns();
  membership.postponed_to_ns = until.at_ns();
}

// Returns why a wait of this membership must end, apart from its peer and the time.
Status Endpoint::Interrupted(const Membership& membership, const std::atomic<bool>* abort_flag) {
  if (!membership.cancelled.ok()) return membership.cancelled;
  const std::atomic<bool>* const own_flag = membership.abort_flag;
  for (const std::atomic<bool>* flag : {own_flag, abort_flag}) {
    if (flag && flag->load(std::memory_order_acquire))
      return InternalError("aborted by the caller");
  }
  return Status::Ok();
}

Endpoint::MemberWait Endpoint::BeginWait(const Membership& membership, const char* what, int rank,
                                         Deadline deadline, const std::atomic<bool>* abort_flag) {
  MemberWait wait = {.what = what, .rank = rank, .deadline = deadline, .abort_flag = abort_flag};
  const int64_t now_ns = NowNs();
  wait.followed_ns = now_ns;
  wait.time.Begin(now_ns);
  const int64_t at_ns =
      deadline.at_ns() == membership.postponed_ns ? membership.postponed_to_ns : deadline.at_ns();
  if (deadline.at_ns() != Deadline::Never().at_ns())
    wait.timeout_ns = std::max<int64_t>(1, at_ns - now_ns);
  return wait;
}

// Returns why the wait must end; success where the wait goes on. Sets `sleep_ns` to the time until
// the next look, 0 where the mutex was free meanwhile and the caller must look again.
Status Endpoint::CheckWait(Membership& membership, MemberWait& wait, int64_t& sleep_ns) {
  if (!membership.cancelled.ok()) return membership.cancelled;
  TUTTI_TRY(memberships_.CheckAwaited(membership, wait.rank));
  if (Status why = Interrupted(membership, wait.abort_flag); !why.ok())
    return std::move(why).Annotate(
        fmt::format("waiting for {} {}", wait.what, memberships_.NameOf(membership, wait.rank)));
  const int64_t now_ns = NowNs();
  const int64_t slice_ns = membership.abort_flag || wait.abort_flag ? kAbortCheckNs : kLookNs;
  const int64_t waits_ns = wait.timeout_ns + wait.grace_ns;
  const int64_t left_ns =
      wait.timeout_ns == 0 ? slice_ns : waits_ns - (now_ns - wait.time.since_ns());
  sleep_ns = std::min(slice_ns, left_ns);
  if (left_ns > 0 && now_ns - wait.followed_ns < slice_ns) return Status::Ok();
  sleep_ns = 0;
  wait.followed_ns = now_ns;
  return TellListener(membership, wait);
}

// Sleeps until the wait may be over. Returns why the wait must end; success where the caller must
// look again. A change from before the sleep would be missed, so there is no sleep after the mutex
// was free.
Status Endpoint::AwaitChange(MutexLock& lock, Membership& membership, MemberWait& wait) {
  int64_t sleep_ns = 0;
  TUTTI_TRY(CheckWait(membership, wait, sleep_ns));
  if (sleep_ns > 0) membership.changed.WaitFor(lock, std::chrono::nanoseconds(sleep_ns));
  return Status::Ok();
}

std::function<Status()> Endpoint::FollowWait(Membership& membership, const char* what, int rank,
                                             Deadline deadline,
                                             const std::atomic<bool>* abort_flag) {
  const MutexLock beginning(mutex_);
  return [this, &membership,
          wait = BeginWait(membership, what, rank, deadline, abort_flag)]() mutable {
    const MutexLock lock(mutex_);
    int64_t unused = 0;
    return CheckWait(membership, wait, unused);
  };
}

// Follows the rule of time. The listener is called without the mutex, since the listener sends
// messages by this endpoint.
Status Endpoint::TellListener(Membership& membership, MemberWait& wait) {
  const int64_t since_ns = wait.time.since_ns();
  const bool polls = wait.timeout_ns != 0 && wait.timeout_ns < LongWait::kFewestWarnNs;
  const bool has_parent = membership.parent != nullptr;
  WaitListener* const listener = has_parent ? membership.parent->listener : membership.listener;
  Status status;
  if (listener == nullptr || polls) {
    status = TellOfWait(membership, wait);
  } else {
    const int rank =
        has_parent ? membership.parent_ranks[static_cast<size_t>(wait.rank)] : wait.rank;
    const MutexUnlock free(mutex_);
    status = listener->OnJointWait(rank, wait.time, wait.timeout_ns);
  }
  if (wait.time.since_ns() != since_ns) {
    membership.postponed_ns = wait.deadline.at_ns();
    membership.postponed_to_ns = wait.time.since_ns() + wait.timeout_ns;
  }
  return status;
}

// Returns the rank that holds up all ranks on the way from `rank`: each rank tells the rank that it
// waits for, or the rank that holds up this rank in turn. The told numbers are those of the
// endpoint's first communicator, and mean other ranks in a communicator that is made from it.
int Endpoint::HolderOf(const Membership& membership, int rank) {
  if (membership.frame_id != 0 || !membership.initialising) return rank;
  const Peer& peer = peers_[membership.members[static_cast<size_t>(rank)]];
  const bool fresh = peer.held_up_ns != 0 && NowNs() - peer.held_up_ns < kFreshNs;
  return fresh && peer.held_up_by != membership.rank ? peer.held_up_by : rank;
}

// Warns of a wait that nobody else knows of, and ends the wait at the time-out.
Status Endpoint::TellOfWait(Membership& membership, MemberWait& wait) {
  const int64_t now_ns = NowNs();
  const int holder = HolderOf(membership, wait.rank);
  const bool is_first = membership.parent == nullptr && membership.initialising;
  if (is_first && wait.time.waited_ns() >= LongWait::kAskAfterNs &&
      now_ns - membership.told_ns >= kTellHolderNs) {
    membership.told_ns = now_ns;
    links_.SendOnAll(
        EncodeFrame({.type = LinkFrameType::kHeldUp, .tag = static_cast<uint32_t>(holder)}, {}));
  }
  if (holder != wait.rank) wait.grace_ns = kNearerGraceNs;
  const int64_t timeout_ns = wait.timeout_ns == 0 ? 0 : wait.timeout_ns + wait.grace_ns;
  const LongWait::Due due = wait.time.Look(now_ns, timeout_ns);
  const bool warn =
      due.warn && now_ns - membership.warned_ns >= LongWait::WarnInterval(wait.timeout_ns);
  if (!due.over && !warn) return Status::Ok();
  const std::string making =
      fmt::format(", making communicator{}{}", membership.name.empty() ? "" : " ", membership.name);
  const std::string held_up =
      holder != wait.rank ? fmt::format(", held up by {}", memberships_.NameOf(membership, holder))
                          : "";
  const std::string text = fmt::format(
      "{} has waited {:.1f} s for {} {}{}{}. TUTTI_INIT_TIMEOUT_S sets how long is waited",
      memberships_.NameOf(membership, membership.rank), wait.time.waited_s(), wait.what,
      memberships_.NameOf(membership, wait.rank), held_up, membership.initialising ? making : "");
  if (due.over) return Timeout("{}", text);
  membership.warned_ns = now_ns;
  TUTTI_WARN("{}", text);
  return Status::Ok();
}

}  // namespace tutti
