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

#include "base/log.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/root_messages.h"
#include "sys/local_socket.h"
#include "sys/network_interface.h"

namespace tutti {
namespace {

// A failed root goes on telling latecomers the reason for this long. Launchers start the ranks of a
// job within seconds.
constexpr int64_t kLateArrivalsNs = 10'000'000'000;
// A root waits for the first of its ranks for this long. A program may load for long between making
// an id and using the id; a program that makes ids in vain must not run out of descriptors.
constexpr int64_t kUnaskedNs = int64_t{3600} * 1'000'000'000;

std::string WhoIs(const RootRequest& request) {
  return fmt::format("pid {} on host {}", request.pid, request.host);
}

// Returns the timeout that a person would have set: the time left is a few milliseconds less.
double RoundedSeconds(uint32_t ms) {
  const uint32_t step_ms = ms < 10'000 ? 100 : 1000;
  const uint32_t rounded_ms = (ms + step_ms / 2) / step_ms * step_ms;
  return rounded_ms / 1000.0;
}

// Returns a text such as "2, 5-7 and 9" with at most 16 entries named.
std::string RangesText(const std::vector<uint32_t>& ranks) {
  constexpr size_t kMaxNamed = 16;
  std::string text;
  size_t named = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (named++ == kMaxNamed) return fmt::format("{} and {} more", text, ranks.size() - i);
    if (!text.empty()) text += ", ";
    text +=
        end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

// Returns how many ranks of the job of `request` register with its root.
uint32_t RegistrationsDue(const RootRequest& request) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < request.num_ranks; ++rank) {
    count += RootInCharge(rank, request.num_ranks, request.num_roots) == request.root_index;
  }
  return count;
}

// Each rank of another root asks once when one of its links leads to a rank of this root.
uint32_t LookUpsDue(const RootRequest& request) {
  if (request.num_roots == 1) return 0;
  uint32_t count = 0;
  const auto in_charge = [&](uint32_t rank) {
    return RootInCharge(rank, request.num_ranks, request.num_roots) == request.root_index;
  };
  for (uint32_t rank = 0; rank < request.num_ranks; ++rank) {
    if (in_charge(rank)) continue;
    const auto targets = LinkTargets(static_cast<int>(rank), static_cast<int>(request.num_ranks));
    count += std::any_of(targets.begin(), targets.end(),
                         [&](int target) { return in_charge(static_cast<uint32_t>(target)); });
  }
  return count;
}

// Lives on the loop's thread after Start. Kept alive by its timer in the loop: a timer of
// kUnaskedNs until the first rank asks, then the job's deadline, and after a failure a timer of
// kLateArrivalsNs. The timer is cancelled when the root's work is done.
class RootServer : public std::enable_shared_from_this<RootServer> {
 public:
  // `secret_source` is the setting; `unasked` may be null, see Root::Create.
  RootServer(EventLoop& loop, std::string secret_source, AcceptLimit* unasked = nullptr)
      : loop_(loop), secret_source_(std::move(secret_source)), unasked_(unasked) {}

  Status Start(UniqueFd listen_fd, const Key& key, const std::string& name);

 private:
  struct Client {
    SealedSocket socket;
    RootRequest request;
    Bytes answer;  // empty: not answered yet
    size_t sent = 0;
    bool extra = false;  // came when the job was complete: nobody waits for its answer to leave
  };
  using ClientNumber = uint64_t;

  void OnConnection(SealedSocket socket, const Hello& hello, const SocketAddress& from);
  Status CheckAgainstJob(const RootRequest& request) const;
  void TakeRegistration(ClientNumber number);
  Status TakenTwice(const RootRequest& second) const;
  void OnDeadline();
  void OnClientReady(ClientNumber number);
  void OnClientGone(ClientNumber number);
  void Answer(ClientNumber number, const Status& failure);
  void SendAnswer(ClientNumber number);
  void AnswerAll();
  void Fail(Status reason);
  void FinishIfDone();
  void Finish();
  void LeavePlace();
  void SetTimer(int64_t delay_ns, void (RootServer::*what)());

  EventLoop& loop_;
  const std::string secret_source_;
  AcceptLimit* unasked_;  // null once a rank has asked
  AcceptLimit::Number place_ = 0;
  std::unique_ptr<AuthAcceptor> acceptor_;
  EventLoop::TimerId timer_ = 0;
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
  clients_.emplace(number, Client{std::move(socket), std::move(request).value(), {}, 0, false});
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
    SetTimer(int64_t{said.timeout_ms} * 1'000'000, &RootServer::OnDeadline);
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
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < first_.num_ranks; ++rank) {
    if (RootInCharge(rank, first_.num_ranks, first_.num_roots) != first_.root_index) continue;
    if (!registered_.contains(rank)) missing.push_back(rank);
  }
  const std::string of_root =
      first_.num_roots > 1 ? fmt::format(" of root {}", first_.root_index) : "";
  std::string rejections = DescribeRejected(acceptor_->rejected(), secret_source_);
  if (!rejections.empty()) rejections += ". ";
  Fail(
      Timeout("{} of {} ranks{} arrived within {:g} s; missing: {}. {}"
              "TUTTI_INIT_TIMEOUT_S sets how long is waited",
              registered_.size(), registrations_due_, of_root, RoundedSeconds(first_.timeout_ms),
              RangesText(missing), rejections));
}

// A client has nothing to say after its hello: a readable socket was closed by its client, or
// breaks the protocol.
void RootServer::OnClientReady(ClientNumber number) {
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;
  if (!found->second.answer.empty()) SendAnswer(number);
  const auto still = clients_.find(number);
  if (still == clients_.end()) return;
  std::array<std::byte, 16> ignored;
  const Result<int64_t> got = TryRecv(still->second.socket.fd(), ignored);
  if (got.ok() && *got == 0) return;
  OnClientGone(number);
}

// A rank that goes away before its answer ends the job. After the answer the rank has left in
// order.
void RootServer::OnClientGone(ClientNumber number) {
  const auto found = clients_.find(number);
  const RootRequest request = std::move(found->second.request);
  const bool answered = !found->second.answer.empty();
  const bool extra = found->second.extra;
  loop_.RemoveFd(found->second.socket.fd());
  clients_.erase(found);
  if (answered) {
    answered_ += extra ? 0 : 1;
    if (!failure_.ok()) told_.insert(request.rank);
    FinishIfDone();
  } else if (failure_.ok()) {
    Fail(RemoteError("rank {} ({}) went away before all ranks had arrived", request.rank,
                     WhoIs(request)));
  }
}

// A registered rank gets its neighbours in this root's charge; a rank of another root gets exactly
// the contacts that it asked for.
void RootServer::Answer(ClientNumber number, const Status& failure) {
  Client& client = clients_.at(number);
  if (!client.answer.empty()) return;
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
  client.answer = EncodeRootAnswer(answer);
  SendAnswer(number);
}

// Sends as much as the socket takes; the loop sends the rest. The connection closes with the last
// byte.
void RootServer::SendAnswer(ClientNumber number) {
  Client& client = clients_.at(number);
  const auto rest = std::span(client.answer).subspan(client.sent);
  const Result<size_t> sent = client.socket.TrySend(rest);
  if (sent.ok() && *sent < rest.size()) {
    client.sent += *sent;
    if (loop_.ModifyFd(client.socket.fd(), EPOLLIN | EPOLLOUT | EPOLLRDHUP).ok()) return;
  }
  loop_.RemoveFd(client.socket.fd());
  answered_ += client.extra ? 0 : 1;
  if (!failure_.ok()) told_.insert(client.request.rank);
  clients_.erase(number);
  FinishIfDone();
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

}  // namespace

Result<UniqueId> Root::Create(EventLoop& loop, const Settings& settings, AcceptLimit* unasked) {
  if (!settings.comm_id.empty()) return FixedId(settings);
  UniqueId id;
  TUTTI_ASSIGN(id.root, ChooseListenAddress(BootstrapWish(settings, {})));
  TUTTI_ASSIGN(UniqueFd listen_fd, Listen(id.root, settings.port_range));
  id.key = RandomKey();
  if (!settings.comm_key.empty()) id.flags = UniqueId::kSecret;
  id.id = RandomU64();
  const auto server = std::make_shared<RootServer>(loop, settings.secret_source, unasked);
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
      return std::make_shared<RootServer>(loop, settings.secret_source)
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
