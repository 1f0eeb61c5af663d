#include "bootstrap/root_client.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"

namespace tutti {
namespace {

uint32_t RemainingMs(Deadline deadline) {
  constexpr int kLongestMs = 1'000'000'000;
  return static_cast<uint32_t>(std::max(1, deadline.RemainingMs(kLongestMs)));
}

// Each kind of failure has another likely cause: a wrong address, a wrong key, or a root that is
// not there yet.
std::string Advice(const UniqueId& id, ConnectFailure failure, std::string_view secret_source) {
  const bool fixed = id.AddressIsFixed();
  if (!id.LocalName().empty()) {
    return "is rank 0 running on this machine, as a process of this user and without a secret?";
  }
  if (failure == ConnectFailure::kRefused && fixed) {
    return "is rank 0 running on the host of NCCL_COMM_ID?";
  }
  if (failure == ConnectFailure::kRefused) {
    return id.root.IsLoopback()
               ? "the id's address is this host's loopback: set NCCL_SOCKET_IFNAME where the id is "
                 "made, unless its process has ended"
               : "the process that made the id has ended, the id has served its one job already, "
                 "or the process has made many others since that nobody used";
  }
  if (failure == ConnectFailure::kClosed) {
    return id.HasSecret() ? fmt::format("is the secret the same on every rank? {}",
                                        SecretAdvice(secret_source))
                          : "does the id belong to this job?";
  }
  return "check the route and the firewall between the hosts (NCCL_SOCKET_IFNAME, "
         "TUTTI_PORT_RANGE)";
}

Result<SealedSocket> ConnectOnce(const UniqueId& id, const RootRequest& request,
                                 const WaitLimits& limits, ConnectFailure* failure = nullptr) {
  const Hello hello = {Purpose::kRoot, EncodeRootRequest(request)};
  const std::string local = id.LocalName();
  return local.empty() ? ConnectAuthenticated(id.root, id.key, hello, limits, failure)
                       : ConnectAuthenticatedLocally(local, id.key, hello, limits, failure);
}

// A root at a fixed address may come up later than its ranks, so such a root is tried until the
// deadline.
Result<SealedSocket> ConnectToRoot(const UniqueId& id, RootRequest& request,
                                   const WaitLimits& limits, std::string_view secret_source) {
  const bool fixed = id.AddressIsFixed();
  ConnectFailure telling = ConnectFailure::kOther;
  for (int attempt = 1;; ++attempt) {
    request.timeout_ms = RemainingMs(limits.deadline);
    ConnectFailure failure = ConnectFailure::kNone;
    Result<SealedSocket> socket = ConnectOnce(id, request, limits, &failure);
    if (socket.ok()) return socket;
    const bool worth_it = failure == ConnectFailure::kRefused || failure == ConnectFailure::kClosed;
    telling = std::max(telling, failure);
    if (!worth_it || limits.Over() || (!fixed && attempt == kConnectAttempts)) {
      Status why = std::move(socket).status().Annotate(
          fmt::format("rank {} cannot reach the root", request.rank));
      // A shortage on this host, or another release at the other end, says nothing of the way to
      // the root.
      if (why.code() == Code::kSystemError || why.code() == Code::kInvalidUsage) return why;
      return Status(why.code(),
                    fmt::format("{} ({})", why.message(), Advice(id, telling, secret_source)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kBetweenAttemptsMs));
  }
}

Result<RootAnswer> ReadAnswer(SealedSocket& socket, const WaitLimits& limits) {
  std::array<std::byte, kRootAnswerHeaderBytes> header;
  TUTTI_TRY(socket.RecvAll(header, limits));
  uint32_t type = 0;
  TUTTI_ASSIGN(const uint32_t size, ParseRootAnswerHeader(header, &type));
  Bytes body(size);
  TUTTI_TRY(socket.RecvAll(body, limits));
  return ParseRootAnswer(type, body);
}

// Returns the root's answer within kReleaseNs; success without an answer.
Status AskBriefly(const UniqueId& id, RootRequest& request, const WaitLimits& limits) {
  const WaitLimits brief = limits.Within(kReleaseNs);
  request.timeout_ms = RemainingMs(brief.deadline);
  Result<SealedSocket> socket = ConnectOnce(id, request, brief);
  if (!socket.ok()) return Status::Ok();
  const Result<RootAnswer> answer = ReadAnswer(*socket, brief);
  return answer.ok() ? answer->failure : Status::Ok();
}

}  // namespace

// A rank whose wait is aborted declines, so the other ranks do not wait for it.
Result<RootAnswer> AskRoot(const UniqueId& id, RootRequest request, const WaitLimits& limits,
                           std::string_view secret_source,
                           const std::function<Status()>& abort_reason,
                           const std::function<Status(const SecretKey&)>& on_reached) {
  TUTTI_ASSIGN(SealedSocket socket, ConnectToRoot(id, request, limits, secret_source));
  if (on_reached) TUTTI_TRY(on_reached(socket.further_key()));
  WaitLimits patient = limits;
  if (limits.deadline.at_ns() < Deadline::Never().at_ns() - kAnswerGraceNs) {
    patient.deadline = Deadline::After(limits.deadline.at_ns() - NowNs() + kAnswerGraceNs);
  }
  Result<RootAnswer> answer = ReadAnswer(socket, patient);
  if (answer.ok()) return answer;
  if (limits.Aborted()) {
    // The notice goes out while the connection is still open; otherwise the root would report that
    // this rank went away.
    Status why = abort_reason ? abort_reason() : Status::Ok();
    if (why.ok()) why = InternalError("its caller aborted the initialisation");
    DeclineJob(id, request, why, {limits.deadline, nullptr});
  }
  return std::move(answer).status().Annotate(
      fmt::format("rank {} waiting for the root at {}", request.rank, id.root.ToString()));
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
  static_cast<void>(AskBriefly(id, request, limits));
}

}  // namespace tutti
