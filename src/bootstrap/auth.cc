#include "bootstrap/auth.h"

#include <poll.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "sys/host.h"

namespace tutti {
namespace {

const unsigned char* Unsigned(const void* data) { return static_cast<const unsigned char*>(data); }

}  // namespace

Key KeyFromText(std::string_view text) {
  Key key;
  constexpr std::string_view kContext = "tutti comm key 1";
  [[maybe_unused]] const int ready = sodium_init();
  crypto_generichash(key.data(), key.size(), Unsigned(text.data()), text.size(),
                     Unsigned(kContext.data()), kContext.size());
  return key;
}

// ---------------------------------------------------------------------------------------------------------------------
// AuthAcceptor

namespace {

// For the ranks of a large job: once half of the descriptors are taken, the soft limit is raised.
// Only connections that have proved the key raise the limit; all others hold a quarter of the
// descriptors at most.
void MakeRoomBeyond(int fd) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  if (static_cast<rlim_t>(fd) < limit.rlim_cur / 2) return;
  // Where the limit cannot be raised, the caller that runs out of descriptors reports the failure.
  [[maybe_unused]] const auto raised = RaiseDescriptorLimit();
}

}  // namespace

// Lives on the loop's thread, except for its creation and the counter.
class AuthAcceptor::State : public std::enable_shared_from_this<State> {
 public:
  State(EventLoop& loop, UniqueFd listen_fd, const Key& key, std::string name, Callback callback,
        OnShortage on_shortage, Exchange exchange)
      : loop_(loop),
        listen_fd_(std::move(listen_fd)),
        key_{key},
        name_(std::move(name)),
        callback_(std::move(callback)),
        on_shortage_(std::move(on_shortage)),
        exchange_(exchange) {}

  Status Start() {
    return loop_.AddFd(listen_fd_.get(), EPOLLIN, [weak = weak_from_this()](uint32_t) {
      if (const auto self = weak.lock()) self->AcceptSome();
    });
  }

  void Close() {
    closed_ = true;
    loop_.CancelTimer(pause_timer_);
    loop_.CancelTimer(pair_timer_);
    if (listen_fd_.valid()) loop_.RemoveFd(listen_fd_.get());
    listen_fd_.Reset();
    while (!pending_.empty()) Drop(pending_.begin()->first);
    // `callback_` stays: it may be running.
  }

  uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }

 private:
  struct Pending {
    UniqueFd fd;
    Handshake handshake;
    SocketAddress from;
    EventLoop::TimerId timer;
    AcceptLimit::Number place;
    bool writing;
  };
  using PairPtr = std::shared_ptr<const EphemeralPair>;

  void AcceptSome();
  void PauseAccepting(int64_t pause_ns);
  void TellShortage();
  PairPtr Pair();
  void Admit(UniqueFd fd, const SocketAddress& from);
  void StepOne(uint64_t number);
  void Reject(uint64_t number, std::string_view why);
  UniqueFd Drop(uint64_t number);

  EventLoop& loop_;
  UniqueFd listen_fd_;
  const SecretKey key_;
  const std::string name_;
  const Callback callback_;
  const OnShortage on_shortage_;  // may be empty
  const Exchange exchange_;
  std::map<uint64_t, Pending> pending_;  // The key is the number of the arrival.
  uint64_t next_number_ = 1;
  EventLoop::TimerId pause_timer_ = 0;
  PairPtr pair_;  // null until a connection comes, and after kLongestPairNs
  EventLoop::TimerId pair_timer_ = 0;
  bool closed_ = false;
  std::atomic<uint64_t> rejected_{0};
  int64_t last_log_ns_ = 0;
  int failed_accepts_ = 0;  // without a success in between
};

void AuthAcceptor::State::AcceptSome() {
  // Accepts a bounded number at a time, so that a flood leaves the loop time for other connections.
  for (int i = 0; i < 64 && !closed_; ++i) {
    constexpr int64_t kLookAgainNs = 5'000'000;
    if (!loop_.accept_limit().Admits(kGraceNs)) {
      PauseAccepting(kLookAgainNs);
      return;
    }
    SocketAddress from;
    int error = 0;
    Result<UniqueFd> accepted = Accept(listen_fd_.get(), &from, &error);
    if (!accepted.ok()) {
      AcceptLimit& limit = loop_.accept_limit();
      if (error == EMFILE || error == ENFILE) {
        if (limit.ReleaseReserve()) continue;
        if (limit.FirstHad(kGraceNs) && limit.CloseFirst()) continue;
        if (limit.size() > 0) {
          PauseAccepting(kLookAgainNs);
          return;
        }
      }
      TellShortage();
      constexpr int64_t kShortageNs = 100'000'000;
      PauseAccepting(kShortageNs);
      return;
    }
    failed_accepts_ = 0;
    if (!accepted->valid()) return;
    Admit(std::move(accepted).value(), from);
  }
}

// Warns once. A program may need its descriptors for a moment only; a lasting shortage is told to
// the owner.
void AuthAcceptor::State::TellShortage() {
  constexpr int kLasting = 5;
  ++failed_accepts_;
  if (failed_accepts_ == kLasting && on_shortage_)
    on_shortage_(NoDescriptorsError(fmt::format("{} cannot accept connections", name_)));
  if (failed_accepts_ > 1) return;
  TUTTI_WARN(
      "{} cannot accept connections for the moment: the process has too many open files "
      "(raise `ulimit -n`) or the host is short of memory",
      name_);
}

// Without room the listening socket stays readable, and a loop that looked again at once would burn
// a core.
void AuthAcceptor::State::PauseAccepting(int64_t pause_ns) {
  if (!loop_.ModifyFd(listen_fd_.get(), 0).ok()) return;
  pause_timer_ = loop_.AddTimer(pause_ns, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    [[maybe_unused]] const Status status = self->loop_.ModifyFd(self->listen_fd_.get(), EPOLLIN);
  });
}

// Handshakes under way keep the pair that they began with.
AuthAcceptor::State::PairPtr AuthAcceptor::State::Pair() {
  if (pair_ || exchange_ == Exchange::kNone) return pair_;
  pair_ = std::make_shared<EphemeralPair>(EphemeralPair::Fresh());
  pair_timer_ = loop_.AddTimer(kLongestPairNs, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pair_.reset();
  });
  return pair_;
}

// Each connection is known by a number, because its descriptor may be reused while a timer or an
// event of the connection is still on its way.
void AuthAcceptor::State::Admit(UniqueFd fd, const SocketAddress& from) {
  const uint64_t number = next_number_++;
  const auto weak = weak_from_this();
  const int raw_fd = fd.get();
  const EventLoop::TimerId timer = loop_.AddTimer(kHandshakeTimeoutNs, [weak, number] {
    if (const auto self = weak.lock()) self->Reject(number, "it said too little in time");
  });
  const AcceptLimit::Number place = loop_.accept_limit().Enter([weak, number] {
    if (const auto self = weak.lock()) self->Reject(number, "too many others wait");
  });
  pending_.emplace(
      number,
      Pending{std::move(fd), Handshake::Accepting(key_.get(), Handshake::Chance::With(Pair())),
              from, timer, place, false});
  const Status added = loop_.AddFd(raw_fd, EPOLLIN, [weak, number](uint32_t) {
    if (const auto self = weak.lock()) self->StepOne(number);
  });
  if (!added.ok()) {
    Reject(number, added.message());
    return;
  }
  StepOne(number);
}

// A connection that has proved the key leaves the set of pending connections before the owner hears
// of it.
void AuthAcceptor::State::StepOne(uint64_t number) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  const Result<Progress> step = pending.handshake.Step(pending.fd.get());
  if (!step.ok()) {
    Reject(number, step.status().message());
    return;
  }
  if (*step != Progress::kDone) {
    const bool writing = pending.handshake.WantsToWrite();
    if (writing == pending.writing) return;
    pending.writing = writing;
    const Status changed = loop_.ModifyFd(pending.fd.get(), writing ? EPOLLOUT : EPOLLIN);
    if (!changed.ok()) Reject(number, changed.message());
    return;
  }
  const Handshake handshake = std::move(pending.handshake);
  const SocketAddress from = pending.from;
  SealedSocket socket = handshake.Seal(Drop(number));
  MakeRoomBeyond(socket.fd());
  const bool is_last = !loop_.accept_limit().RestoreReserve();
  const auto self = shared_from_this();  // the callback may destroy the acceptor
  callback_(std::move(socket), handshake.hello(), from);
  if (is_last && on_shortage_ && !closed_)
    on_shortage_(NoDescriptorsError(fmt::format("{} cannot accept connections", name_)));
}

void AuthAcceptor::State::Reject(uint64_t number, std::string_view why) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  const uint64_t count = rejected_.fetch_add(1, std::memory_order_relaxed) + 1;
  // A stranger without the key must not fill the log: the log gets one line a second at most.
  const int64_t now_ns = NowNs();
  if (now_ns - last_log_ns_ >= 1'000'000'000) {
    last_log_ns_ = now_ns;
    TUTTI_INFO(kLogBootstrap, "{}: a connection from {} was turned away: {} ({} so far)", name_,
               found->second.from.ToString(), why, count);
  }
  Drop(number).Reset();
  loop_.accept_limit().RestoreReserve();
}

UniqueFd AuthAcceptor::State::Drop(uint64_t number) {
  const auto found = pending_.find(number);
  loop_.CancelTimer(found->second.timer);
  loop_.accept_limit().Leave(found->second.place);
  loop_.RemoveFd(found->second.fd.get());
  UniqueFd fd = std::move(found->second.fd);
  pending_.erase(found);
  return fd;
}

AuthAcceptor::AuthAcceptor(EventLoop& loop, std::shared_ptr<State> state)
    : loop_(loop), state_(std::move(state)) {}

Result<std::unique_ptr<AuthAcceptor>> AuthAcceptor::Create(EventLoop& loop, UniqueFd listen_fd,
                                                           const Key& key, std::string name,
                                                           Callback on_authenticated,
                                                           OnShortage on_shortage,
                                                           Exchange exchange) {
  auto state =
      std::make_shared<State>(loop, std::move(listen_fd), key, std::move(name),
                              std::move(on_authenticated), std::move(on_shortage), exchange);
  TUTTI_TRY(state->Start());
  return std::unique_ptr<AuthAcceptor>(new AuthAcceptor(loop, std::move(state)));
}

AuthAcceptor::~AuthAcceptor() {
  loop_.RunSync([state = state_] { state->Close(); });
}

uint64_t AuthAcceptor::rejected() const { return state_->rejected(); }

// ---------------------------------------------------------------------------------------------------------------------

// Another release stays another release, so such a failure is not worth another attempt.
Result<SealedSocket> AuthenticateAsConnector(UniqueFd fd, const Key& key, const Hello& hello,
                                             const WaitLimits& limits, std::string_view what,
                                             ConnectFailure* failure) {
  ConnectFailure ignored;
  ConnectFailure& kind = failure ? *failure : ignored;
  Handshake handshake = Handshake::Connecting(key, hello);
  for (;;) {
    Result<Progress> step = handshake.Step(fd.get());
    if (!step.ok()) {
      const bool other_release = step.status().code() == Code::kInvalidUsage;
      kind = other_release ? ConnectFailure::kOther : ConnectFailure::kClosed;
      return std::move(step).status().Annotate(what);
    }
    if (*step == Progress::kDone) break;
    kind = ConnectFailure::kOther;
    TUTTI_TRY(WaitReady(fd.get(), handshake.WantsToWrite() ? POLLOUT : POLLIN, limits, what));
  }
  kind = ConnectFailure::kNone;
  return handshake.Seal(std::move(fd));
}

// A connector's failure says which step failed, since callers try again only after some of them.
Result<SealedSocket> ConnectAuthenticated(const SocketAddress& address, const Key& key,
                                          const Hello& hello, const WaitLimits& limits,
                                          ConnectFailure* failure) {
  int error = 0;
  Result<UniqueFd> connected = Connect(address, limits, &error);
  if (!connected.ok()) {
    if (failure) {
      *failure = error == ECONNREFUSED ? ConnectFailure::kRefused : ConnectFailure::kOther;
    }
    return connected.status();
  }
  return AuthenticateAsConnector(std::move(connected).value(), key, hello, limits,
                                 fmt::format("authenticating with {}", address.ToString()),
                                 failure);
}

Result<SealedSocket> ConnectPatiently(const SocketAddress& address, const Key& key,
                                      const Hello& hello, const WaitLimits& limits) {
  for (int attempt = 1;; ++attempt) {
    ConnectFailure failure = ConnectFailure::kNone;
    Result<SealedSocket> socket = ConnectAuthenticated(address, key, hello, limits, &failure);
    const bool worth_it = failure == ConnectFailure::kClosed && attempt < kConnectAttempts;
    if (socket.ok() || !worth_it || limits.Over()) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(kBetweenAttemptsMs));
  }
}

}  // namespace tutti
