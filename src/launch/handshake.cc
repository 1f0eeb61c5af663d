#include "launch/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>

#include "base/log.h"
#include "bootstrap/wire.h"
#include "launch/listen.h"
#include "sys/event_loop.h"
#include "sys/local_socket.h"
#include "sys/tcp.h"

namespace tutti::launch {
namespace {

// Limits of one attempt at one address. The first attempt is short, because the listener may be
// another program that never answers; the longest attempt suffices for a handshake on a busy
// machine.
constexpr int64_t kFirstAttemptNs = 500'000'000;
constexpr int64_t kLongestAttemptNs = 4'000'000'000;
// Pause between two rounds of attempts: short at first, because rank 0 is often about to listen.
constexpr std::chrono::milliseconds kFirstPause{2};
constexpr std::chrono::milliseconds kLongestPause{100};
// The most missing ranks that a sentence names.
constexpr size_t kMaxNamed = 16;

// Keeps the most telling failure of several attempts.
struct Telling {
  ConnectFailure kind = ConnectFailure::kNone;
  Status why;

  // Of two failures that tell as much, the later counts.
  void Add(ConnectFailure other, Status status) {
    if (!why.ok() && other < kind) return;
    kind = other;
    why = std::move(status);
  }
};

// Every connection of the attempt has the whole of `attempt_ns`. A failure goes to *telling.
Result<SealedSocket> TryEndpoint(const Endpoint& endpoint, const Key& key, const Hello& hello,
                                 const WaitLimits& limits, int64_t attempt_ns, Telling* telling) {
  ConnectFailure kind = ConnectFailure::kOther;
  if (!endpoint.local_name.empty()) {
    Result<SealedSocket> socket = ConnectAuthenticatedLocally(endpoint.local_name, key, hello,
                                                              limits.Within(attempt_ns), &kind);
    if (!socket.ok()) telling->Add(kind, socket.status());
    return socket;
  }
  Result<std::vector<SocketAddress>> addresses = LookUp(endpoint.host, endpoint.port);
  if (!addresses.ok()) telling->Add(kind, addresses.status());
  TUTTI_TRY(addresses.status());
  for (const SocketAddress& address : *addresses) {
    Result<SealedSocket> socket =
        ConnectAuthenticated(address, key, hello, limits.Within(attempt_ns), &kind);
    if (socket.ok()) return socket;
    telling->Add(kind, std::move(socket).status());
  }
  return telling->why;
}

// Returns the sentence of a rank that did not reach rank 0. `tellings` has an entry for each
// endpoint; *failure (may be null) becomes the most telling kind.
Status NotReached(const std::vector<Endpoint>& endpoints, const std::vector<Telling>& tellings,
                  ConnectFailure* failure) {
  std::string attempts;
  Telling most;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (tellings[i].why.ok()) continue;  // not tried in time
    attempts += fmt::format("{}{}: {}", attempts.empty() ? "" : "; ", endpoints[i].ToString(),
                            tellings[i].why.message());
    most.Add(tellings[i].kind, tellings[i].why);
  }
  if (failure != nullptr) *failure = most.kind;
  return Timeout("rank 0 could not be reached from host {} ({})", HostName(), attempts);
}

}  // namespace

Bytes EncodeClaimHello(const ClaimHello& hello) {
  WireWriter writer;
  writer.U32(hello.claim.channel);
  writer.U32(hello.claim.rank);
  writer.U64(hello.attempt);
  writer.Raw(AsBytes(std::string_view(hello.note).substr(0, kMaxNoteBytes)));
  return std::move(writer).Take();
}

Result<ClaimHello> ParseClaimHello(std::span<const std::byte> payload) {
  WireReader reader(payload);
  ClaimHello hello;
  hello.claim.channel = reader.U32();
  hello.claim.rank = reader.U32();
  hello.attempt = reader.U64();
  const auto note = reader.Raw(reader.remaining());
  if (reader.failed() || note.size() > kMaxNoteBytes) {
    return RemoteError("the hello of a launched rank is malformed");
  }
  hello.note = AsText(note);
  return hello;
}

bool Gathering::Peer::HungUp() const {
  pollfd entry{socket.fd(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0;
}

Gathering::Gathering(std::vector<Claim> expected)
    : expected_(std::move(expected)), slots_(expected_.size()) {}

Gathering::~Gathering() = default;

Result<std::unique_ptr<Gathering>> Gathering::Start(UniqueFd listener, const Key& key,
                                                    std::vector<Claim> expected) {
  std::unique_ptr<Gathering> gathering(new Gathering(std::move(expected)));
  TUTTI_ASSIGN(gathering->loop_, EventLoop::Create("tutti-launch"));
  const auto take = [raw = gathering.get()](SealedSocket socket, const Hello& hello,
                                            const SocketAddress&) {
    raw->Take(std::move(socket), hello);
  };
  TUTTI_ASSIGN(gathering->acceptor_, AuthAcceptor::Create(*gathering->loop_, std::move(listener),
                                                          key, "rank 0 at launch", take));
  return gathering;
}

void Gathering::Take(SealedSocket socket, const Hello& hello) {
  if (hello.purpose != Purpose::kLaunch || !CheckSameUser(socket.fd()).ok()) return;
  Result<ClaimHello> parsed = ParseClaimHello(hello.payload);
  if (!parsed.ok()) return;
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = Keep(std::move(socket), std::move(parsed).value());
  changed_.NotifyAll();
}

Status Gathering::Keep(SealedSocket socket, ClaimHello hello) {
  const auto found = std::find(expected_.begin(), expected_.end(), hello.claim);
  if (found == expected_.end()) {
    refused_ = std::move(socket);
    return InvalidUsage("a process of this job says it is rank {}, which is not expected",
                        hello.claim.rank);
  }
  Slot& slot = slots_[static_cast<size_t>(found - expected_.begin())];
  const bool is_another = slot.proven && slot.attempt != hello.attempt;
  // A rank that already has its answer may be at its next meeting, and will find the next meeting's
  // listener.
  if (is_another && slot.taken) return Status::Ok();
  if (is_another && !slot.peer.HungUp()) {
    refused_ = std::move(socket);
    return InvalidUsage("two processes of this job say they are rank {}", hello.claim.rank);
  }
  if (!slot.proven) ++num_proven_;
  slot.proven = true;
  slot.peer = {std::move(socket), std::move(hello.note)};
  slot.attempt = hello.attempt;
  return Status::Ok();
}

Status Gathering::Await(const WaitLimits& limits) {
  MutexLock lock(mutex_);
  while (failure_.ok() && num_proven_ < expected_.size()) {
    if (limits.Aborted()) {
      failure_ = InternalError("waiting for the other ranks: aborted by the caller");
    } else if (limits.deadline.Passed()) {
      failure_ = Timeout("{} did not arrive in time", Missing());
    } else {
      const int wait_ms = limits.abort_flag ? kAbortCheckMs : 1000;
      changed_.WaitFor(lock, std::chrono::milliseconds(limits.deadline.RemainingMs(wait_ms)));
    }
  }
  return failure_;
}

std::vector<Gathering::Peer> Gathering::TakePeers() {
  const MutexLock lock(mutex_);
  std::vector<Peer> peers;
  for (Slot& slot : slots_) {
    slot.taken = slot.taken || slot.peer.socket.valid();
    peers.push_back(std::exchange(slot.peer, {}));
  }
  if (refused_.valid()) peers.push_back({std::move(refused_), ""});
  return peers;
}

void Gathering::ExpectAgain(size_t index) {
  const MutexLock lock(mutex_);
  Slot& slot = slots_[index];
  slot.taken = false;
  // The rank may already have come again.
  if (slot.peer.socket.valid() || !slot.proven) return;
  slot.proven = false;
  --num_proven_;
}

std::string Gathering::Missing() const {
  std::string names;
  size_t missing = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    if (slots_[i].proven) continue;
    if (++missing <= kMaxNamed) {
      names += fmt::format("{}{}", missing > 1 ? ", " : "", expected_[i].rank);
    }
  }
  if (missing > kMaxNamed) names += fmt::format(" and {} more", missing - kMaxNamed);
  return fmt::format("rank{} {}", missing > 1 ? "s" : "", names);
}

Result<std::vector<SealedSocket>> AcceptClaims(UniqueFd listener, const Key& key,
                                               const std::vector<Claim>& expected,
                                               const WaitLimits& limits) {
  TUTTI_ASSIGN(const auto gathering, Gathering::Start(std::move(listener), key, expected));
  std::vector<SealedSocket> sockets(expected.size());
  for (bool complete = false; !complete;) {
    TUTTI_TRY(gathering->Await(limits));
    std::vector<Gathering::Peer> peers = gathering->TakePeers();
    complete = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (peers[i].socket.valid() && peers[i].HungUp()) {
        gathering->ExpectAgain(i);
        complete = false;
      } else if (peers[i].socket.valid()) {
        sockets[i] = std::move(peers[i].socket);
      }
    }
  }
  return sockets;
}

Result<SealedSocket> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                      Claim claim, std::string_view note, const WaitLimits& limits,
                                      ConnectFailure* failure) {
  if (endpoints.empty()) return InvalidArgument("rank 0 gave no address to connect to");
  const Hello hello = {Purpose::kLaunch, EncodeClaimHello({claim, RandomU64(), std::string(note)})};
  auto pause = kFirstPause;
  int64_t attempt_ns = kFirstAttemptNs;
  std::vector<Telling> tellings(endpoints.size());
  for (;;) {
    for (size_t i = 0; i < endpoints.size(); ++i) {
      Result<SealedSocket> socket =
          TryEndpoint(endpoints[i], key, hello, limits, attempt_ns, &tellings[i]);
      if (socket.ok()) return socket;
      if (limits.Aborted()) return InternalError("looking for rank 0: aborted by the caller");
      if (limits.deadline.Passed()) return NotReached(endpoints, tellings, failure);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, kLongestPause);
    attempt_ns = std::min(attempt_ns * 2, kLongestAttemptNs);
  }
}

}  // namespace tutti::launch
