#include "bootstrap/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/exchange.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/root.h"
#include "bootstrap/root_client.h"
#include "bootstrap/root_messages.h"
#include "sys/network_interface.h"

namespace tutti {
namespace {

// A communicator: a Membership of an Endpoint, and the ids and counters of this rank's calls.
class BootstrapImpl final : public Bootstrap {
 public:
  BootstrapImpl(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<Membership> membership,
                UniqueId key_holder, uint64_t id)
      : endpoint_(std::move(endpoint)),
        membership_(std::move(membership)),
        key_holder_(key_holder),
        id_(id) {}
  ~BootstrapImpl() override { endpoint_->Leave(membership_); }

  // Does the rest of Create once the neighbours' contacts are known: links, and the exchange by
  // which every rank learns all addresses.
  Status Initialise(Deadline deadline);
  PhaseTimes& mutable_times() { return times_; }

  int rank() const override { return membership_->rank; }
  int num_ranks() const override { return membership_->size(); }
  uint64_t id() const override { return id_; }
  const UniqueId& key_holder() const override { return key_holder_; }

  Status AllGather(void* data, size_t bytes_per_rank, Deadline deadline,
                   const std::atomic<bool>* abort_flag) override;
  Result<std::vector<Bytes>> AllGatherV(std::span<const std::byte> mine,
                                        Deadline deadline) override {
    return Exchange(mine, deadline, nullptr);
  }
  Status Barrier(Deadline deadline) override;
  Status Send(int peer, uint32_t tag, std::span<const std::byte> payload) override {
    return endpoint_->Send(membership_, peer, LinkFrameType::kMessage, tag, payload);
  }
  Result<Bytes> Recv(int peer, uint32_t tag, Deadline deadline) override {
    return endpoint_->Recv(*membership_, peer, LinkFrameType::kMessage, tag, deadline);
  }
  std::function<Status()> FollowWait(const char* what, int peer, Deadline deadline,
                                     const std::atomic<bool>* abort_flag) override {
    return endpoint_->FollowWait(*membership_, what, peer, deadline, abort_flag);
  }
  void SendControl(int peer, std::span<const std::byte> payload) override {
    endpoint_->SendControl(membership_, peer, payload, /*only_linked=*/false);
  }
  bool SendControlIfLinked(int peer, std::span<const std::byte> payload) override {
    return endpoint_->SendControl(membership_, peer, payload, /*only_linked=*/true);
  }
  std::vector<int> LinkedRanks() const override;
  int64_t RoundTripNs(int peer) override { return endpoint_->RoundTripNs(*membership_, peer); }
  void SetEvents(Events events) override { endpoint_->SetEvents(membership_, std::move(events)); }
  void SetWaitListener(WaitListener* listener) override {
    endpoint_->SetWaitListener(*membership_, listener);
  }
  void GiveUp(const Status& reason) override { endpoint_->GiveUp(membership_, reason); }
  Status Complete() override { return endpoint_->Complete(*membership_); }
  void Cancel(Status reason) override { endpoint_->Cancel(*membership_, std::move(reason)); }
  Status CancelReason() override { return endpoint_->CancelReason(*membership_); }
  std::vector<LostRank> LostRanks() override { return endpoint_->LostRanks(*membership_); }
  std::unique_ptr<Bootstrap> CreateChild(uint64_t child_id, std::vector<int> parent_ranks,
                                         std::atomic<bool>* abort_flag) override;
  PhaseTimes phase_times() const override { return times_; }

 private:
  Result<std::vector<Bytes>> Exchange(std::span<const std::byte> mine, Deadline deadline,
                                      const std::atomic<bool>* abort_flag);
  void SetJobKey(const Key& random);
  Bytes DescribeSelf() const;
  Status TakeDescription(int rank, const Bytes& description);

  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<Membership> membership_;
  UniqueId key_holder_;
  uint64_t id_;
  uint32_t exchanges_ = 0;  // the tag of the next exchange: all ranks count alike
  PhaseTimes times_;
};

// All ranks count their exchanges alike, so the count tells the messages of two exchanges apart.
Result<std::vector<Bytes>> BootstrapImpl::Exchange(std::span<const std::byte> mine,
                                                   Deadline deadline,
                                                   const std::atomic<bool>* abort_flag) {
  const uint32_t tag = exchanges_++;
  return Disseminate(
      rank(), num_ranks(), Bytes(mine.begin(), mine.end()),
      [&](int peer, const Bytes& message) {
        return endpoint_->Send(membership_, peer, LinkFrameType::kCollective, tag, message);
      },
      [&](int peer) {
        return endpoint_->Recv(*membership_, peer, LinkFrameType::kCollective, tag, deadline,
                               abort_flag);
      });
}

Status BootstrapImpl::AllGather(void* data, size_t bytes_per_rank, Deadline deadline,
                                const std::atomic<bool>* abort_flag) {
  auto* bytes = static_cast<std::byte*>(data);
  const std::span mine(bytes + static_cast<size_t>(rank()) * bytes_per_rank, bytes_per_rank);
  TUTTI_ASSIGN(const std::vector<Bytes> parts, Exchange(mine, deadline, abort_flag));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() != bytes_per_rank) {
      return InvalidUsage("rank {} brought {} bytes to an exchange where rank {} brought {}", i,
                          parts[i].size(), rank(), bytes_per_rank);
    }
    if (bytes_per_rank > 0)
      std::memcpy(bytes + i * bytes_per_rank, parts[i].data(), bytes_per_rank);
  }
  return Status::Ok();
}

Status BootstrapImpl::Barrier(Deadline deadline) { return AllGatherV({}, deadline).status(); }

// Returns the ranks whose LinkTargets include this rank.
std::vector<int> LinkSources(int rank, int num_ranks) {
  std::vector<int> sources;
  for (int64_t distance = 1; distance < num_ranks; distance *= 2) {
    sources.push_back(static_cast<int>((rank - distance + num_ranks) % num_ranks));
  }
  return sources;
}

std::vector<int> BootstrapImpl::LinkedRanks() const {
  std::vector<int> ranks = LinkTargets(rank(), num_ranks());
  const std::vector<int> sources = LinkSources(rank(), num_ranks());
  ranks.insert(ranks.end(), sources.begin(), sources.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// The members' addresses are known to the endpoint, so a child needs no exchange of its own.
std::unique_ptr<Bootstrap> BootstrapImpl::CreateChild(uint64_t child_id,
                                                      std::vector<int> parent_ranks,
                                                      std::atomic<bool>* abort_flag) {
  std::vector<int> members;
  int child_rank = 0;
  for (size_t i = 0; i < parent_ranks.size(); ++i) {
    if (parent_ranks[i] == rank()) child_rank = static_cast<int>(i);
    members.push_back(membership_->members[static_cast<size_t>(parent_ranks[i])]);
  }
  const auto membership = std::make_shared<Membership>(child_id, child_rank, std::move(members));
  membership->abort_flag = abort_flag;
  membership->parent = membership_;
  membership->parent_ranks = std::move(parent_ranks);
  endpoint_->Join(membership);
  endpoint_->OpenLinks(*membership, LinkTargets(child_rank, membership->size()));
  return std::make_unique<BootstrapImpl>(endpoint_, membership, key_holder_, child_id);
}

// Returns the description that every rank sends to all: contact[56], pid u32, host text, a random
// number (rank 0's names the communicator).
Bytes BootstrapImpl::DescribeSelf() const {
  WireWriter writer;
  WriteContact(writer, endpoint_->contact());
  writer.U32(static_cast<uint32_t>(getpid()));
  writer.Text(HostName(), 64);
  writer.U64(RandomU64() | 1);
  return std::move(writer).Take();
}

// Gives a job that met at a local socket a key: everybody knows the key in the id of such a job.
// All ranks learn the key of rank 0's links, and nobody else does.
void BootstrapImpl::SetJobKey(const Key& random) {
  if (key_holder_.LocalName().empty()) return;
  key_holder_.key = KeyFromText({reinterpret_cast<const char*>(random.data()), random.size()});
}

Status BootstrapImpl::TakeDescription(int rank, const Bytes& description) {
  WireReader reader(description);
  PeerIdentity info;
  info.contact = ReadContact(reader);
  info.pid = reader.U32();
  info.host = reader.Text();
  const uint64_t random = reader.U64();
  if (reader.failed() || !reader.AtEnd()) {
    return RemoteError(
        "rank {} described itself in a way that this rank does not understand: do "
        "all ranks use the same version of the library?",
        rank);
  }
  if (rank == 0) id_ = random;
  if (rank == 0) SetJobKey(info.contact.key);
  endpoint_->SetPeer(rank, std::move(info));
  return Status::Ok();
}

// The exchange starts only when the links to all targets are open: a rank that cannot be reached is
// then named by its neighbour, and not by a rank far away in the exchange.
Status BootstrapImpl::Initialise(Deadline deadline) {
  if (num_ranks() == 1) {
    SetJobKey(RandomKey());
    return Status::Ok();
  }
  const int64_t start_ns = NowNs();
  const std::vector<int> targets = LinkTargets(rank(), num_ranks());
  endpoint_->ExpectLinks(*membership_, LinkSources(rank(), num_ranks()));
  endpoint_->OpenLinks(*membership_, targets);
  TUTTI_TRY(endpoint_->AwaitLinks(*membership_, targets, deadline));
  const int64_t linked_ns = NowNs();
  TUTTI_ASSIGN(const std::vector<Bytes> all, AllGatherV(DescribeSelf(), deadline));
  for (int i = 0; i < num_ranks(); ++i) {
    TUTTI_TRY(TakeDescription(i, all[static_cast<size_t>(i)]));
  }
  times_.link_ns = linked_ns - start_ns;
  times_.exchange_ns = NowNs() - linked_ns;
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Create

std::vector<int> Everybody(int num_ranks) {
  std::vector<int> ranks(static_cast<size_t>(num_ranks));
  for (int i = 0; i < num_ranks; ++i) ranks[static_cast<size_t>(i)] = i;
  return ranks;
}

Status CheckOptions(const Bootstrap::Options& options) {
  if (options.num_ranks < 1 || static_cast<uint32_t>(options.num_ranks) > kMaxRanks) {
    return InvalidArgument("the number of ranks is {}, but must be from 1 to {}", options.num_ranks,
                           kMaxRanks);
  }
  if (options.rank < 0 || options.rank >= options.num_ranks) {
    return InvalidArgument("rank {} is not between 0 and {}", options.rank, options.num_ranks - 1);
  }
  if (options.ids.empty() || options.ids.size() > static_cast<size_t>(options.num_ranks)) {
    return InvalidArgument(
        "{} unique ids were given for {} ranks: there must be at least one and "
        "at most one for each rank",
        options.ids.size(), options.num_ranks);
  }
  return Status::Ok();
}

// Above a threshold of ranks per root, each rank waits its turn, because a root cannot serve all
// ranks at once.
Status WaitForTurn(const Settings& settings, const Bootstrap::Options& options) {
  const int64_t ranks_per_root = options.num_ranks / static_cast<int64_t>(options.ids.size());
  if (ranks_per_root <= settings.uid_stagger_threshold) return Status::Ok();
  const double turn = static_cast<double>(options.rank % ranks_per_root);
  const Deadline until =
      Deadline::AfterSeconds(turn / static_cast<double>(settings.uid_stagger_rate));
  while (!until.Passed() && !options.deadline.Passed()) {
    if (options.limits().Aborted())
      return InternalError("initialisation was aborted by the caller");
    std::this_thread::sleep_for(std::chrono::milliseconds(until.RemainingMs(kAbortCheckMs)));
  }
  return Status::Ok();
}

// Returns the root in charge of this rank.
uint32_t OwnRoot(const Bootstrap::Options& options) {
  return RootInCharge(static_cast<uint32_t>(options.rank), static_cast<uint32_t>(options.num_ranks),
                      static_cast<uint32_t>(options.ids.size()));
}

RootRequest RequestOf(const Bootstrap::Options& options) {
  RootRequest request;
  request.rank = static_cast<uint32_t>(options.rank);
  request.num_ranks = static_cast<uint32_t>(options.num_ranks);
  request.num_roots = static_cast<uint32_t>(options.ids.size());
  request.pid = static_cast<uint32_t>(getpid());
  request.host = HostName();
  return request;
}

// Registers with the root in charge of this rank, then asks the other roots for the neighbours in
// their charge.
Status MeetRoots(Endpoint& endpoint, const Settings& settings, Bootstrap::Options& options) {
  const auto num_ranks = static_cast<uint32_t>(options.num_ranks);
  const auto num_roots = static_cast<uint32_t>(options.ids.size());
  RootRequest request = RequestOf(options);
  request.contact = endpoint.contact();
  const uint32_t own = OwnRoot(options);
  std::map<uint32_t, std::vector<uint32_t>> wanted;  // The key is the root.
  for (const int target : LinkTargets(options.rank, options.num_ranks)) {
    const auto rank = static_cast<uint32_t>(target);
    wanted[RootInCharge(rank, num_ranks, num_roots)].push_back(rank);
  }
  wanted.try_emplace(own);
  RootWait wait = {.limits = options.limits(),
                   .dead_after_s = static_cast<int>(settings.host_timeout_s),
                   .secret_source = settings.secret_source,
                   .name = options.name,
                   .abort_reason = options.abort_reason};
  // The own root first: the others answer once all their ranks have registered, and some of these
  // ranks may wait for this rank's own root.
  const auto ask = [&](uint32_t root_index, const std::vector<uint32_t>& ranks) -> Status {
    const bool registers = root_index == own;
    request.kind = registers ? RootRequest::Kind::kRegister : RootRequest::Kind::kLookUp;
    request.root_index = root_index;
    request.wanted = ranks;
    TUTTI_ASSIGN(const RootAnswer answer, AskRoot(options.ids[root_index], request, wait));
    options.deadline = wait.limits.deadline;
    if (!answer.failure.ok()) return answer.failure;
    size_t found = 0;
    for (const auto& [rank, contact] : answer.contacts) {
      if (registers && rank == request.rank) TUTTI_TRY(endpoint.Listen(contact.key));
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      endpoint.SetPeer(static_cast<int>(rank),
                       PeerIdentity{.contact = contact, .pid = 0, .host = {}});
      ++found;
    }
    if (found == ranks.size()) return Status::Ok();
    return RemoteError("the root at {} did not tell all neighbours of rank {}",
                       options.ids[root_index].root.ToString(), options.rank);
  };
  TUTTI_TRY(ask(own, wanted[own]));
  for (const auto& [root_index, ranks] : wanted) {
    if (root_index != own) TUTTI_TRY(ask(root_index, ranks));
  }
  return Status::Ok();
}

Result<std::shared_ptr<Endpoint>> OpenEndpoint(EventLoop& loop, const Settings& settings,
                                               const Bootstrap::Options& options) {
  const Endpoint::Options wanted = {.rank = options.rank,
                                    .num_ranks = options.num_ranks,
                                    .dead_after_s = static_cast<int>(settings.host_timeout_s)};
  if (options.num_ranks == 1) return Endpoint::Create(loop, wanted, UniqueFd(), {});
  const UniqueId& root = options.ids[OwnRoot(options)];
  // A network that reaches the root also reaches the other ranks.
  TUTTI_ASSIGN(SocketAddress address, ChooseListenAddress(BootstrapWish(settings, root.root)));
  TUTTI_ASSIGN(UniqueFd listen_fd, Listen(address, settings.port_range));
  TUTTI_INFO(kLogBootstrap, "rank {} of {} listens at {}; its root is at {}", options.rank,
             options.num_ranks, address.ToString(), root.root.ToString());
  return Endpoint::Create(loop, wanted, std::move(listen_fd), address);
}

// Turns the ids into those by which this host reaches their roots. An id with a fixed address
// stays: it was made from this host's own setting.
Status LocaliseIds(const Settings& settings, std::vector<UniqueId>& ids) {
  for (UniqueId& id : ids) {
    if (!id.root.IsLinkLocal() || id.AddressIsFixed()) continue;
    TUTTI_ASSIGN(const std::vector<NetworkInterface> interfaces, ListNetworkInterfaces());
    id.root = WithLocalScope(id.root, interfaces, BootstrapWish(settings, {}).names);
  }
  return Status::Ok();
}

Status StartFixedRoot(EventLoop& loop, const Settings& settings,
                      const Bootstrap::Options& options) {
  const UniqueId& id = options.ids[0];
  if (!id.AddressIsFixed() || options.rank != 0 || options.num_ranks == 1) return Status::Ok();
  return Root::StartAt(loop, id, settings, options.limits());
}

void DeclineAt(const Bootstrap::Options& options, const Status& why) {
  RootRequest request = RequestOf(options);
  request.root_index = OwnRoot(options);
  DeclineJob(options.ids[request.root_index], request, why, {options.deadline, nullptr});
}

// Fails where the ids and this rank disagree about whether the job has a secret. Such a rank cannot
// prove itself, and the sentence is to say so at once.
Status CheckIdsAgreeOnSecret(const Settings& settings, const Bootstrap::Options& options) {
  const bool has_secret = !settings.comm_key.empty();
  const auto differs = [&](const UniqueId& id) { return id.HasSecret() != has_secret; };
  if (std::none_of(options.ids.begin(), options.ids.end(), differs)) return Status::Ok();
  if (has_secret) {
    return InvalidUsage(
        "rank {} of {} (host {}) has a secret, and there was none where the unique id was made: "
        "give every rank the same secret before ncclGetUniqueId, or no rank ({})",
        options.rank, options.num_ranks, HostName(), SecretAdvice(settings.secret_source));
  }
  return InvalidUsage(
      "the unique id was made with a secret, and rank {} of {} (host {}) has none: set "
      "TUTTI_COMM_KEY to the same secret on every rank, or copy ~/.tutti/key to every host ({})",
      options.rank, options.num_ranks, HostName(), SecretAdvice(settings.secret_source));
}

void MixSecret(const Settings& settings, std::vector<UniqueId>& ids) {
  for (UniqueId& id : ids) id.key = Root::KeyOf(id, settings);
}

// Declines with the descriptor in reserve, because this process may have used up all others, and
// the system may refuse DeclineJob a table of descriptors of its own.
void DeclineShort(EventLoop& loop, const Bootstrap::Options& options, const Status& why) {
  loop.RunSync([&] { loop.accept_limit().ReleaseReserve(); });
  DeclineAt(options, why);
  loop.RunSync([&] { loop.accept_limit().RestoreReserve(); });
}

}  // namespace

void Bootstrap::Decline(const Settings& settings, const Options& options, const Status& why) {
  Options with_secret = options;
  MixSecret(settings, with_secret.ids);
  DeclineAt(with_secret, why);
}

// Every failure is told to the other ranks: by the root before the ranks know one another
// (Decline), by the links afterwards (GiveUp).
Result<std::unique_ptr<Bootstrap>> Bootstrap::Create(EventLoop& loop, const Settings& settings,
                                                     const Options& wanted) {
  TUTTI_TRY(CheckOptions(wanted));
  const int64_t start_ns = NowNs();
  Options options = wanted;
  if (options.deadline.at_ns() == Deadline::Never().at_ns()) {
    options.deadline = Deadline::AfterSeconds(settings.init_timeout_s);
  }
  TUTTI_TRY(LocaliseIds(settings, options.ids));
  if (const Status agreed = CheckIdsAgreeOnSecret(settings, options); !agreed.ok()) {
    // Reaches a root without a secret. A root with a secret counts a connection without the key.
    if (options.num_ranks > 1) DeclineAt(options, agreed);
    return agreed;
  }
  MixSecret(settings, options.ids);
  TUTTI_TRY(StartFixedRoot(loop, settings, options));
  const Result<std::shared_ptr<Endpoint>> opened = OpenEndpoint(loop, settings, options);
  if (!opened.ok()) {
    DeclineShort(loop, options, opened.status());
    return opened.status();
  }
  const std::shared_ptr<Endpoint>& endpoint = *opened;
  const auto membership =
      std::make_shared<Membership>(0, options.rank, Everybody(options.num_ranks));
  membership->abort_flag = options.abort_flag;
  membership->name = options.name;
  endpoint->Join(membership);
  auto bootstrap =
      std::make_unique<BootstrapImpl>(endpoint, membership, options.ids[0], RandomU64() | 1);
  const auto initialise = [&]() -> Status {
    if (options.num_ranks > 1) {
      TUTTI_TRY(WaitForTurn(settings, options));
      Status met = MeetRoots(*endpoint, settings, options);
      // The root may not know of this rank yet.
      if (met.code() == Code::kSystemError) DeclineShort(loop, options, met);
      TUTTI_TRY(std::move(met));
      // The later steps know the deadline from before a pause of this process.
      endpoint->Postpone(*membership, wanted.deadline, options.deadline);
    } else if (!options.ids[0].AddressIsFixed()) {  // With a fixed address no root was started.
      TUTTI_TRY(ReleaseRoot(options.ids[0], RequestOf(options), options.limits()));
    }
    bootstrap->mutable_times().register_ns = NowNs() - start_ns;
    return bootstrap->Initialise(options.deadline);
  };
  if (Status status = initialise(); !status.ok()) {
    // The reason that ended the making came first; a wait ended by the abort flag knows less.
    const bool aborted = options.limits().Aborted();
    if (Status cancelled = bootstrap->CancelReason(); !cancelled.ok())
      status = std::move(cancelled);
    else if (Status raised = aborted && options.abort_reason ? options.abort_reason() : Status();
             !raised.ok())
      status = std::move(raised);
    bootstrap->GiveUp(status);
    return status;
  }
  return std::unique_ptr<Bootstrap>(std::move(bootstrap));
}

}  // namespace tutti
