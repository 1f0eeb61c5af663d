#include "transport/net/verbs/channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "sys/silence.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// The number of calls without progress until a look at the control socket, which is a system call.
// The number bounds the delay until a polling end notices that the peer is gone or sleeps.
constexpr uint32_t kIdleCallsPerLook = 32;
// The calls that a sleep stands for, where a control message will probably not end the sleep.
constexpr uint32_t kCallsPerSleep = kIdleCallsPerLook / 4;

// The wait for answers once the control socket has ended. The answers are on their way by then, for
// microseconds, or for as long as a busy host takes.
constexpr double kLeaveSeconds = 1;

}  // namespace

// Where a spare's NIC refuses an object of the connection, the connection does without spares.
Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Create(Parts parts, const VerbsEnd* offer) {
  Result<std::unique_ptr<VerbsChannel>> made = Make(parts, offer);
  if (made.ok() || parts.ports.own == parts.ports.ports.size()) return made;
  TUTTI_INFO(kLogNet, "net IB: {} is tried without spares: {}", parts.ports.Name(),
             made.status().message());
  parts.ports.DropSpares();
  return Make(parts, offer);
}

// All queue pairs may come to lie on the same NIC, so each completion queue has room for all of
// them.
Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Make(const Parts& parts,
                                                         const VerbsEnd* offer) {
  std::unique_ptr<VerbsChannel> channel(new VerbsChannel(parts));
  std::vector<MemoryCache*> caches;
  for (const UsedPort& port : parts.ports.ports) caches.push_back(&port.nic->memory());
  TUTTI_ASSIGN(channel->table_, RegisteredPages::Create(caches, parts.table_bytes));
  TUTTI_ASSIGN(channel->outbox_, RegisteredPages::Create(caches, parts.outbox_bytes));
  const size_t depth =
      parts.queue_pairs * (parts.depths.sends + parts.depths.receives) + parts.loopback_depth;
  TUTTI_TRY(channel->completions_.Make(parts.ports, static_cast<int>(depth)));
  TUTTI_TRY(channel->placement_.Place(offer, 0));
  const VerbsPort& port = parts.ports.ports.front().port;
  if (port.iwarp() && !offer) {
    TUTTI_ASSIGN(channel->managed_, port.manager->Listen(port.gid, channel->placement_.Numbers()));
  }
  return channel;
}

VerbsChannel::VerbsChannel(const Parts& parts)
    : ports_(parts.ports),
      peer_(parts.peer),
      notices_(parts.notices),
      placement_(ports_, parts.queue_pairs, parts.depths, parts.loopback_depth, completions_),
      recovery_(parts.recovers && !ports_.iwarp(), options().resume_within_ns) {}

// The control socket is idle while data moves, so TCP must probe to notice a vanished host.
Status VerbsChannel::Offer(SealedSocket control) {
  control_ = ControlSocket(std::move(control));
  TUTTI_TRY(ProbeWhenIdle(control_.fd(), options().host_timeout_s));
  return control_.Send(ControlType::kOffer, Here().Encode());
}

Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Answer(ControlSocket control,
                                                           const ControlMessage& offer,
                                                           std::string_view peer,
                                                           const Maker& make) {
  const auto answer = [&]() -> Result<std::unique_ptr<VerbsChannel>> {
    if (offer.type != ControlType::kOffer) {
      return RemoteError("{} began with control message {} instead of an offer", peer,
                         static_cast<int>(offer.type));
    }
    TUTTI_ASSIGN(const VerbsEnd offered, VerbsEnd::Decode(offer.payload));
    return make(offered);
  };
  Result<std::unique_ptr<VerbsChannel>> channel = answer();
  if (!channel.ok()) {
    control.Refuse(channel.status());
    return channel;
  }
  (*channel)->control_ = std::move(control);
  TUTTI_TRY(ProbeWhenIdle((*channel)->control_.fd(), (*channel)->options().host_timeout_s));
  TUTTI_TRY((*channel)->control_.Send(ControlType::kAnswer, (*channel)->Here().Encode()));
  return channel;
}

// The peer needs the numbers of the queue pairs to join them, and a key of the table for each port,
// because a write comes to the port of its queue pair.
VerbsEnd VerbsChannel::Here() const {
  VerbsEnd end;
  end.ethernet = ports_.ethernet();
  end.iwarp = ports_.iwarp();
  end.notices = notices_;
  if (managed_) end.managed = managed_->address();
  end.first_packet = placement_.first_packet();
  end.table_address = reinterpret_cast<uintptr_t>(table_->data());
  end.own = static_cast<uint8_t>(ports_.own);
  for (size_t port = 0; port < ports_.ports.size(); ++port) {
    end.ports.push_back(placement_.Describe(port));
    end.ports.back().table_key = table_->registration(port).remote_key();
  }
  for (size_t i = 0; i < num_queue_pairs(); ++i)
    end.queue_pairs.push_back({pair(i).number(), static_cast<uint8_t>(port_of(i))});
  end.name = placement_.PortsInUse();
  return end;
}

Status VerbsChannel::Join(const VerbsEnd& remote, uint8_t traffic_class) {
  if (remote.ethernet != ports_.ethernet() || remote.iwarp != ports_.iwarp()) {
    return RemoteError("{} is {} and {} is {}: choose ports of one kind with NCCL_IB_HCA",
                       ports_.Name(), ports_.kind(), remote.name, remote.kind());
  }
  if (remote.notices != notices_)
    return RemoteError("one end tells of messages by sends and the other does not");
  if (remote.queue_pairs.size() != num_queue_pairs()) {
    return RemoteError("it has {} queue pairs for {} of this end", remote.queue_pairs.size(),
                       num_queue_pairs());
  }
  const auto speeds = [](const VerbsEnd& end) {
    std::vector<uint32_t> mbps;
    for (const VerbsEnd::Port& port : end.ports) mbps.push_back(port.speed_mbps);
    return mbps;
  };
  const VerbsEnd here = Here();
  weights_ =
      WeighPairs(speeds(here), PlacesOf(here).port_of, speeds(remote), PlacesOf(remote).port_of);
  for (size_t i = 0; i < num_queue_pairs() && !ports_.iwarp(); ++i) {
    const VerbsEnd::Pair& pair = remote.queue_pairs[i];
    TUTTI_TRY(this->pair(i).Join({remote.ports[pair.port], pair.number, remote.first_packet},
                                 placement_.first_packet(), traffic_class));
  }
  if (ports_.iwarp() && !managed_) {
    if (remote.managed.port == 0)
      return RemoteError("it awaits no queue pairs, as the other end of iWARP has to");
    Gid to;
    to.bytes = remote.ports[remote.queue_pairs.front().port].gid;
    const VerbsPort& port = ports_.ports.front().port;
    TUTTI_ASSIGN(managed_, port.manager->PrepareToConnect(port.gid, to, remote.managed,
                                                          placement_.Numbers()));
  }
  remote_ = remote;
  recovery_.Advance(Recovery::Event::kJoin);
  TUTTI_INFO(kLogNet, "net IB: {} joined with {} by {} queue pairs", ports_.Name(), remote.name,
             num_queue_pairs());
  return Status::Ok();
}

Result<std::unique_ptr<NetMemory>> VerbsChannel::Register(const NetRegion& region) {
  TUTTI_ASSIGN(std::unique_ptr<VerbsMemory> memory, ports_.Register(region));
  TUTTI_TRY(placement_.BarRefusing(*memory));
  return std::unique_ptr<NetMemory>(std::move(memory));
}

Result<const VerbsMemory*> VerbsChannel::Check(NetMemory* memory, const std::byte* data,
                                               size_t bytes) const {
  if (!memory) return InternalError("a buffer over verbs came without its registration");
  const auto* const held = static_cast<const VerbsMemory*>(memory);
  if (!held->Holds(data, bytes)) {
    return InternalError("a buffer of {} bytes does not lie in its registration of {} bytes", bytes,
                         held->region().bytes);
  }
  return held;
}

// Completions from Stash do not put off the look at the control socket that PrepareToWait has
// scheduled.
Result<std::span<const ibv_wc>> VerbsChannel::Poll() {
  const bool stashed = completions_.has_stashed();
  Result<std::span<const ibv_wc>> completions = completions_.Poll();
  if (!completions.ok()) return Fail(std::move(completions).status());
  if (!stashed && !completions->empty()) idle_calls_ = 0;
  return completions;
}

// Looks for a control message. The end of the control socket means that the peer has gone. Earlier
// completions still count, and requests of this end under way (`due`) get a while for their
// answers.
Result<bool> VerbsChannel::Listen(bool idle, bool due, ControlMessage& message) {
  if (!left_.ok()) {
    if (!idle || (due && !fails_at_.Passed())) return false;
    return Fail(left_);
  }
  if (open() && (!idle || idle_calls_++ < kIdleCallsPerLook - 1)) return false;
  if (!failure_.ok()) return false;  // The next call fails.
  idle_calls_ = 0;
  [[maybe_unused]] const Result<bool> flushed = control_.Flush();  // Receive finds out failures
  Result<bool> came = ReceiveControl(message);
  if (!came.ok()) {
    // Completions from before the peer left still count.
    completions_.Stash();
    if (!completions_.has_stashed() && !due) return Fail(std::move(came).status());
    left_ = std::move(came).status();
    fails_at_ = Deadline::AfterSeconds(kLeaveSeconds);
    return false;
  }
  if (*came && message.type == ControlType::kRefusal) {
    WireReader reader(message.payload);
    return Fail(RemoteError("the other end refused: {}", reader.Sentence()));
  }
  return came;
}

// The end of a queue pair of iWARP counts like the end of the control socket.
Result<bool> VerbsChannel::ReceiveControl(ControlMessage& message) {
  TUTTI_ASSIGN(const bool came, control_.Receive(message));
  if (!came && managed_) TUTTI_TRY(managed_->Progress());
  return came;
}

// Asks the device for an event, and then polls once more, because a completion before the request
// brings no event.
NetIdle VerbsChannel::PrepareToWait(std::vector<NetWait>& waits, bool hears) {
  if (!left_.ok() || lost()) return NetIdle::kPoll;
  if (Status armed = completions_.Arm(); !armed.ok()) {
    [[maybe_unused]] const Status failed = Fail(std::move(armed));
    return NetIdle::kProgress;
  }
  completions_.Stash();
  idle_calls_ =
      hears ? kIdleCallsPerLook - 1 : std::min(idle_calls_ + kCallsPerSleep, kIdleCallsPerLook - 1);
  if (completions_.has_stashed() || control_.HasStaged()) return NetIdle::kProgress;
  for (const CompletionQueues::Queue& queue : completions_.queues()) {
    if (queue.used) waits.push_back({queue.queue->fd(), EPOLLIN});
  }
  if (managed_) waits.push_back({managed_->fd(), EPOLLIN});
  const Result<bool> flushed = control_.Flush();
  const bool all = flushed.ok() && *flushed;
  waits.push_back({control_.fd(), uint32_t{EPOLLIN} | (all ? 0u : uint32_t{EPOLLOUT})});
  return NetIdle::kWait;
}

void VerbsChannel::AppendFds(std::vector<int>& fds) const {
  for (const CompletionQueues::Queue& queue : completions_.queues())
    fds.push_back(queue.queue->fd());
  if (managed_) fds.push_back(managed_->fd());
  fds.push_back(control_.fd());
}

void VerbsChannel::Shutdown() {
  shut_down_.store(true, std::memory_order_release);
  control_.Shutdown();
}

Status VerbsChannel::Fail(Status status) {
  const Recovery::Action action = recovery_.Advance(Recovery::Event::kFail);
  return action == Recovery::Action::kKeep ? Keep(std::move(status)) : failure_;
}

// Closes the control socket, because the peer may wait for messages that will never come.
Status VerbsChannel::Keep(Status status) {
  failure_ = shut_down_.load(std::memory_order_acquire)
                 ? InternalError("this rank closed the connection")
                 : std::move(status);
  control_.Shutdown();
  return failure_;
}

Status VerbsChannel::Refuse(Status status) {
  control_.Refuse(status);
  return Fail(std::move(status));
}

Status VerbsChannel::Describe(const ibv_wc& completion, std::string_view doing, size_t port) const {
  return DescribeCompletion(nic().library(), completion, doing, placement_.Where(port),
                            remote_.name, options());
}

Status VerbsChannel::FailCompletion(const ibv_wc& completion, std::string_view doing) {
  return Fail(Describe(completion, doing, placement_.SourceOf(completion).port));
}

bool VerbsChannel::Open(size_t repeated) {
  const Recovery::Action action = recovery_.Advance(Recovery::Event::kOpen);
  if (action == Recovery::Action::kReport)
    recovery_.Report(peer_, placement_.PortsInUse(), repeated, NowNs());
  return action != Recovery::Action::kRefuse;
}

// A request without an answer (IBV_WC_RETRY_EXC_ERR) makes its port a suspect: the way behind the
// port may be broken although the port is active.
Status VerbsChannel::Lose(const ibv_wc& completion, std::string_view doing) {
  const Placement::Source source = placement_.SourceOf(completion);
  if (source.is_loopback) placement_.LoseLoopbacks();
  if (lost()) return Status::Ok();  // Requests of lost queue pairs complete with an error.
  Status why = Describe(completion, doing, source.port);
  if (!MayRecover(completion.status)) return Fail(std::move(why));
  const bool unanswered = completion.status == IBV_WC_RETRY_EXC_ERR;
  if (unanswered) placement_.Suspect(source.port);
  return Lose(std::move(why), unanswered && !source.is_loopback ? Recovery::Loss::kUnanswered
                                                                : Recovery::Loss::kSeen);
}

// Where the peer has lost the queue pairs, or does not answer, the loop-backs go on: the peer may
// have left, and its last data must still be read back.
Status VerbsChannel::Lose(Status why, Recovery::Loss loss) {
  const Recovery::Action action = recovery_.Advance(recovery_.EventOf(loss));
  if (action == Recovery::Action::kKeep) return Keep(std::move(why));
  if (action != Recovery::Action::kStop) return failure_;
  recovery_.Remember(std::move(why), NowNs());
  const bool told = loss == Recovery::Loss::kTold;
  Status stopped = placement_.Stop(/*all=*/!told && loss != Recovery::Loss::kUnanswered);
  if (!stopped.ok()) return Fail(std::move(stopped));
  // Listen finds out when the control socket has ended.
  if (!told) [[maybe_unused]]
    const Status sent = control_.Send(ControlType::kLost, {});
  return Status::Ok();
}

// Both ends begin with new packet numbers.
Status VerbsChannel::Renew(const VerbsEnd* offer) {
  if (!placement_.AnyActive()) {
    return recovery_.Because(
        fmt::format("{} has no active port, and no other can take its place", ports_.Name()));
  }
  recovery_.Advance(Recovery::Event::kRenew);
  return placement_.Place(offer, recovery_.losses_in_a_row());
}

// Also takes notice of the events that the NICs have reported meanwhile.
Status VerbsChannel::failure() {
  if (!failure_.ok()) return failure_;
  if (shut_down_.load(std::memory_order_acquire)) return Fail(Status::Ok());
  if (!lost()) return CheckNics();
  Status late = recovery_.CheckTime(NowNs());
  return late.ok() ? late : Fail(std::move(late));
}

// A failed NIC takes all of its ports along. A queue pair may fail by an event instead of a
// completion, and is then lost in the same way. A forbidden access of the peer (kRemoteError) ends
// the connection, because the peer would only repeat the access.
Status VerbsChannel::CheckNics() {
  for (const CompletionQueues::Queue& queue : completions_.queues()) {
    if (!queue.used) continue;
    if (Status fault = queue.nic->fault(); !fault.ok()) {
      return placement_.AnyActive() ? Lose(std::move(fault), Recovery::Loss::kSeen)
                                    : Fail(std::move(fault));
    }
    if (!queue.nic->AnyPairFailed()) [[likely]]
      continue;
    Status fault = placement_.PairFault(*queue.nic);
    if (fault.ok()) continue;
    return fault.code() == Code::kRemoteError ? Fail(std::move(fault))
                                              : Lose(std::move(fault), Recovery::Loss::kSeen);
  }
  if (ports_.ports.size() == 1 || !open() || !recovery_.recovers()) return Status::Ok();
  Status move = placement_.CheckPorts();
  return move.ok() ? move : Lose(std::move(move), Recovery::Loss::kPlanned);
}

}  // namespace tutti
