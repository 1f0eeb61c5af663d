#include "bootstrap/root_client.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "base/long_wait.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "sys/own_descriptors.h"

namespace tutti {
namespace {

uint32_t RemainingMs(Deadline deadline) {
  constexpr int kLongestMs = 1'000'000'000;
  return static_cast<uint32_t>(std::max(1, deadline.RemainingMs(kLongestMs)));
}

// Each kind of failure has another likely cause: a wrong address, a wrong key, or a root that is
// not there yet. `failure` is the most telling failure, and `last` the last.
std::string Advice(const UniqueId& id, ConnectFailure failure, ConnectFailure last,
                   std::string_view secret_source) {
  const bool fixed = id.AddressIsFixed();
  if (!id.LocalName().empty()) {
    return "is rank 0 running on this machine, as a process of this user and without a secret?";
  }
  if (failure == ConnectFailure::kRefused && fixed) {
    return "is rank 0 running on the host of NCCL_COMM_ID, or has its process ended?";
  }
  if (failure == ConnectFailure::kRefused) {
    return id.root.IsLoopback()
               ? "the process that made the id, usually rank 0's, may have ended; where that "
                 "process "
                 "is on another host, set NCCL_SOCKET_IFNAME there, because the id's address is "
                 "this host's loopback"
               : "the process that made the id, usually rank 0's, may have ended, the id has "
                 "served "
                 "its one job already, or the process has made many others since that nobody used";
  }
  if (failure == ConnectFailure::kClosed) {
    const std::string foreign =
        id.HasSecret()
            ? fmt::format("is the secret the same on every rank? {}", SecretAdvice(secret_source))
            : "does the id belong to this job?";
    return last != ConnectFailure::kRefused
               ? foreign
               : fmt::format(
                     "nobody listens there any more: the process that made the id, usually "
                     "rank 0's, may have ended; else: {}",
                     foreign);
  }
  return "check the route and the firewall between the hosts (NCCL_SOCKET_IFNAME, "
         "TUTTI_PORT_RANGE)";
}

Result<SealedSocket> ConnectOnce(const UniqueId& id, const RootRequest& request,
                                 const WaitLimits& limits, int dead_after_s,
                                 ConnectFailure* failure) {
  const Hello hello = {Purpose::kRoot, EncodeRootRequest(request)};
  if (const std::string local = id.LocalName(); !local.empty())
    return ConnectAuthenticatedLocally(local, id.key, hello, limits, failure);
  return ConnectAuthenticated(id.root, id.key, hello, limits, failure, dead_after_s);
}

// A root at a fixed address may come up later than its ranks, and so may its host. Such a root is
// tried until the deadline.
Result<SealedSocket> ConnectToRoot(const UniqueId& id, RootRequest& request, const RootWait& wait) {
  const bool fixed = id.AddressIsFixed();
  const WaitLimits& limits = wait.limits;
  ConnectFailure telling = ConnectFailure::kOther;
  for (int attempt = 1;; ++attempt) {
    request.timeout_ms = RemainingMs(limits.deadline);
    ConnectFailure failure = ConnectFailure::kNone;
    Result<SealedSocket> socket = ConnectOnce(id, request, limits, wait.dead_after_s, &failure);
    if (socket.ok()) return socket;
    const bool worth_it = failure == ConnectFailure::kRefused ||
                          failure == ConnectFailure::kClosed ||
                          (fixed && failure == ConnectFailure::kSilent);
    telling = std::max(telling, failure);
    if (!worth_it || limits.Over() || (!fixed && attempt == kConnectAttempts)) {
      Status why = std::move(socket).status().Annotate(
          fmt::format("rank {} cannot reach the root", request.rank));
      // A shortage on this host, or another release at the other end, says nothing of the way to
      // the root.
      if (why.code() == Code::kSystemError || why.code() == Code::kInvalidUsage) return why;
      return Status(why.code(), fmt::format("{} ({})", why.message(),
                                            Advice(id, telling, failure, wait.secret_source)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kBetweenAttemptsMs));
  }
}

// The wait of a rank for the answer of its root, by the rule of time of base/long_wait.h.
class AnswerWait {
 public:
  // `wait` must outlive this object.
  AnswerWait(SealedSocket& socket, RootWait& wait) : socket_(socket), wait_(wait) {
    const int64_t now_ns = NowNs();
    const int64_t at_ns = wait.limits.deadline.at_ns();
    if (at_ns != Deadline::Never().at_ns())
      timeout_ns_ = std::max<int64_t>(0, at_ns - now_ns) + kAnswerGraceNs;
    time_.Begin(now_ns);
  }

  // Returns the next answer of the root; a notice is an answer.
  Result<RootAnswer> Next() {
    std::array<std::byte, kRootAnswerHeaderBytes> header;
    TUTTI_TRY(Receive(header));
    uint32_t type = 0;
    TUTTI_ASSIGN(const uint32_t size, ParseRootAnswerHeader(header, &type));
    Bytes body(size);
    TUTTI_TRY(Receive(body));
    return ParseRootAnswer(type, body);
  }
  double waited_s() const { return time_.waited_s(); }

 private:
  // Looks at the clock several times a second. A receive that is cut short loses no bytes.
  Status Receive(std::span<std::byte> data) {
    constexpr int64_t kLookNs = 250'000'000;
    for (;;) {
      const WaitLimits soon = {Deadline::After(kLookNs), wait_.limits.abort_flag};
      Status got = socket_.RecvAll(data, soon);
      if (got.code() != Code::kTimeout) return got;
      const LongWait::Due due = time_.Look(NowNs(), timeout_ns_);
      if (due.over) return got;
      if (due.stood_still && timeout_ns_ != 0)
        wait_.limits.deadline = Deadline::After(timeout_ns_ - kAnswerGraceNs);
    }
  }

  SealedSocket& socket_;
  RootWait& wait_;
  LongWait time_;
  int64_t timeout_ns_ = 0;
};

// Returns the root's answer within kReleaseNs; success without an answer. `unreached` (when given)
// tells why there is no connection.
Status AskBriefly(const UniqueId& id, RootRequest& request, const WaitLimits& limits,
                  Status* unreached = nullptr) {
  const WaitLimits brief = limits.Within(kReleaseNs);
  request.timeout_ms = RemainingMs(brief.deadline);
  RootWait wait = {.limits = brief, .secret_source = {}, .name = {}, .abort_reason = {}};
  ConnectFailure failure = ConnectFailure::kNone;
  Result<SealedSocket> socket = ConnectOnce(id, request, brief, wait.dead_after_s, &failure);
  if (!socket.ok()) {
    if (unreached) *unreached = socket.status();
    return Status::Ok();
  }
  const Result<RootAnswer> answer = AnswerWait(*socket, wait).Next();
  return answer.ok() ? answer->failure : Status::Ok();
}

// Makes the connection to the root again, in the place of `socket`. Returns false where the root
// refuses, or after kConnectAttempts attempts in all, which `attempts` counts.
bool ConnectAgain(const UniqueId& id, RootRequest& request, const RootWait& wait, int& attempts,
                  SealedSocket& socket) {
  while (attempts < kConnectAttempts && !wait.limits.Over()) {
    ConnectFailure failure = ConnectFailure::kNone;
    request.timeout_ms = RemainingMs(wait.limits.deadline);
    Result<SealedSocket> again = ConnectOnce(id, request, wait.limits, wait.dead_after_s, &failure);
    ++attempts;
    if (again.ok()) {
      socket = std::move(again).value();
      return true;
    }
    if (failure != ConnectFailure::kClosed) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(kBetweenAttemptsMs));
  }
  return false;
}

// Returns the root's answer, and warns of the ranks that the root misses meanwhile.
Result<RootAnswer> AwaitAnswer(const UniqueId& id, const RootRequest& request, RootWait& wait,
                               AnswerWait& answers) {
  for (;;) {
    Result<RootAnswer> answer = answers.Next();
    if (!answer.ok() || answer->notice.empty()) return answer;
    TUTTI_WARN(
        "rank {} of {} has waited {:.1f} s for other ranks, making communicator{}{}: at the root "
        "at {}, {}. TUTTI_INIT_TIMEOUT_S sets how long is waited",
        request.rank, request.num_ranks, answers.waited_s(), wait.name.empty() ? "" : " ",
        wait.name, id.root.ToString(), answer->notice);
  }
}

}  // namespace

// A rank whose wait is aborted declines, so the other ranks do not wait for this rank.
Result<RootAnswer> AskRoot(const UniqueId& id, RootRequest request, RootWait& wait) {
  TUTTI_ASSIGN(SealedSocket socket, ConnectToRoot(id, request, wait));
  AnswerWait answers(socket, wait);
  Result<RootAnswer> answer = AwaitAnswer(id, request, wait, answers);
  for (int attempts = 1; answer.status().code() == Code::kSystemError &&
                         ConnectAgain(id, request, wait, attempts, socket);)
    answer = AwaitAnswer(id, request, wait, answers);
  if (answer.ok()) return answer;
  if (wait.limits.Aborted()) {
    // The notice goes out while the connection is still open; otherwise the root would report that
    // this rank went away.
    Status why = wait.abort_reason ? wait.abort_reason() : Status::Ok();
    if (why.ok()) why = InternalError("its caller aborted the initialisation");
    DeclineJob(id, request, why, {wait.limits.deadline, nullptr});
  }
  const bool closed = answer.status().code() == Code::kRemoteError;
  return std::move(answer).status().Annotate(fmt::format(
      "rank {} waiting for the root at {}{}", request.rank, id.root.ToString(),
      closed ? " in the process that made the id (usually rank 0's), which may have ended" : ""));
}

Status ReleaseRoot(const UniqueId& id, RootRequest request, const WaitLimits& limits) {
  request.contact.address = id.root;  // nobody will ask for the contact
  return AskBriefly(id, request, limits);
}

void DeclineJob(const UniqueId& id, RootRequest request, const Status& why,
                const WaitLimits& limits) {
  request.kind = RootRequest::Kind::kDecline;
  request.why = why.message();
  // The answer is the sent failure again.
  Status unreached;
  static_cast<void>(AskBriefly(id, request, limits, &unreached));
  // A process that has used up its descriptors cannot open a connection in its own table.
  if (unreached.code() != Code::kSystemError) return;
  static_cast<void>(WithOwnDescriptors([&] {
    static_cast<void>(WithoutExceptions([&] { return AskBriefly(id, request, limits); }));
  }));
}

}  // namespace tutti
