#include "bootstrap/root.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/long_wait.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/root_job.h"
#include "bootstrap/root_messages.h"
#include "sys/local_socket.h"
#include "sys/network_interface.h"
#include "sys/silence.h"

namespace tutti {
namespace {

// A failed root goes on telling latecomers the reason for this long. Launchers start the ranks of a
// job within seconds.
constexpr int64_t kLateArrivalsNs = 10'000'000'000;
// A root waits for the first of its ranks for this long. A program may load for long between making
// an id and using the id; a program that makes ids in vain must not run out of descriptors.
constexpr int64_t kUnaskedNs = int64_t{3600} * 1'000'000'000;
// A root looks at the clock this often while ranks are missing. Less often, the root would take its
// own sleep for a pause of the process.
constexpr int64_t kRootLookNs = LongWait::kStoodStillNs / 4;

// Lives on the loop's thread after Start. Kept alive by its timer in the loop: a timer of
// kUnaskedNs until the first rank asks, then the job's deadline, and after a failure a timer of
// kLateArrivalsNs. The timer is cancelled when the root's work is done.
class RootServer : public std::enable_shared_from_this<RootServer> {
 public:
  // `unasked` may be null, see Root::Create.
  RootServer(EventLoop& loop, const Settings& settings, AcceptLimit* unasked = nullptr)
      : loop_(loop),
        secret_source_(settings.secret_source),
        dead_after_s_(static_cast<int>(settings.host_timeout_s)),
        unasked_(unasked) {}

  Status Start(UniqueFd listen_fd, const Key& key, const std::string& name);

 private:
  struct Client {
    SealedSocket socket;
    RootRequest request;
    Bytes out = {};  // what is to be sent
    size_t sent = 0;
    bool answered = false;  // the answer is in `out`; no more will come
    bool extra = false;     // came when the job was complete: nobody waits for its answer to leave
  };
  using ClientNumber = uint64_t;

  void OnConnection(SealedSocket socket, const Hello& hello, const SocketAddress& from);
  Status CheckAgainstJob(const RootRequest& request) const;
  void TakeRegistration(ClientNumber number);
  Status TakenTwice(const RootRequest& second) const;
  int64_t timeout_ns() const { return int64_t{first_.timeout_ms} * 1'000'000; }
  void OnDeadline();
  void OnLook();
  void LookLater();
  void TellWhoIsMissing();
  std::string WhoIsMissing(std::string_view arrived) const;
  void OnClientReady(ClientNumber number);
  void OnClientGone(ClientNumber number, std::string_view how);
  void Answer(ClientNumber number, const Status& failure);
  void SendOut(ClientNumber number);
  void AnswerAll();
  void Fail(Status reason);
  void FinishIfDone();
  void Finish();
  void LeavePlace();
  void SetTimer(int64_t delay_ns, void (RootServer::*what)());

  EventLoop& loop_;
  const std::string secret_source_;
  const int dead_after_s_;
  AcceptLimit* unasked_;  // null once a rank has asked
  AcceptLimit::Number place_ = 0;
  std::unique_ptr<AuthAcceptor> acceptor_;
  EventLoop::TimerId timer_ = 0;
  LongWait wait_;  // for the missing ranks
  EventLoop::TimerId look_timer_ = 0;
  std::map<ClientNumber, Client> clients_;
  ClientNumber next_number_ = 1;
  std::unordered_map<uint32_t, RootRequest> registered_;  // The key is the rank.
  bool job_known_ = false;
  RootRequest first_;  // the first request: later requests must agree with the first
  uint32_t registrations_due_ = 0;
  uint32_t look_ups_due_ = 0;
  uint32_t answered_ = 0;  // requests whose answer has left
  bool complete_ = false;
  Status failure_;
  std::set<uint32_t> told_;  // ranks that have heard of the failure
};

// Runs wholly on the loop's thread, because ranks may connect before this returns.
Status RootServer::Start(UniqueFd listen_fd, const Key& key, const std::string& name) {
  Status started;
  loop_.RunSync([&] {
    const auto take = [weak = weak_from_this()](SealedSocket socket, const Hello& hello,
                                                const SocketAddress& from) {
      if (const auto self = weak.lock()) self->OnConnection(std::move(socket), hello, from);
    };
    const auto fall_short = [weak = weak_from_this()](const Status& why) {
      const auto self = weak.lock();
      if (self && self->failure_.ok() && !self->complete_) self->Fail(why);
    };
    auto acceptor = AuthAcceptor::Create(loop_, std::move(listen_fd), key, name, take, fall_short);
    started = acceptor.status();
    if (!started.ok()) return;
    acceptor_ = std::move(acceptor).value();
    SetTimer(kUnaskedNs, &RootServer::Finish);
    if (unasked_ == nullptr) return;
    place_ = unasked_->Enter([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Finish();
    });
  });
  return started;
}

// The first request defines the job. Every later request is checked against it, and decides nothing
// but its own rank's part.
void RootServer::OnConnection(SealedSocket socket, const Hello& hello, const SocketAddress& from) {
  Result<RootRequest> request = hello.purpose == Purpose::kRoot && CheckSameUser(socket.fd()).ok()
                                    ? ParseRootRequest(hello.payload)
                                    : RemoteError("the connection is not for a root");
  if (!request.ok()) {
    TUTTI_INFO(kLogBootstrap, "root: a request from {} is ignored: {}", from.ToString(),
               request.status().message());
    return;
  }
  request->contact.key = socket.further_key();
  const ClientNumber number = next_number_++;
  const int raw_fd = socket.fd();
  // A local socket knows no such option, and its other end is on this host.
  if (const Status set = from.valid() ? BreakWhenSilent(raw_fd, dead_after_s_) : Status::Ok();
      !set.ok())
    TUTTI_INFO(kLogBootstrap, "root: {}", set.message());
  clients_.emplace(number,
                   Client{.socket = std::move(socket), .request = std::move(request).value()});
  const Status added =
      loop_.AddFd(raw_fd, EPOLLIN | EPOLLRDHUP, [weak = weak_from_this(), number](uint32_t) {
        if (const auto self = weak.lock()) self->OnClientReady(number);
      });
  if (!added.ok()) {
    TUTTI_WARN("root: {}", added.message());
    clients_.erase(number);
    return;
  }
  const RootRequest& said = clients_.at(number).request;
  if (!job_known_) {
    job_known_ = true;
    LeavePlace();
    first_ = said;
    registrations_due_ = RegistrationsDue(said);
    look_ups_due_ = LookUpsDue(said);
    SetTimer(timeout_ns(), &RootServer::OnDeadline);
    wait_.Begin(NowNs());
    LookLater();
  } else if (Status agreed = CheckAgainstJob(said); !agreed.ok()) {
    // No side is known to be right: all ranks of the larger job are waited for and told.
    registrations_due_ = std::max(registrations_due_, RegistrationsDue(said));
    look_ups_due_ = std::max(look_ups_due_, LookUpsDue(said));
    if (failure_.ok()) {
      Fail(std::move(agreed));
      return;
    }
  }
  if (!failure_.ok()) {
    Answer(number, failure_);
  } else if (said.kind == RootRequest::Kind::kDecline) {
    Fail(RemoteError("rank {} ({}) cannot take part: {}", said.rank, WhoIs(said), said.why));
  } else if (complete_ && said.kind == RootRequest::Kind::kRegister) {
    // The job has begun without this rank; only this rank can be told.
    clients_.at(number).extra = true;
    Answer(number, TakenTwice(said));
  } else if (complete_) {
    Answer(number, Status::Ok());
  } else if (said.kind == RootRequest::Kind::kRegister) {
    TakeRegistration(number);
  }
}

Status RootServer::CheckAgainstJob(const RootRequest& request) const {
  const char* what = nullptr;
  uint32_t theirs = 0;
  uint32_t ours = 0;
  if (request.num_ranks != first_.num_ranks) {
    what = "ranks";
    ours = first_.num_ranks;
    theirs = request.num_ranks;
  } else if (request.num_roots != first_.num_roots) {
    what = "roots";
    ours = first_.num_roots;
    theirs = request.num_roots;
  }
  if (what != nullptr) {
    return InvalidUsage(
        "the ranks disagree on how many {} the job has: rank {} ({}) says {}, rank {} ({}) says {}",
        what, first_.rank, WhoIs(first_), ours, request.rank, WhoIs(request), theirs);
  }
  if (request.root_index != first_.root_index) {
    return InvalidUsage(
        "the ranks disagree on the order of the unique ids: rank {} ({}) has this "
        "root's at place {}, rank {} ({}) at {}",
        first_.rank, WhoIs(first_), first_.root_index, request.rank, WhoIs(request),
        request.root_index);
  }
  return Status::Ok();
}

// Answers go out only when all ranks are here: a rank may then connect to any neighbour at once.
void RootServer::TakeRegistration(ClientNumber number) {
  const RootRequest& request = clients_.at(number).request;
  if (!registered_.emplace(request.rank, request).second) {
    Fail(TakenTwice(request));
    return;
  }
  if (registered_.size() < registrations_due_) return;
  complete_ = true;
  AnswerAll();
}

// REQUIRES: the rank of `second` has registered before.
Status RootServer::TakenTwice(const RootRequest& second) const {
  return InvalidUsage(
      "rank {} is taken twice, by {} and by {}: every process must call with a rank of its own",
      second.rank, WhoIs(registered_.at(second.rank)), WhoIs(second));
}

// Replaces the timer that keeps this object alive.
void RootServer::SetTimer(int64_t delay_ns, void (RootServer::*what)()) {
  const auto self = shared_from_this();
  loop_.CancelTimer(timer_);
  timer_ = loop_.AddTimer(delay_ns, [self, what] { (self.get()->*what)(); });
}

void RootServer::OnDeadline() {
  if (complete_) {  // a rank that has not looked up by now will not
    Finish();
    return;
  }
  std::string rejections = DescribeRejected(acceptor_->rejected(), secret_source_);
  if (!rejections.empty()) rejections += ". ";
  const std::string within =
      fmt::format("arrived within {:g} s", RoundedSeconds(first_.timeout_ms));
  Fail(Timeout("{}. {}TUTTI_INIT_TIMEOUT_S sets how long is waited", WhoIsMissing(within),
               rejections));
}

// A client has nothing to say after its hello: a readable socket was closed by its client, or
// breaks the protocol.
void RootServer::OnClientReady(ClientNumber number) {
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;
  if (!found->second.out.empty()) SendOut(number);
  const auto still = clients_.find(number);
  if (still == clients_.end()) return;
  std::array<std::byte, 16> ignored;
  const Result<int64_t> got = TryRecv(still->second.socket.fd(), ignored);
  if (got.ok() && *got == 0) return;
  OnClientGone(number, got.ok() ? "closed the connection" : got.status().message());
}

// A rank that goes away before its answer ends the job. After the answer the rank has left in
// order.
void RootServer::OnClientGone(ClientNumber number, std::string_view how) {
  const auto found = clients_.find(number);
  const RootRequest request = std::move(found->second.request);
  const bool answered = found->second.answered;
  const bool extra = found->second.extra;
  loop_.RemoveFd(found->second.socket.fd());
  clients_.erase(found);
  if (answered) {
    answered_ += extra ? 0 : 1;
    if (!failure_.ok()) told_.insert(request.rank);
    FinishIfDone();
  } else if (failure_.ok()) {
    Fail(RemoteError("rank {} ({}) went away before all ranks had arrived: {}", request.rank,
                     WhoIs(request), how));
  }
}

// A registered rank gets its neighbours in this root's charge; a rank of another root gets exactly
// the contacts that it asked for.
void RootServer::Answer(ClientNumber number, const Status& failure) {
  Client& client = clients_.at(number);
  if (client.answered) return;
  RootAnswer answer;
  answer.failure = failure;
  if (failure.ok()) {
    const RootRequest& request = client.request;
    std::vector<uint32_t> wanted = request.wanted;
    if (request.kind == RootRequest::Kind::kRegister) {
      for (const int target :
           LinkTargets(static_cast<int>(request.rank), static_cast<int>(request.num_ranks))) {
        wanted.push_back(static_cast<uint32_t>(target));
      }
    }
    for (const uint32_t rank : wanted) {
      const auto found = registered_.find(rank);
      if (found != registered_.end()) answer.contacts.emplace_back(rank, found->second.contact);
    }
  }
  const Bytes encoded = EncodeRootAnswer(answer);
  client.out.insert(client.out.end(), encoded.begin(), encoded.end());
  client.answered = true;
  SendOut(number);
}

// Sends as much as the socket takes; the loop sends the rest. The connection closes with the last
// byte of the answer.
void RootServer::SendOut(ClientNumber number) {
  Client& client = clients_.at(number);
  const auto rest = std::span(client.out).subspan(client.sent);
  const Result<size_t> sent = client.socket.TrySend(rest);
  const bool all = sent.ok() && *sent == rest.size();
  if (sent.ok() && (!all || !client.answered)) {
    client.sent += *sent;
    if (all) client.out.clear();
    if (all) client.sent = 0;
    const uint32_t waits = all ? 0u : EPOLLOUT;
    if (loop_.ModifyFd(client.socket.fd(), EPOLLIN | waits | EPOLLRDHUP).ok()) return;
  }
  loop_.RemoveFd(client.socket.fd());
  answered_ += client.extra ? 0 : 1;
  if (!failure_.ok()) told_.insert(client.request.rank);
  clients_.erase(number);
  FinishIfDone();
}

// Tells the waiting ranks who is missing. A rank that has not read the last notice gets no further
// one.
void RootServer::TellWhoIsMissing() {
  const Bytes notice =
      EncodeRootAnswer({.notice = WhoIsMissing("have arrived"), .failure = {}, .contacts = {}});
  std::vector<ClientNumber> numbers;
  for (const auto& [number, client] : clients_)
    if (client.out.empty() && client.request.kind == RootRequest::Kind::kRegister)
      numbers.push_back(number);
  for (const ClientNumber number : numbers) {
    clients_.at(number).out = notice;
    SendOut(number);
  }
}

// Looks at the clock while ranks are missing. Where this process stood still, the missing ranks may
// have stood still as well, so all ranks get the whole time again.
void RootServer::OnLook() {
  if (complete_ || !failure_.ok()) return;
  const LongWait::Due due = wait_.Look(NowNs(), timeout_ns());
  if (due.stood_still) SetTimer(timeout_ns(), &RootServer::OnDeadline);
  if (due.warn) TellWhoIsMissing();
  LookLater();
}

void RootServer::LookLater() {
  look_timer_ = loop_.AddTimer(kRootLookNs, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnLook();
  });
}

// Returns a text such as "3 of 4 ranks have arrived; missing: 2", where `arrived` is the verb.
std::string RootServer::WhoIsMissing(std::string_view arrived) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < first_.num_ranks; ++rank) {
    if (RootInCharge(rank, first_.num_ranks, first_.num_roots) != first_.root_index) continue;
    if (!registered_.contains(rank)) missing.push_back(rank);
  }
  const std::string of_root =
      first_.num_roots > 1 ? fmt::format(" of root {}", first_.root_index) : "";
  return fmt::format("{} of {} ranks{} {}; missing: {}", registered_.size(), registrations_due_,
                     of_root, arrived, RangesText(missing));
}

void RootServer::AnswerAll() {
  const auto self = shared_from_this();  // the last answer ends this root
  std::vector<ClientNumber> numbers;
  for (const auto& [number, client] : clients_) numbers.push_back(number);
  for (const ClientNumber number : numbers) {
    if (clients_.contains(number)) Answer(number, failure_);
  }
}

void RootServer::Fail(Status reason) {
  const auto self = shared_from_this();
  TUTTI_INFO(kLogBootstrap, "root: the job cannot start: {}", reason.message());
  failure_ = std::move(reason);
  SetTimer(kLateArrivalsNs, &RootServer::Finish);
  AnswerAll();
}

void RootServer::FinishIfDone() {
  const uint32_t due = registrations_due_ + look_ups_due_;
  // After a failure each rank must hear of it, and counting answers is not enough: two ranks that
  // claim the same number are both told, and so are ranks that come later.
  if (failure_.ok() ? complete_ && answered_ >= due : told_.size() >= due) Finish();
}

void RootServer::LeavePlace() {
  if (AcceptLimit* const unasked = std::exchange(unasked_, nullptr)) unasked->Leave(place_);
}

// Ends the root. The timer has kept this object alive, and `self` does so until the return.
void RootServer::Finish() {
  const auto self = shared_from_this();
  LeavePlace();
  acceptor_.reset();
  for (const auto& [number, client] : clients_) loop_.RemoveFd(client.socket.fd());
  clients_.clear();
  loop_.CancelTimer(timer_);
  loop_.CancelTimer(look_timer_);
}

Result<UniqueId> FixedId(const Settings& settings) {
  UniqueId id;
  Result<SocketAddress> root =
      ParseSocketAddress(settings.comm_id, FamilyNumber(settings.socket_family));
  if (!root.ok()) return std::move(root).status().Annotate("NCCL_COMM_ID cannot be used");
  id.root = std::move(root).value();
  if (id.root.port == 0) {
    return InvalidUsage(
        "NCCL_COMM_ID is \"{}\": the port must not be 0, because all ranks have to "
        "know it beforehand",
        settings.comm_id);
  }
  id.flags = settings.comm_key.empty() ? UniqueId::kNoKey : UniqueId::kKeyFromSetting;
  id.key = WithSecret(KeyFromText(fmt::format("fixed address, port {}", id.root.port)),
                      settings.comm_key, "fixed address");
  // The key is the same on every rank, under any name of the address.
  std::memcpy(&id.id, id.key.data(), sizeof(id.id));
  if (id.LocalName().empty()) {
    TUTTI_TRY(CheckMeetingOverTcp(settings.comm_key, settings.insecure,
                                  fmt::format("NCCL_COMM_ID={}", settings.comm_id)));
  }
  return id;
}

// Returns the address to listen at. A loopback address says nothing about other hosts, which may
// have come through a tunnel. A wrong address must not keep the root from its work.
Result<SocketAddress> ListenAddressNear(const Settings& settings, const SocketAddress& meeting) {
  if (meeting.valid() && !meeting.IsLoopback()) {
    Result<SocketAddress> near = ChooseListenAddress(BootstrapWish(settings, meeting));
    if (near.ok() && !near->IsLoopback()) return near;
  }
  return ChooseListenAddress(BootstrapWish(settings, {}));
}

}  // namespace

Result<UniqueId> Root::Create(EventLoop& loop, const Settings& settings, AcceptLimit* unasked,
                              const SocketAddress& meeting) {
  if (!settings.comm_id.empty()) return FixedId(settings);
  UniqueId id;
  TUTTI_ASSIGN(id.root, ListenAddressNear(settings, meeting));
  TUTTI_ASSIGN(UniqueFd listen_fd, Listen(id.root, settings.port_range));
  id.key = RandomKey();
  if (!settings.comm_key.empty()) id.flags = UniqueId::kSecret;
  id.id = RandomU64();
  const auto server = std::make_shared<RootServer>(loop, settings, unasked);
  TUTTI_TRY(server->Start(std::move(listen_fd), KeyOf(id, settings),
                          fmt::format("the root at {}", id.root.ToString())));
  TUTTI_INFO(kLogBootstrap, "root listens at {}", id.root.ToString());
  return id;
}

Key Root::KeyOf(const UniqueId& id, const Settings& settings) {
  return WithSecret(id.key, settings.comm_key, "bootstrap");
}

// Tries again while the port is in use, because the root of the job before may still be serving
// there.
Status Root::StartAt(EventLoop& loop, const UniqueId& id, const Settings& settings,
                     const WaitLimits& limits) {
  // An earlier job's root may still be telling latecomers the reason of its failure.
  const Deadline patience = Deadline::After(kLateArrivalsNs + 1'000'000'000);
  for (;;) {
    SocketAddress address = id.root;
    int error = 0;
    Result<UniqueFd> listen_fd =
        id.LocalName().empty() ? Listen(address, {}, &error) : ListenLocal(id.LocalName(), &error);
    if (listen_fd.ok()) {
      return std::make_shared<RootServer>(loop, settings)
          ->Start(std::move(listen_fd).value(), id.key,
                  fmt::format("the root at {}", address.ToString()));
    }
    if (error != EADDRINUSE || patience.Passed() || limits.Over()) {
      return std::move(listen_fd).status().Annotate(
          error == EADDRINUSE ? "rank 0 cannot serve the address of NCCL_COMM_ID (another process "
                                "says that it is rank 0, or another job has this address)"
                              : "rank 0 cannot serve the address of NCCL_COMM_ID");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace tutti
