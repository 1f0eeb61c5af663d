#include "transport/net/verbs/channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "bootstrap/auth.h"

namespace tutti {
namespace {

// How many calls that move nothing pass until the control socket is looked at: a system call. It
// bounds how late a polling end notices that the other one is gone or sleeps.
constexpr uint32_t kIdleCallsPerLook = 32;
// A sleep counts as so many of them, where it is not likely that a control message ends it.
constexpr uint32_t kCallsPerSleep = kIdleCallsPerLook / 4;

// How long answers are waited for once the control socket has ended. They are on their way then:
// microseconds, or as long as a busy host takes.
constexpr double kLeaveSeconds = 1;

}  // namespace

PairPlaces PlacesOf(const VerbsEnd& end) {
  PairPlaces places;
  places.own = end.own;
  for (const VerbsEnd::Pair& pair : end.queue_pairs) places.port_of.push_back(pair.port);
  return places;
}

// A spare whose NIC refuses what a connection needs is done without.
Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Create(Parts parts, const VerbsEnd* offer) {
  Result<std::unique_ptr<VerbsChannel>> made = Make(parts, offer);
  if (made.ok() || parts.ports.own == parts.ports.ports.size()) return made;
  TUTTI_INFO(kLogNet, "net IB: {} is tried without spares: {}", parts.ports.Name(),
             made.status().message());
  parts.ports.DropSpares();
  return Make(parts, offer);
}

Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Make(const Parts& parts,
                                                         const VerbsEnd* offer) {
  std::unique_ptr<VerbsChannel> channel(new VerbsChannel(parts));
  TUTTI_TRY(channel->MakeTables(parts.table_bytes, parts.outbox_bytes));
  TUTTI_TRY(channel->MakeQueues());
  TUTTI_TRY(channel->Place(offer));
  const VerbsPort& port = parts.ports.ports.front().port;
  if (port.iwarp() && !offer) {
    TUTTI_ASSIGN(channel->managed_, port.manager->Listen(port.gid, channel->Numbers()));
  }
  return channel;
}

VerbsChannel::VerbsChannel(const Parts& parts)
    : ports_(parts.ports),
      peer_(parts.peer),
      depths_(parts.depths),
      first_packet_(static_cast<uint32_t>(RandomU64() & 0xffffff)),
      pairs_(parts.queue_pairs),
      loopback_depth_(parts.loopback_depth),
      notices_(parts.notices),
      recovers_(parts.recovers && nic().options().resume_within_ns > 0 && !ports_.iwarp()) {}

Status VerbsChannel::MakeTables(size_t table_bytes, size_t outbox_bytes) {
  std::vector<MemoryCache*> caches;
  for (const UsedPort& port : ports_.ports) caches.push_back(&port.nic->memory());
  TUTTI_ASSIGN(table_, RegisteredPages::Create(caches, table_bytes));
  TUTTI_ASSIGN(outbox_, RegisteredPages::Create(caches, outbox_bytes));
  return Status::Ok();
}

// All queue pairs may come to lie on one NIC.
Status VerbsChannel::MakeQueues() {
  const auto depth = static_cast<int>(pairs_.size() * (depths_.sends + depths_.receives)) +
                     static_cast<int>(loopback_depth_);
  for (size_t port = 0; port < ports_.ports.size(); ++port) {
    if (const size_t first = ports_.FirstOfNic(port); first < port) {
      queue_of_[port] = queue_of_[first];
      continue;
    }
    queue_of_[port] = queues_.size();
    const std::shared_ptr<VerbsNic>& nic = ports_.ports[port].nic;
    Queue& queue = queues_.emplace_back();
    queue.nic = nic.get();
    TUTTI_ASSIGN(queue.queue, CompletionQueue::Create(nic, depth));
  }
  return Status::Ok();
}

// Makes a queue pair on a port, or moves it there, with nothing posted. On another NIC that is a
// new one.
Status VerbsChannel::Put(Pair& pair, size_t port, const QueuePairDepths& depths) const {
  const UsedPort& to = ports_.ports[port];
  if (pair.pair && queue_of_[pair.port] == queue_of_[port]) {
    TUTTI_TRY(pair.pair->Renew(to.port));
  } else {
    pair.pair.reset();
    TUTTI_ASSIGN(pair.pair,
                 QueuePair::Create(to.nic, to.port, *queues_[queue_of_[port]].queue, depths));
  }
  pair.port = port;
  return Status::Ok();
}

Status VerbsChannel::MakeLoopbacks() {
  if (loops_back_) return Status::Ok();
  loops_back_ = true;
  Status placed = PlaceLoopbacks();
  if (!placed.ok()) {
    loops_back_ = false;
    loopbacks_.clear();
  }
  return placed;
}

// Joins a queue pair with itself on each NIC that is in use, by which the NIC reads back what it
// has written into GPU memory.
Status VerbsChannel::PlaceLoopbacks() {
  if (!loops_back_) return Status::Ok();
  std::vector<size_t> wanted;
  for (const Pair& pair : pairs_) {
    const bool there = std::any_of(wanted.begin(), wanted.end(), [&](size_t port) {
      return queue_of_[port] == queue_of_[pair.port];
    });
    if (!there) wanted.push_back(pair.port);
  }
  loopbacks_.resize(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    Pair& loop = loopbacks_[i];
    TUTTI_TRY(Put(loop, wanted[i], {loopback_depth_, 1}));
    const VerbsEnd::Port here = Describe(wanted[i]);
    TUTTI_TRY(loop.pair->Join({here, loop.pair->number(), first_packet_}, first_packet_,
                              options().traffic_class));
  }
  loops_ = true;
  return Status::Ok();
}

VerbsEnd::Port VerbsChannel::Describe(size_t index) const {
  const VerbsPort& port = ports_.ports[index].port;
  VerbsEnd::Port described;
  described.mtu = static_cast<uint8_t>(port.mtu);
  described.lid = port.lid;
  described.gid = port.gid.bytes;
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  described.speed_mbps = static_cast<uint32_t>(std::clamp<int64_t>(port.speed_mbps, 0, kMost));
  described.table_key = table_->registration(index).remote_key();
  return described;
}

std::string VerbsChannel::Where(size_t port) const {
  const VerbsPort& at = ports_.ports[port].port;
  return fmt::format("{} ({})", at.Name(), at.gid.ToString());
}

VerbsEnd VerbsChannel::Here() const {
  VerbsEnd end;
  end.ethernet = ports_.ethernet();
  end.iwarp = ports_.iwarp();
  end.notices = notices_;
  if (managed_) end.managed = managed_->address();
  end.first_packet = first_packet_;
  end.table_address = reinterpret_cast<uintptr_t>(table_->data());
  end.own = static_cast<uint8_t>(ports_.own);
  for (size_t port = 0; port < ports_.ports.size(); ++port) end.ports.push_back(Describe(port));
  for (const Pair& pair : pairs_)
    end.queue_pairs.push_back({pair.pair->number(), static_cast<uint8_t>(pair.port)});
  end.name = PortsInUse();
  return end;
}

Status VerbsChannel::Join(const VerbsEnd& remote, uint8_t traffic_class) {
  if (remote.ethernet != ports_.ethernet() || remote.iwarp != ports_.iwarp()) {
    return RemoteError("{} is {} and {} is {}: choose ports of one kind with NCCL_IB_HCA",
                       ports_.Name(), ports_.kind(), remote.name, remote.kind());
  }
  if (remote.notices != notices_)
    return RemoteError("one end tells of messages by sends and the other does not");
  if (remote.queue_pairs.size() != pairs_.size()) {
    return RemoteError("it has {} queue pairs for {} of this end", remote.queue_pairs.size(),
                       pairs_.size());
  }
  const auto speeds = [](const VerbsEnd& end) {
    std::vector<uint32_t> mbps;
    for (const VerbsEnd::Port& port : end.ports) mbps.push_back(port.speed_mbps);
    return mbps;
  };
  const VerbsEnd here = Here();
  weights_ =
      WeighPairs(speeds(here), PlacesOf(here).port_of, speeds(remote), PlacesOf(remote).port_of);
  for (size_t i = 0; i < pairs_.size() && !ports_.iwarp(); ++i) {
    const VerbsEnd::Pair& pair = remote.queue_pairs[i];
    TUTTI_TRY(pairs_[i].pair->Join({remote.ports[pair.port], pair.number, remote.first_packet},
                                   first_packet_, traffic_class));
  }
  if (ports_.iwarp() && !managed_) {
    if (remote.managed.port == 0)
      return RemoteError("it awaits no queue pairs, as the other end of iWARP has to");
    Gid to;
    to.bytes = remote.ports[remote.queue_pairs.front().port].gid;
    const VerbsPort& port = ports_.ports.front().port;
    TUTTI_ASSIGN(managed_, port.manager->PrepareToConnect(port.gid, to, remote.managed, Numbers()));
  }
  remote_ = remote;
  TUTTI_INFO(kLogNet, "net IB: {} joined with {} by {} queue pairs", ports_.Name(), remote.name,
             pairs_.size());
  return Status::Ok();
}

Result<std::unique_ptr<NetMemory>> VerbsChannel::Register(const NetRegion& region) {
  TUTTI_ASSIGN(std::unique_ptr<VerbsMemory> memory, ports_.Register(region));
  for (size_t port = ports_.own; port < ports_.ports.size(); ++port) {
    if (!memory->registration(port)) barred_ |= 1u << port;
  }
  for (const Pair& pair : pairs_) {
    if ((barred_ >> pair.port & 1) != 0)
      return SystemError("{} takes the place of {}, and does not take this memory",
                         Where(pair.port), ports_.Name());
  }
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

// Takes completions of the next NIC in turn that has some.
Result<int> VerbsChannel::Fetch() {
  for (size_t tried = 0; tried < queues_.size(); ++tried) {
    fetched_from_ = next_queue_++ % queues_.size();
    const Queue& queue = queues_[fetched_from_];
    if (!queue.used) continue;
    TUTTI_ASSIGN(const int count, queue.queue->Poll(completions_.data(), kBatch));
    if (count > 0) return count;
  }
  return 0;
}

Result<std::span<const ibv_wc>> VerbsChannel::Poll() {
  if (stashed_ > 0) {
    const auto count = static_cast<size_t>(stashed_);
    stashed_ = 0;
    return std::span<const ibv_wc>(completions_.data(), count);
  }
  Result<int> count = Fetch();
  if (!count.ok()) return Fail(std::move(count).status());
  if (*count > 0) idle_calls_ = 0;
  return std::span<const ibv_wc>(completions_.data(), static_cast<size_t>(*count));
}

// Looks for a control message. The end of the control socket means that the other end has gone:
// what completed before still counts, and if something of this end is under way (`due`), its
// answers are waited for a while.
Result<bool> VerbsChannel::Listen(bool idle, bool due, ControlMessage& message) {
  if (!left_.ok()) {
    if (!idle || (due && !fails_at_.Passed())) return false;
    return Fail(left_);
  }
  if (open() && (!idle || idle_calls_++ < kIdleCallsPerLook - 1)) return false;
  idle_calls_ = 0;
  [[maybe_unused]] const Result<bool> flushed = control_.Flush();  // Receive finds out failures
  Result<bool> came = ReceiveControl(message);
  if (!came.ok()) {
    // What came before the other end left still counts.
    Stash();
    if (stashed_ == 0 && !due) return Fail(std::move(came).status());
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

// The end of queue pairs that the connection manager has joined is as that of the control socket.
Result<bool> VerbsChannel::ReceiveControl(ControlMessage& message) {
  TUTTI_ASSIGN(const bool came, control_.Receive(message));
  if (!came && managed_) TUTTI_TRY(managed_->Progress());
  return came;
}

std::vector<uint32_t> VerbsChannel::Numbers() const {
  std::vector<uint32_t> numbers;
  for (const Pair& pair : pairs_) numbers.push_back(pair.pair->number());
  return numbers;
}

// Fetches completions now and keeps them for the next Poll.
void VerbsChannel::Stash() {
  if (stashed_ > 0) return;
  const Result<int> count = Fetch();
  stashed_ = count.ok() ? *count : 0;
}

// Asks the device for an event and then looks once more, because a completion that came before the
// request brings no event.
NetIdle VerbsChannel::PrepareToWait(std::vector<NetWait>& waits, bool hears) {
  if (!left_.ok() || lost()) return NetIdle::kPoll;
  for (const Queue& queue : queues_) {
    queue.queue->Disarm();
    const Status armed = queue.used ? queue.queue->Arm() : Status::Ok();
    if (armed.ok()) continue;
    [[maybe_unused]] const Status failed = Fail(armed);
    return NetIdle::kProgress;
  }
  Stash();
  idle_calls_ =
      hears ? kIdleCallsPerLook - 1 : std::min(idle_calls_ + kCallsPerSleep, kIdleCallsPerLook - 1);
  if (stashed_ > 0 || control_.HasStaged()) return NetIdle::kProgress;
  for (const Queue& queue : queues_) {
    if (queue.used) waits.push_back({queue.queue->fd(), EPOLLIN});
  }
  if (managed_) waits.push_back({managed_->fd(), EPOLLIN});
  const Result<bool> flushed = control_.Flush();
  const bool all = flushed.ok() && *flushed;
  waits.push_back({control_.fd(), uint32_t{EPOLLIN} | (all ? 0u : uint32_t{EPOLLOUT})});
  return NetIdle::kWait;
}

void VerbsChannel::AppendFds(std::vector<int>& fds) const {
  for (const Queue& queue : queues_) fds.push_back(queue.queue->fd());
  if (managed_) fds.push_back(managed_->fd());
  fds.push_back(control_.fd());
}

void VerbsChannel::Shutdown() {
  shut_down_.store(true, std::memory_order_release);
  control_.Shutdown();
}

Status VerbsChannel::Fail(Status status) {
  if (failure_.ok()) {
    failure_ = shut_down_.load(std::memory_order_acquire)
                   ? InternalError("this rank closed the connection")
                   : std::move(status);
    // The other end may wait for messages that will never come.
    control_.Shutdown();
  }
  return failure_;
}

Status VerbsChannel::Refuse(Status status) {
  control_.Refuse(status);
  return Fail(std::move(status));
}

bool VerbsChannel::Unmark(uint64_t& id) const {
  constexpr uint64_t kMask = uint64_t{kLives - 1} << kLifeShift;
  const bool is_ours = (id & kMask) >> kLifeShift == life_;
  id &= ~kMask;
  return is_ours;
}

}  // namespace tutti
