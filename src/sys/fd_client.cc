// The fetching side of sys/fd_server.h.

#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "sys/fd_server.h"
#include "sys/fd_wire.h"
#include "sys/host.h"

namespace tutti {
namespace {

constexpr int kFirstRetryMs = 1;
constexpr int kLastRetryMs = 50;

struct Request {
  std::string_view server_name;
  uint64_t id;
  const FdKey& key;
  const WaitLimits& limits;
  bool* no_descriptors;
};

Status CheckPatience(const Request& request) {
  if (request.limits.Aborted())
    return InternalError("aborted while fetching shared memory from @{}", request.server_name);
  TUTTI_TRY(request.limits.Follow());
  if (request.limits.deadline.Passed())
    return Timeout(
        "no answer in time from @{}, which offers the shared memory of a "
        "peer; is that process stopped?",
        request.server_name);
  return Status::Ok();
}

// Notes that this process has used up its descriptors, for the caller of FetchFd.
Status NoDescriptors(const Request& request, std::string_view what) {
  if (request.no_descriptors != nullptr) *request.no_descriptors = true;
  return NoDescriptorsError(what);
}

// Returns the next message; kClosed or kGarbage when none will come.
Result<fd_wire::Received> Await(int fd, const Request& request, UniqueFd* passed) {
  for (;;) {
    const fd_wire::Received received = fd_wire::Receive(fd, passed);
    if (received.outcome != fd_wire::Outcome::kNothing) return received;
    TUTTI_TRY(CheckPatience(request));
    pollfd waiting{fd, POLLIN, 0};
    poll(&waiting, 1, request.limits.deadline.RemainingMs(kAbortCheckMs));
  }
}

// Returns a connected socket; an invalid descriptor when the server's queue is full.
Result<UniqueFd> Connect(const Request& request) {
  constexpr int kType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
  UniqueFd fd(socket(AF_UNIX, kType, 0));
  if (!fd.valid() && errno == EMFILE && GainDescriptors()) fd.Reset(socket(AF_UNIX, kType, 0));
  if (!fd.valid() && errno == EMFILE) return NoDescriptors(request, "a Unix socket cannot be made");
  if (!fd.valid()) return ErrnoError(errno, "cannot make a Unix socket");
  sockaddr_un address;
  const socklen_t length = fd_wire::AbstractAddress(request.server_name, address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  const int error = errno;
  if (error == EAGAIN || error == EINTR) return UniqueFd();
  if (error == ECONNREFUSED)
    return RemoteError(
        "nobody listens on the Unix socket @{}: that process has ended, or it is in another "
        "network namespace (another container), with which memory cannot be shared",
        request.server_name);
  return ErrnoError(error,
                    fmt::format("cannot connect to the Unix socket @{}", request.server_name));
}

Status WithdrawnError(const Request& request) {
  return RemoteError("@{} no longer offers shared memory {:#x}: its owner freed it",
                     request.server_name, request.id);
}

// Takes a connection from Hello to Grant. A result without a descriptor: the server closed the
// connection before answering.
Result<UniqueFd> TryOnce(const Request& request) {
  TUTTI_ASSIGN(UniqueFd connection, Connect(request));
  if (!connection.valid()) return UniqueFd();
  fd_wire::Session session;
  session.id = request.id;
  session.client_nonce = fd_wire::RandomNonce();
  fd_wire::Message hello = fd_wire::Make(fd_wire::kHello, request.id);
  hello.nonce = session.client_nonce;
  if (!fd_wire::Send(connection.get(), hello, -1)) return UniqueFd();

  TUTTI_ASSIGN(const fd_wire::Received challenge, Await(connection.get(), request, nullptr));
  if (challenge.outcome == fd_wire::Outcome::kClosed) return UniqueFd();
  if (challenge.message.type == fd_wire::kWithdrawn) return WithdrawnError(request);
  session.server_nonce = challenge.message.nonce;
  const fd_wire::Proof expected =
      fd_wire::Prove(fd_wire::Role::kServer, request.key, request.server_name, session);
  if (challenge.outcome != fd_wire::Outcome::kMessage ||
      challenge.message.type != fd_wire::kChallenge ||
      !fd_wire::Equal(expected, challenge.message.proof))
    return RemoteError(
        "@{} could not prove that it holds the key of shared memory {:#x}; refused it",
        request.server_name, request.id);

  fd_wire::Message answer = fd_wire::Make(fd_wire::kAnswer, request.id);
  answer.proof = fd_wire::Prove(fd_wire::Role::kClient, request.key, request.server_name, session);
  if (!fd_wire::Send(connection.get(), answer, -1)) return UniqueFd();
  UniqueFd passed;
  TUTTI_ASSIGN(const fd_wire::Received grant, Await(connection.get(), request, &passed));
  if (grant.outcome == fd_wire::Outcome::kClosed) return UniqueFd();
  if (grant.message.type == fd_wire::kWithdrawn) return WithdrawnError(request);
  if (grant.outcome != fd_wire::Outcome::kMessage || grant.message.type != fd_wire::kGrant)
    return RemoteError("@{} answered with something that is not a grant", request.server_name);
  if (!passed.valid() && GainDescriptors()) return UniqueFd();  // to try once more
  if (!passed.valid())
    return NoDescriptors(request, fmt::format("shared memory {:#x} of @{} cannot be received",
                                              request.id, request.server_name));
  return passed;
}

}  // namespace

// The pauses double, so many clients of a busy server do not keep it busy with attempts.
Result<UniqueFd> FetchFd(std::string_view server_name, uint64_t id, const FdKey& key,
                         const WaitLimits& limits, bool* no_descriptors) {
  if (sodium_init() < 0) return SystemError("libsodium found no source of random numbers");
  if (server_name.empty() || server_name.size() > kMaxFdServerName)
    return InvalidArgument("a descriptor server's name of {} bytes cannot be", server_name.size());
  const Request request{server_name, id, key, limits, no_descriptors};
  for (int pause_ms = kFirstRetryMs;; pause_ms = std::min(2 * pause_ms, kLastRetryMs)) {
    TUTTI_TRY(CheckPatience(request));
    TUTTI_ASSIGN(UniqueFd fd, TryOnce(request));
    if (fd.valid()) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(limits.deadline.RemainingMs(pause_ms)));
  }
}

}  // namespace tutti
