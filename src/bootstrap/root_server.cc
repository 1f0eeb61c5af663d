#include "bootstrap/root_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/root_job.h"
#include "sys/local_socket.h"
#include "sys/silence.h"

namespace tutti {
namespace {

// A root waits for the first of its ranks for this long. A program may load for long between making
// an id and using the id; a program that makes ids in vain must not run out of descriptors.
constexpr int64_t kUnaskedNs = int64_t{3600} * 1'000'000'000;
// A root looks at the clock this often while ranks are missing. Less often, the root would take its
// own sleep for a pause of the process.
constexpr int64_t kRootLookNs = LongWait::kStoodStillNs / 4;
// A rank whose connection was reset connects again at once, but a lost packet costs it a second.
// After this time, in as many rounds, a rank without an answer counts as lost. A timer that is late
// because this process stood still thus ends a round only.
constexpr int64_t kStrayNs = 4'000'000'000;
constexpr int kStrayRounds = 4;

Status WentAway(const RootRequest& request, std::string_view how) {
  return RemoteError("rank {} ({}) went away before all ranks had arrived: {}", request.rank,
                     WhoIs(request), how);
}

}  // namespace

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
  const bool again = said.kind == RootRequest::Kind::kLookUp || HasRegistered(said);
  if (again) ForgetEarlier(number);
  if (!failure_.ok()) {
    Answer(number, failure_);
  } else if (said.kind == RootRequest::Kind::kDecline) {
    Fail(RemoteError("rank {} ({}) cannot take part: {}", said.rank, WhoIs(said), said.why));
  } else if (!again && registered_.contains(said.rank)) {
    TakeSecond(number);
  } else if (complete_) {
    Answer(number, Status::Ok());
  } else if (said.kind == RootRequest::Kind::kRegister) {
    TakeRegistration(number);
  }
}

// Two processes say that they are one rank. Once the job has begun without the second process, only
// this process can be told.
void RootServer::TakeSecond(ClientNumber number) {
  Client& client = clients_.at(number);
  const Status twice = TakenTwice(client.request);
  if (!complete_) {
    Fail(twice);
    return;
  }
  client.extra = true;
  Answer(number, twice);
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

bool RootServer::HasRegistered(const RootRequest& request) const {
  const auto known = registered_.find(request.rank);
  return request.kind == RootRequest::Kind::kRegister && known != registered_.end() &&
         IsSameProcess(known->second, request);
}

// Forgets the earlier connection of a process that connects again. A rank's earlier key stays,
// which other ranks may know.
void RootServer::ForgetEarlier(ClientNumber number) {
  const RootRequest& request = clients_.at(number).request;
  strays_.erase({request.kind, request.rank});
  const auto earlier = std::find_if(clients_.begin(), clients_.end(), [&](const auto& entry) {
    const auto& [other, client] = entry;
    return other != number && client.request.kind == request.kind &&
           client.request.rank == request.rank && !client.extra;
  });
  if (earlier == clients_.end()) return;
  loop_.RemoveFd(earlier->second.socket.fd());
  clients_.erase(earlier);
}

// Answers go out only when all ranks are here: a rank may then connect to any neighbour at once.
void RootServer::TakeRegistration(ClientNumber number) {
  const RootRequest& request = clients_.at(number).request;
  registered_.emplace(request.rank, request);
  const bool strayed = std::any_of(strays_.begin(), strays_.end(), [](const auto& stray) {
    return stray.first.first == RootRequest::Kind::kRegister;
  });
  if (registered_.size() < registrations_due_ || strayed) return;
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
  OnClientGone(number, got.ok() ? RemoteError("closed the connection") : got.status());
}

// Where the connection was reset, the rank may not have the answer: a live rank connects again.
void RootServer::OnClientGone(ClientNumber number, const Status& how) {
  const auto found = clients_.find(number);
  const Client gone = std::move(found->second);
  loop_.RemoveFd(gone.socket.fd());
  clients_.erase(found);
  if (gone.extra) return;
  const Status why = WentAway(gone.request, how.message());
  if (how.code() != Code::kSystemError) {
    OnRankGone(gone.request, gone.answered, why);
    return;
  }
  strays_[{gone.request.kind, gone.request.rank}] = number;
  AwaitStray(gone.request, gone.answered, number, why, kStrayRounds);
}

void RootServer::AwaitStray(const RootRequest& request, bool answered, ClientNumber number,
                            const Status& why, int rounds) {
  const int64_t wait_ns = answered ? dead_after_s_ * int64_t{1'000'000'000} : kStrayNs;
  loop_.AddTimer(wait_ns / kStrayRounds, [=, weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    const auto stray = self->strays_.find({request.kind, request.rank});
    if (stray == self->strays_.end() || stray->second != number) return;
    if (rounds > 1) return self->AwaitStray(request, answered, number, why, rounds - 1);
    self->strays_.erase(stray);
    self->OnRankGone(request, answered, why);
  });
}

// A rank that goes away before its answer ends the job, and after its answer has left in order.
void RootServer::OnRankGone(const RootRequest& request, bool answered, const Status& why) {
  if (!answered && failure_.ok()) {
    Fail(why);
    return;
  }
  if (answered) served_.insert({request.kind, request.rank});
  if (answered && !failure_.ok()) told_.insert(request.rank);
  FinishIfDone();
}

// A registered rank gets its own contact and those of its neighbours in this root's charge; a rank
// of another root gets exactly the contacts that it asked for.
void RootServer::Answer(ClientNumber number, const Status& failure) {
  Client& client = clients_.at(number);
  if (client.answered) return;
  RootAnswer answer;
  answer.failure = failure;
  if (failure.ok()) {
    const RootRequest& request = client.request;
    std::vector<uint32_t> wanted = request.wanted;
    if (request.kind == RootRequest::Kind::kRegister) {
      wanted.push_back(request.rank);
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

// Sends as much as the socket takes; the loop sends the rest. The rank closes the connection when
// the whole answer has come.
void RootServer::SendOut(ClientNumber number) {
  Client& client = clients_.at(number);
  const auto rest = std::span(client.out).subspan(client.sent);
  const Result<size_t> sent = client.socket.TrySend(rest);
  if (!sent.ok()) {
    OnClientGone(number, sent.status());
    return;
  }
  client.sent += *sent;
  const bool all = *sent == rest.size();
  if (all) client.out.clear();
  if (all) client.sent = 0;
  const Status set =
      loop_.ModifyFd(client.socket.fd(), EPOLLIN | (all ? 0u : EPOLLOUT) | EPOLLRDHUP);
  if (!set.ok()) OnClientGone(number, set);
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
    if (!registered_.contains(rank) || strays_.contains({RootRequest::Kind::kRegister, rank}))
      missing.push_back(rank);
  }
  const std::string of_root =
      first_.num_roots > 1 ? fmt::format(" of root {}", first_.root_index) : "";
  return fmt::format("{} of {} ranks{} {}; missing: {}", registrations_due_ - missing.size(),
                     registrations_due_, of_root, arrived, RangesText(missing));
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
  if (failure_.ok() ? complete_ && served_.size() >= due : told_.size() >= due) Finish();
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

}  // namespace tutti
