#include "launch/meeting.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "bootstrap/job_secret.h"
#include "elastic/store.h"
#include "launch/handshake.h"
#include "launch/hex.h"
#include "launch/http_store.h"
#include "launch/listen.h"
#include "launch/messages.h"
#include "launch/share.h"

namespace tutti::launch {
namespace {

// Time for handing out the answer after the last rank has come, however late.
constexpr double kAnswerSeconds = 10;
// Time for reaching rank 0 at an address from a store. Rank 0 listens before it stores the address.
constexpr int64_t kReachNs = 3'000'000'000;
// Scope of ranks' invitations in a launcher's store.
constexpr std::string_view kStoreScope = "tutti";
// The longest wait of one question to the launcher's store, between two looks at the abort flag.
constexpr int kStoreWaitMs = 500;

Residence ResidenceOf(const LaunchInfo& info) {
  return {info.machine, info.local_rank, info.local_size};
}

Key JobKey(const LaunchInfo& info) {
  return WithSecret(KeyFromText(fmt::format("tutti launch|{}|{}", info.job, info.size)),
                    info.secret, "launch");
}

// Tells the ranks that have come why the meeting failed, for them not to wait.
void TellFailure(std::vector<Gathering::Peer>& peers, const Status& failure) {
  const std::string message = EncodeFailure(failure.message());
  const WaitLimits limits = {Deadline::AfterSeconds(kAnswerSeconds), nullptr};
  for (Gathering::Peer& peer : peers) {
    // A rank that is gone needs no sentence.
    if (peer.socket.valid()) [[maybe_unused]]
      const Status sent = SendMessage(peer.socket, message, limits);
  }
}

// Waits for the byte by which a rank confirms the answer.
Status ReceiveReply(SealedSocket& socket, const WaitLimits& limits) {
  std::array<std::byte, 1> reply;
  return socket.RecvAll(reply, limits);
}

// Hands `message` to all ranks. A rank that has given up its connection in the meantime receives
// the message over its next connection.
Status Answer(Gathering& gathering, std::vector<Gathering::Peer> peers, std::string_view message,
              const WaitLimits& limits) {
  for (;;) {
    const WaitLimits answering = {Deadline::AfterSeconds(kAnswerSeconds), limits.abort_flag};
    // Send to all ranks before waiting for the first reply.
    std::vector<size_t> unreached;
    std::vector<size_t> replying;
    for (size_t i = 0; i < peers.size(); ++i) {
      if (!peers[i].socket.valid()) continue;
      const bool sent = SendMessage(peers[i].socket, message, answering).ok();
      (sent ? replying : unreached).push_back(i);
    }
    for (const size_t i : replying) {
      if (!ReceiveReply(peers[i].socket, answering).ok()) unreached.push_back(i);
    }
    if (unreached.empty()) return Status::Ok();
    for (const size_t i : unreached) gathering.ExpectAgain(i);
    TUTTI_TRY(gathering.Await(limits));
    peers = gathering.TakePeers();
  }
}

// Adds to the failure of a rank that waited in vain. `hint` says why another rank may have been
// turned away, and is empty where nobody was.
Status WithHint(Status failure, const std::string& hint) {
  if (failure.code() != Code::kTimeout || hint.empty()) return failure;
  return Timeout("{}; {}", failure.message(), hint);
}

// Plays rank 0's part once rank 0 listens. `on_gathered` is called when rank 0 no longer waits for
// ranks.
Result<Meeting> Gather(
    const LaunchInfo& info, UniqueFd listener, const Key& key, std::string_view value,
    const WaitLimits& limits, const std::function<void()>& on_gathered = [] {}) {
  std::vector<Claim> expected;
  for (int rank = 1; rank < info.size; ++rank) expected.push_back({0, static_cast<uint32_t>(rank)});
  TUTTI_ASSIGN(const auto gathering, Gathering::Start(std::move(listener), key, expected));
  Status gathered = gathering->Await(limits);
  gathered =
      WithHint(std::move(gathered), DescribeRejected(gathering->rejected(), info.secret_source));
  on_gathered();
  std::vector<Gathering::Peer> peers = gathering->TakePeers();
  if (!gathered.ok()) {
    TellFailure(peers, gathered);
    return gathered;
  }
  std::vector<Residence> residences = {ResidenceOf(info)};
  for (const Gathering::Peer& peer : peers) {
    TUTTI_ASSIGN(Residence residence, ParseResidence(peer.note));
    residences.push_back(std::move(residence));
  }
  MeetingAnswer answer = {std::string(value), SettlePlaces(residences)};
  TUTTI_TRY(Answer(*gathering, std::move(peers), EncodeAnswer(answer), limits));
  return Meeting{std::move(answer.value), std::move(answer.places)};
}

// Connects to rank 0; the part of every other rank.
Result<SealedSocket> Reach(const LaunchInfo& info, const std::vector<Endpoint>& endpoints,
                           const Key& key, const WaitLimits& limits) {
  const Claim claim = {0, static_cast<uint32_t>(info.rank)};
  ConnectFailure failure = ConnectFailure::kNone;
  Result<SealedSocket> socket =
      ConnectWithClaim(endpoints, key, claim, EncodeResidence(ResidenceOf(info)), limits, &failure);
  if (failure != ConnectFailure::kClosed) return socket;
  return WithHint(std::move(socket).status(),
                  fmt::format("the rank that ended a connection may have another secret ({})",
                              SecretAdvice(info.secret_source)));
}

// Plays the other ranks' part after they have reached rank 0. Rank 0 answers when all ranks have
// come, or says that they have not. Rank 0 may have begun to wait later than this rank.
Result<Meeting> AwaitAnswer(const LaunchInfo& info, SealedSocket socket, const WaitLimits& limits) {
  Result<std::string> message = ReceiveMessage(socket, kMaxAnswerBytes, limits);
  if (!message.ok()) return std::move(message).status().Annotate("waiting for rank 0's answer");
  TUTTI_ASSIGN(MeetingAnswer answer, ParseAnswer(*message, info.size));
  constexpr std::array<std::byte, 1> kReply = {std::byte{1}};
  TUTTI_TRY(socket.SendAll(kReply, limits));
  return Meeting{std::move(answer.value), std::move(answer.places)};
}

Result<Meeting> MeetAtEndpoints(const LaunchInfo& info, std::string_view value,
                                const WaitLimits& limits) {
  const Key key = JobKey(info);
  if (info.rank != 0) {
    TUTTI_ASSIGN(SealedSocket socket, Reach(info, info.endpoints, key, limits));
    return AwaitAnswer(info, std::move(socket), limits);
  }
  TUTTI_ASSIGN(UniqueFd listener, ListenAt(info.endpoints));
  return Gather(info, std::move(listener), key, value, limits);
}

std::vector<Endpoint> EndpointsOf(const Invitation& invitation) {
  std::vector<Endpoint> endpoints;
  for (const std::string& address : invitation.addresses) {
    endpoints.push_back({address, invitation.port, ""});
  }
  return endpoints;
}

// Returns the key of an invitation. Any client of the store, and whoever reads the launcher's
// connections, can read an invitation; the invitation's key therefore counts together with the
// job's secret, where the job has a secret.
Key KeyOf(const LaunchInfo& info, const Invitation& invitation) {
  const std::string text = fmt::format("tutti invitation|{}|{}", ToHex(invitation.key), info.size);
  return WithSecret(KeyFromText(text), info.secret, "launch");
}

// Meets with the launcher as the carrier of rank 0's address and a random key.
Result<Meeting> MeetByInvitation(const LaunchInfo& info, std::string_view value,
                                 const WaitLimits& limits) {
  const auto share = info.rendezvous == Rendezvous::kPmix ? ShareOverPmix : ShareOverPmi;
  if (info.rank != 0) {
    TUTTI_ASSIGN(const std::string text, share(info, "", limits.deadline));
    TUTTI_ASSIGN(const Invitation invitation, ParseInvitation(text));
    TUTTI_ASSIGN(SealedSocket socket,
                 Reach(info, EndpointsOf(invitation), KeyOf(info, invitation), limits));
    return AwaitAnswer(info, std::move(socket), limits);
  }
  Invitation invitation = {RandomKey(), 0, OwnAddresses()};
  TUTTI_ASSIGN(UniqueFd listener, Listen({0}, &invitation.port));
  TUTTI_TRY(share(info, EncodeInvitation(invitation), limits.deadline).status());
  return Gather(info, std::move(listener), KeyOf(info, invitation), value, limits);
}

// The store of `tutti run`, with the functions of an HttpStoreClient.
class LauncherStore {
 public:
  static Result<LauncherStore> Connect(const LaunchInfo& info, const WaitLimits& limits) {
    std::vector<SocketAddress> addresses;
    for (const Endpoint& endpoint : info.endpoints) {
      // A launcher names every address of its own; some may mean nothing here.
      const Result<std::vector<SocketAddress>> found = LookUp(endpoint.host, endpoint.port);
      if (found.ok()) addresses.insert(addresses.end(), found->begin(), found->end());
    }
    TUTTI_ASSIGN(auto client,
                 elastic::StoreClient::Connect(addresses, elastic::StoreKey(info.secret), limits));
    return LauncherStore(std::move(client));
  }

  Result<std::string> Await(std::string_view scope, std::string_view name,
                            const WaitLimits& limits) const {
    for (uint64_t version = 0; !limits.Over();) {
      const double wait_s = limits.deadline.RemainingMs(kStoreWaitMs) / 1e3;
      TUTTI_ASSIGN(elastic::Entry entry, client_->Get(KeyOf(scope, name), version, wait_s));
      if (!entry.value.empty()) return std::move(entry.value);
      version = std::max(version, entry.version);
    }
    return Timeout("rank 0 has left no address in the launcher's store");
  }
  Status Put(std::string_view scope, std::string_view name, std::string_view value,
             const WaitLimits&) const {
    return client_->Set(KeyOf(scope, name), value).status();
  }
  // An empty value stands for none.
  Status Delete(std::string_view scope, std::string_view name, const WaitLimits& limits) const {
    return Put(scope, name, "", limits);
  }

 private:
  explicit LauncherStore(std::unique_ptr<elastic::StoreClient> client)
      : client_(std::move(client)) {}
  static std::string KeyOf(std::string_view scope, std::string_view name) {
    return fmt::format("{}/{}", scope, name);
  }

  std::unique_ptr<elastic::StoreClient> client_;
};

// Asks for rank 0's invitation again where nobody answers, because an invitation may be left from
// an earlier meeting.
template <class Store>
Result<Meeting> MeetAsInvited(const LaunchInfo& info, const Store& store, std::string_view name,
                              const WaitLimits& limits) {
  for (;;) {
    TUTTI_ASSIGN(const std::string text, store.Await(kStoreScope, name, limits));
    TUTTI_ASSIGN(const Invitation invitation, ParseInvitation(text));
    Result<SealedSocket> socket =
        Reach(info, EndpointsOf(invitation), KeyOf(info, invitation), limits.Within(kReachNs));
    if (socket.ok()) return AwaitAnswer(info, std::move(socket).value(), limits);
    if (socket.status().code() != Code::kTimeout || limits.deadline.Passed())
      return socket.status();
  }
}

// Meets with a launcher's store as the carrier of rank 0's address.
template <class Store>
Result<Meeting> MeetByStore(const LaunchInfo& info, const Store& store, std::string_view value,
                            const WaitLimits& limits) {
  const Key job = KeyFromText(fmt::format("{}|{}", info.job, info.size));
  const std::string name = ToHex(job);
  if (info.rank != 0) return MeetAsInvited(info, store, name, limits);
  Invitation invitation = {RandomKey(), 0, OwnAddresses()};
  TUTTI_ASSIGN(UniqueFd listener, Listen({0}, &invitation.port));
  TUTTI_TRY(store.Put(kStoreScope, name, EncodeInvitation(invitation), limits));
  return Gather(info, std::move(listener), KeyOf(info, invitation), value, limits, [&] {
    // Removes the invitation, which would mislead the next meeting; a store that is gone has none.
    const WaitLimits brief = {Deadline::AfterSeconds(kAnswerSeconds), limits.abort_flag};
    static_cast<void>(store.Delete(kStoreScope, name, brief));
  });
}

// The kernel vouches for the users at both ends of a local socket, and PMIx and PMI carry a random
// key. All other ways are open to everybody who reaches an address.
bool NeedsSecret(Rendezvous rendezvous) {
  return rendezvous == Rendezvous::kTcp || rendezvous == Rendezvous::kHttp ||
         rendezvous == Rendezvous::kStore;
}

// Returns the hint for a rank that waited in vain, unless `failure` has the hint already. A rank
// with another secret is turned away, and a rank without a secret refuses to meet.
std::string HintFor(const LaunchInfo& info, std::string_view failure) {
  if (info.rendezvous == Rendezvous::kLocal) {
    return "ranks in different network namespaces (containers) of one machine do not reach a local "
           "socket, and meet by TUTTI_ADDR=HOST:PORT (an address of rank 0) and a secret";
  }
  const std::string advice = SecretAdvice(info.secret_source);
  if (!NeedsSecret(info.rendezvous) || info.secret.empty() ||
      failure.find(advice) != std::string_view::npos) {
    return "";
  }
  return fmt::format("ranks with another secret, or without a secret, do not arrive ({})", advice);
}

Result<Meeting> MeetSomehow(const LaunchInfo& info, std::string_view value,
                            const WaitLimits& limits) {
  if (NeedsSecret(info.rendezvous)) {
    TUTTI_TRY(CheckMeetingOverTcp(info.secret, info.insecure, info.endpoints.front().ToString()));
  }
  switch (info.rendezvous) {
    case Rendezvous::kTcp:
    case Rendezvous::kLocal:
      return MeetAtEndpoints(info, value, limits);
    case Rendezvous::kHttp:
      return MeetByStore(info, HttpStoreClient(info.endpoints.front()), value, limits);
    case Rendezvous::kStore: {
      TUTTI_ASSIGN(const LauncherStore store, LauncherStore::Connect(info, limits));
      return MeetByStore(info, store, value, limits);
    }
    case Rendezvous::kPmix:
    case Rendezvous::kPmi:
      return MeetByInvitation(info, value, limits);
    case Rendezvous::kNone:
      break;
  }
  return InvalidUsage("this job's ranks have no way to meet");
}

}  // namespace

Result<Meeting> Meet(const LaunchInfo& info, std::string_view value, const WaitLimits& limits) {
  if (value.size() > kMaxValueBytes) {
    return InvalidArgument("{} bytes are too many to hand round at launch; the limit is {}",
                           value.size(), kMaxValueBytes);
  }
  if (info.size == 1) return Meeting{std::string(value), SettlePlaces({ResidenceOf(info)})};
  Result<Meeting> meeting = MeetSomehow(info, value, limits);
  if (meeting.ok()) return meeting;
  const std::string hint = HintFor(info, meeting.status().message());
  return WithHint(std::move(meeting).status(), hint)
      .Annotate(fmt::format("rank {} of {}, meeting the other ranks over {}", info.rank, info.size,
                            Name(info.rendezvous)));
}

}  // namespace tutti::launch
