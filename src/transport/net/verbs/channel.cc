#include "transport/net/verbs/channel.h"

#include <sys/epoll.h>

#include <algorithm>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// How many calls that move nothing pass until the control socket is looked at: a system call. It
// bounds how late a polling end notices that the other one is gone or sleeps.
constexpr uint32_t kIdleCallsPerLook = 32;

// How long answers are waited for once the control socket has ended. They are on their way then:
// microseconds, or as long as a busy host takes.
constexpr double kLeaveSeconds = 1;

// Queue pairs that are lost so often in a row, without one message in between, are given up: each
// loss may cost what NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say.
constexpr int kMostLossesInARow = 3;

// A connection that loses its queue pairs again and again warns once in this time.
constexpr int64_t kBetweenWarningsNs = 60'000'000'000;

}  // namespace

Result<std::unique_ptr<VerbsChannel>> VerbsChannel::Create(Parts parts) {
  const size_t table_bytes = parts.table_bytes;
  const size_t outbox_bytes = parts.outbox_bytes;
  const size_t count = parts.queue_pairs;
  const QueuePairDepths depths = parts.depths;
  std::unique_ptr<VerbsChannel> channel(new VerbsChannel(std::move(parts)));
  MemoryCache& memory = channel->nic_->memory();
  TUTTI_ASSIGN(channel->table_, RegisteredPages::Create(memory, table_bytes));
  TUTTI_ASSIGN(channel->outbox_, RegisteredPages::Create(memory, outbox_bytes));
  const auto completions = static_cast<int>(count * (depths.sends + depths.receives)) +
                           static_cast<int>(channel->loopback_depth_);
  TUTTI_ASSIGN(channel->queue_, CompletionQueue::Create(channel->nic_, completions));
  for (size_t i = 0; i < count; ++i) {
    TUTTI_ASSIGN(auto pair,
                 QueuePair::Create(channel->nic_, channel->port_, *channel->queue_, depths));
    channel->pairs_.push_back(std::move(pair));
  }
  return channel;
}

VerbsChannel::VerbsChannel(Parts&& parts)
    : nic_(std::move(parts.nic)),
      port_(std::move(parts.port)),
      peer_(std::move(parts.peer)),
      first_packet_(static_cast<uint32_t>(RandomU64() & 0xffffff)),
      loopback_depth_(parts.loopback_depth),
      recovers_(parts.recovers && nic_->options().resume_within_ns > 0) {}

// Joins a queue pair with itself, by which the device reads back what it has written into GPU
// memory.
Status VerbsChannel::MakeLoopback() {
  if (loopback_) return Status::Ok();
  TUTTI_ASSIGN(auto pair, QueuePair::Create(nic_, port_, *queue_, {loopback_depth_, 1}));
  const VerbsEnd here = Here(false);
  TUTTI_TRY(pair->Join(here, pair->number(), first_packet_, options().traffic_class));
  loopback_ = std::move(pair);
  return Status::Ok();
}

VerbsEnd VerbsChannel::Here(bool split) const {
  VerbsEnd end;
  end.ethernet = port_.ethernet;
  end.mtu = static_cast<uint8_t>(port_.mtu);
  end.lid = port_.lid;
  end.gid = port_.gid.bytes;
  end.first_packet = first_packet_;
  end.split = split;
  end.table_address = reinterpret_cast<uintptr_t>(table_->data());
  end.table_key = table_->registration().remote_key();
  for (const auto& pair : pairs_) end.queue_pairs.push_back(pair->number());
  end.name = fmt::format("{} ({})", port_.Name(), port_.gid.ToString());
  return end;
}

Status VerbsChannel::Join(const VerbsEnd& remote, uint8_t traffic_class) {
  if (remote.ethernet != port_.ethernet) {
    return RemoteError("{} is {} and {} is {}: choose ports of one kind with NCCL_IB_HCA",
                       port_.Name(), port_.ethernet ? "RoCE" : "InfiniBand", remote.name,
                       remote.ethernet ? "RoCE" : "InfiniBand");
  }
  if (remote.queue_pairs.size() != pairs_.size()) {
    return RemoteError("it has {} queue pairs for {} of this end", remote.queue_pairs.size(),
                       pairs_.size());
  }
  for (size_t i = 0; i < pairs_.size(); ++i) {
    TUTTI_TRY(pairs_[i]->Join(remote, remote.queue_pairs[i], first_packet_, traffic_class));
  }
  remote_ = remote;
  TUTTI_INFO(kLogNet, "net IB: {} joined with {} by {} queue pairs", port_.Name(), remote.name,
             pairs_.size());
  return Status::Ok();
}

Result<std::unique_ptr<NetMemory>> VerbsChannel::Register(const NetRegion& region) {
  TUTTI_ASSIGN(HeldRegistration held, nic_->Hold(region, MemoryUse::kMessages));
  return std::unique_ptr<NetMemory>(std::make_unique<VerbsMemory>(region, std::move(held)));
}

Result<const Registration*> VerbsChannel::Check(NetMemory* memory, const std::byte* data,
                                                size_t bytes) const {
  if (!memory) return InternalError("a buffer over verbs came without its registration");
  const auto& held = static_cast<const VerbsMemory&>(*memory);
  if (!held.Holds(data, bytes)) {
    return InternalError("a buffer of {} bytes does not lie in its registration of {} bytes", bytes,
                         held.region().bytes);
  }
  return &held.registration();
}

Result<std::span<const ibv_wc>> VerbsChannel::Poll() {
  if (stashed_ > 0) {
    const auto count = static_cast<size_t>(stashed_);
    stashed_ = 0;
    return std::span<const ibv_wc>(completions_.data(), count);
  }
  Result<int> count = queue_->Poll(completions_.data(), kBatch);
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
  if (open() && (!idle || ++idle_calls_ % kIdleCallsPerLook != 0)) return false;
  [[maybe_unused]] const Result<bool> flushed = control_.Flush();  // Receive finds out failures
  Result<bool> came = control_.Receive(message);
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

// Fetches completions now and keeps them for the next Poll.
void VerbsChannel::Stash() {
  if (stashed_ > 0) return;
  const Result<int> count = queue_->Poll(completions_.data(), kBatch);
  stashed_ = count.ok() ? *count : 0;
}

// Asks the device for an event and then looks once more, because a completion that came before the
// request brings no event.
NetIdle VerbsChannel::PrepareToWait(std::vector<NetWait>& waits) {
  if (!left_.ok() || lost()) return NetIdle::kPoll;
  queue_->Disarm();
  if (const Status armed = queue_->Arm(); !armed.ok()) {
    [[maybe_unused]] const Status failed = Fail(armed);
    return NetIdle::kProgress;
  }
  Stash();
  // The sleeper may be woken by a control message, so that the next call looks for one at once.
  idle_calls_ = kIdleCallsPerLook - 1;
  if (stashed_ > 0 || control_.HasStaged()) return NetIdle::kProgress;
  waits.push_back({queue_->fd(), EPOLLIN});
  const Result<bool> flushed = control_.Flush();
  const bool all = flushed.ok() && *flushed;
  waits.push_back({control_.fd(), uint32_t{EPOLLIN} | (all ? 0u : uint32_t{EPOLLOUT})});
  return NetIdle::kWait;
}

void VerbsChannel::AppendFds(std::vector<int>& fds) const {
  fds.push_back(queue_->fd());
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

Status VerbsChannel::FailCompletion(const ibv_wc& completion, std::string_view doing) {
  return Fail(DescribeCompletion(nic_->library(), completion, doing,
                                 fmt::format("{} ({})", port_.Name(), port_.gid.ToString()),
                                 remote_.name, options()));
}

// Returns why the connection cannot be used, after a look at what the device has reported
// meanwhile. A queue pair that failed by an event of the device is lost as one is that failed by a
// completion.
Status VerbsChannel::failure() {
  if (!failure_.ok()) return failure_;
  if (shut_down_.load(std::memory_order_acquire)) return Fail(Status::Ok());
  if (Status fault = nic_->fault(); !fault.ok()) return Fail(std::move(fault));
  if (lost()) return CheckLost();
  if (!nic_->AnyPairFailed()) [[likely]]
    return Status::Ok();
  for (const auto& pair : pairs_) {
    Status fault = nic_->PairFault(pair->number());
    if (fault.ok()) continue;
    // An access of the other end to memory that it was not given would only happen again.
    if (!open() || fault.code() == Code::kRemoteError) return Fail(std::move(fault));
    return Lose(std::move(fault), true);
  }
  return Status::Ok();
}

Status VerbsChannel::Lose(const ibv_wc& completion, std::string_view doing) {
  if (lost()) return Status::Ok();  // Work of lost queue pairs completes with an error.
  Status why = DescribeCompletion(nic_->library(), completion, doing,
                                  fmt::format("{} ({})", port_.Name(), port_.gid.ToString()),
                                  remote_.name, options());
  return MayRecover(completion.status) ? Lose(std::move(why), true) : Fail(std::move(why));
}

Status VerbsChannel::Lose(Status why, bool tell) {
  if (lost()) return Status::Ok();
  if (!recovers_ || !open() || ++losses_in_a_row_ > kMostLossesInARow) {
    return Fail(std::move(why));
  }
  stage_ = Stage::kLost;
  lost_because_ = std::move(why);
  lost_since_ns_ = NowNs();
  for (const auto& pair : pairs_) {
    if (Status stopped = pair->Stop(); !stopped.ok()) return Fail(std::move(stopped));
  }
  // A control socket that has ended shows in Listen.
  if (tell) [[maybe_unused]]
    const Status told = control_.Send(ControlType::kLost, {});
  return Status::Ok();
}

Status VerbsChannel::CheckLost() {
  if (NowNs() - lost_since_ns_ < options().resume_within_ns) return Status::Ok();
  return Fail(
      Status(lost_because_.code(),
             fmt::format("{}; the queue pairs could not be joined again within {} s "
                         "(TUTTI_RESUME_TIMEOUT_S)",
                         lost_because_.message(), options().resume_within_ns / 1'000'000'000)));
}

// Makes the queue pairs ready to be joined again, over another active port of the device where
// their own is down. Both ends begin with new packet numbers, and completions are told from those
// of the life before (Mark).
Status VerbsChannel::Renew() {
  if (!nic_->IsActive(port_)) {
    const auto& ports = nic_->ports();
    const auto other = std::find_if(ports.begin(), ports.end(), [&](const VerbsPort& port) {
      return port.ethernet == port_.ethernet && nic_->IsActive(port);
    });
    if (other == ports.end()) {
      return Status(lost_because_.code(),
                    fmt::format("{}; {} is down, and its device has no other active port",
                                lost_because_.message(), port_.Name()));
    }
    port_ = *other;
  }
  for (const auto& pair : pairs_) TUTTI_TRY(pair->Renew(port_));
  first_packet_ = static_cast<uint32_t>(RandomU64() & 0xffffff);
  life_ = (life_ + 1) % kLives;
  return Status::Ok();
}

void VerbsChannel::TellRecovered(size_t repeated) {
  const int64_t now_ns = NowNs();
  const std::string line = fmt::format(
      "net IB: the connection with {} lost its queue pairs ({}) and goes on over {} after {} ms; "
      "{} messages are sent a second time",
      peer_, lost_because_.message(), port_.Name(), (now_ns - lost_since_ns_) / 1'000'000,
      repeated);
  if (told_ns_ != 0 && now_ns - told_ns_ < kBetweenWarningsNs) {
    TUTTI_INFO(kLogNet, "{}", line);
    return;
  }
  told_ns_ = now_ns;
  TUTTI_WARN("{}", line);
}

bool VerbsChannel::Unmark(uint64_t& id) const {
  constexpr uint64_t kMask = uint64_t{kLives - 1} << kLifeShift;
  const bool is_ours = (id & kMask) >> kLifeShift == life_;
  id &= ~kMask;
  return is_ours;
}

}  // namespace tutti
