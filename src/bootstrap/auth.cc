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
#include "sys/bounded_listener.h"
#include "sys/host.h"
#include "sys/local_socket.h"
#include "sys/silence.h"

namespace tutti {

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
        key_{key},
        name_(std::move(name)),
        callback_(std::move(callback)),
        on_shortage_(std::move(on_shortage)),
        exchange_(exchange),
        listener_(std::make_shared<BoundedListener>(
            loop, loop.accept_limit(), std::move(listen_fd),
            BoundedListener::Options{
                .name = name_,
                .time_ns = kHandshakeTimeoutNs,
                .on_connection = [this](auto number, int fd,
                                        const auto& from) { Admit(number, fd, from); },
                .on_ready = [this](auto number) { StepOne(number); },
                .on_over = [this](auto number, auto why) { Reject(number, why); },
                .on_shortage = [this] { TellShortage(); }})) {}

  Status Start() { return listener_->Start(); }

  void Close() {
    closed_ = true;
    loop_.CancelTimer(pair_timer_);
    listener_->Close();
    pending_.clear();
    // `callback_` stays: it may be running.
  }

  uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }

 private:
  struct Pending {
    int fd;  // of the listener
    Handshake handshake;
    SocketAddress from;
    bool writing;
  };
  using PairPtr = std::shared_ptr<const EphemeralPair>;

  void TellShortage();
  PairPtr Pair();
  void Admit(uint64_t number, int fd, const SocketAddress& from);
  void StepOne(uint64_t number);
  void Reject(uint64_t number, std::string_view why);

  EventLoop& loop_;
  const SecretKey key_;
  const std::string name_;
  const Callback callback_;
  const OnShortage on_shortage_;  // may be empty
  const Exchange exchange_;
  const std::shared_ptr<BoundedListener> listener_;
  std::map<BoundedListener::Number, Pending> pending_;
  PairPtr pair_;  // null until a connection comes, and after kLongestPairNs
  EventLoop::TimerId pair_timer_ = 0;
  bool closed_ = false;
  std::atomic<uint64_t> rejected_{0};
  int64_t last_log_ns_ = 0;
};

void AuthAcceptor::State::TellShortage() {
  if (on_shortage_ && !closed_)
    on_shortage_(NoDescriptorsError(fmt::format("{} cannot accept connections", name_)));
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

void AuthAcceptor::State::Admit(uint64_t number, int fd, const SocketAddress& from) {
  pending_.emplace(
      number, Pending{fd, Handshake::Accepting(key_.get(), Handshake::Randomness::With(Pair())),
                      from, false});
  StepOne(number);
}

// A connection that has proved the key leaves the set of pending connections before the owner hears
// of it.
void AuthAcceptor::State::StepOne(uint64_t number) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  const Result<Progress> step = pending.handshake.Step(pending.fd);
  if (!step.ok()) {
    Reject(number, step.status().message());
    return;
  }
  if (*step != Progress::kDone) {
    const bool writing = pending.handshake.WantsToWrite();
    if (writing == pending.writing) return;
    pending.writing = writing;
    const Status changed = loop_.ModifyFd(pending.fd, writing ? EPOLLOUT : EPOLLIN);
    if (!changed.ok()) Reject(number, changed.message());
    return;
  }
  const Handshake handshake = std::move(pending.handshake);
  const SocketAddress from = pending.from;
  pending_.erase(found);
  SealedSocket socket = handshake.Seal(listener_->Take(number));
  MakeRoomBeyond(socket.fd());
  const bool is_last = !loop_.accept_limit().RestoreReserve();
  const auto self = shared_from_this();  // the callback may destroy the acceptor
  callback_(std::move(socket), handshake.hello(), from);
  if (is_last) TellShortage();
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
  pending_.erase(found);
  listener_->Drop(number);
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
                                          ConnectFailure* failure, int dead_after_s) {
  ConnectFailure unused;
  ConnectFailure& kind = failure ? *failure : unused;
  int error = 0;
  Result<UniqueFd> connected = Connect(
      address, dead_after_s != 0 ? limits.Within(int64_t{dead_after_s} * 1'000'000'000) : limits,
      &error);
  if (!connected.ok()) {
    kind = error == ECONNREFUSED ? ConnectFailure::kRefused
           : error == ECONNRESET ? ConnectFailure::kClosed
                                 : ConnectFailure::kOther;
    if (dead_after_s == 0 || error != ETIMEDOUT || limits.Over()) return connected.status();
    kind = ConnectFailure::kSilent;
    return RemoteError(
        "connecting to {}: the host did not answer within {} s (TUTTI_HOST_TIMEOUT_S)",
        address.ToString(), dead_after_s);
  }
  if (dead_after_s != 0) {
    if (const Status set = BreakWhenSilent(connected->get(), dead_after_s); !set.ok())
      TUTTI_INFO(kLogBootstrap, "{}: {}", address.ToString(), set.message());
  }
  return AuthenticateAsConnector(std::move(connected).value(), key, hello, limits,
                                 fmt::format("authenticating with {}", address.ToString()),
                                 failure);
}

Result<SealedSocket> ConnectAuthenticatedLocally(const std::string& name, const Key& key,
                                                 const Hello& hello, const WaitLimits& limits,
                                                 ConnectFailure* failure) {
  if (failure) *failure = ConnectFailure::kRefused;
  TUTTI_ASSIGN(UniqueFd fd, ConnectLocal(name));
  return AuthenticateAsConnector(std::move(fd), key, hello, limits,
                                 "authenticating over the local socket", failure);
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
