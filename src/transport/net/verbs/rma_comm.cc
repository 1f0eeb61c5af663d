#include "transport/net/verbs/rma_comm.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace tutti {
namespace {

constexpr uint64_t kKeyMagic = 0x32414d5256545554;  // "TUTVRMA2"

// A put with a signal takes two requests of the first queue pair. A piece on a further queue pair
// takes two requests as well, with the read behind the piece.
constexpr uint32_t kWorkPerRequest = 2;

constexpr size_t kWordBytes = sizeof(uint64_t);

// The id of posted work is the index of its request, with the queue pair from bit kPairShift on.
constexpr unsigned kPairShift = 32;

// The contents of a NetRemoteKey; both ends are little-endian (table.h).
struct RangeKey {
  uint64_t magic = kKeyMagic;
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::array<uint32_t, kMaxPorts> keys = {};  // one for each port
};
static_assert(sizeof(RangeKey) <= sizeof(NetRemoteKey));

// A registration whose key names a range of memory. The peer adds an offset to the address, since a
// device takes addresses.
class Window final : public VerbsMemory {
 public:
  using VerbsMemory::VerbsMemory;
  NetRemoteKey remote_key() const override {
    RangeKey range;
    range.address = reinterpret_cast<uintptr_t>(region().address);
    range.bytes = region().bytes;
    for (size_t port = 0; port < kMaxPorts && registration(port); ++port)
      range.keys[port] = registration(port)->remote_key();
    NetRemoteKey key = {};
    std::memcpy(key.data(), &range, sizeof(range));
    return key;
  }
};

}  // namespace

Result<std::unique_ptr<VerbsChannel>> VerbsRmaComm::Make(const PortSet& ports, size_t queue_pairs,
                                                         std::string peer, const VerbsEnd* offer) {
  if (queue_pairs > kMaxPorts)
    return RemoteError("{} offers {} queue pairs, more than it can have ports", peer, queue_pairs);
  VerbsChannel::Parts parts;
  parts.ports = ports;
  parts.ports.DropSpares();
  if (!parts.ports.HaveAtomics()) {
    return InvalidUsage("{} has no atomic operations, by which signals are added",
                        parts.ports.Name());
  }
  parts.peer = std::move(peer);
  parts.table_bytes = kWordBytes;
  parts.outbox_bytes = kRequests * kWordBytes;
  parts.queue_pairs = queue_pairs;
  parts.depths = {kRequests * kWorkPerRequest, 1};
  TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts), offer));
  if (channel->port_of(0) != 0) {
    return SystemError("{} is down, by which one-sided operations of {} add to words",
                       channel->ports().ports[0].port.Name(), channel->ports().Name());
  }
  return channel;
}

Result<std::unique_ptr<NetRmaComm>> VerbsRmaComm::Connect(const PortSet& ports, size_t remote_ports,
                                                          SealedSocket control, std::string peer) {
  TUTTI_ASSIGN(auto channel,
               Make(ports, std::max(ports.own, remote_ports), std::move(peer), nullptr));
  TUTTI_TRY(channel->Offer(std::move(control)));
  return std::unique_ptr<NetRmaComm>(new VerbsRmaComm(std::move(channel)));
}

Result<std::unique_ptr<NetRmaComm>> VerbsRmaComm::Accept(const PortSet& ports,
                                                         ControlSocket control,
                                                         const ControlMessage& offer,
                                                         std::string peer) {
  const auto make = [&](const VerbsEnd& origin) -> Result<std::unique_ptr<VerbsChannel>> {
    TUTTI_ASSIGN(auto channel, Make(ports, origin.queue_pairs.size(), peer, &origin));
    TUTTI_TRY(channel->Join(origin, channel->options().one_sided_traffic_class));
    return channel;
  };
  TUTTI_ASSIGN(auto channel, VerbsChannel::Answer(std::move(control), offer, peer, make));
  return std::unique_ptr<NetRmaComm>(new VerbsRmaComm(std::move(channel)));
}

VerbsRmaComm::VerbsRmaComm(std::unique_ptr<VerbsChannel> channel)
    : ChannelComm(std::move(channel)), requests_(kRequests) {
  for (uint32_t i = 0; i < kRequests; ++i) free_.push_back(i);
}

Result<std::unique_ptr<NetMemory>> VerbsRmaComm::Register(const NetRegion& region) {
  TUTTI_ASSIGN(HeldByPorts held, channel_->ports().Hold(region, MemoryUse::kOneSided));
  return std::unique_ptr<NetMemory>(std::make_unique<Window>(region, std::move(held)));
}

// Returns whether an operation can begin. HasRoom also takes the last steps of the set-up, so that
// the first operation need not wait for a call of Progress.
Result<bool> VerbsRmaComm::HasRoom() {
  TUTTI_TRY(channel_->failure());
  if (!channel_->open()) TUTTI_TRY(Hear(/*idle=*/true).status());
  return channel_->open() && !free_.empty();
}

VerbsRmaComm::Request& VerbsRmaComm::Take(const char* doing) {
  Request& request = requests_[free_.back()];
  free_.pop_back();
  request.taken = true;
  request.doing = doing;
  return request;
}

// Checks memory of this end, and returns the address and the keys for the devices.
Result<VerbsRmaComm::Place> VerbsRmaComm::Local(NetLocal local, size_t bytes) {
  if (bytes == 0) return Place{};
  if (!local.memory) return InternalError("an operation came without its registration");
  const std::byte* const begin = local.memory->region().address + local.offset;
  TUTTI_ASSIGN(const VerbsMemory* const memory, channel_->Check(local.memory, begin, bytes));
  Place near = {reinterpret_cast<uintptr_t>(begin), {}};
  for (size_t port = 0; port < channel_->ports().own; ++port)
    near.keys[port] = memory->registration(port)->local_key();
  return near;
}

// Checks that the operation stays inside the range that the peer gave out. The peer's device would
// check too, but a failure of the device costs the queue pair.
Result<VerbsRmaComm::Place> VerbsRmaComm::Reach(const NetRemote& remote, size_t bytes) {
  if (bytes == 0) return Place{};
  RangeKey range;
  std::memcpy(&range, remote.key.data(), sizeof(range));
  if (range.magic != kKeyMagic) {
    return channel_->Refuse(
        RemoteError("an operation named a range by a key that {} has not given out", peer()));
  }
  if (remote.offset > range.bytes || bytes > range.bytes - remote.offset) {
    return channel_->Refuse(
        RemoteError("an operation of {} bytes at offset {} reached "
                    "outside a range of {} bytes of {}",
                    bytes, remote.offset, range.bytes, peer()));
  }
  return Place{range.address + remote.offset, range.keys};
}

Result<VerbsRmaComm::Place> VerbsRmaComm::ReachWord(const NetRemote& word) {
  TUTTI_ASSIGN(const Place place, Reach(word, kWordBytes));
  if (place.address % kWordBytes != 0) {
    return channel_->Refuse(
        RemoteError("a word at offset {} of {} is not aligned", word.offset, peer()));
  }
  return place;
}

VerbsRmaComm::Place VerbsRmaComm::Scratch(const Request& request) const {
  const auto index = static_cast<uint64_t>(&request - requests_.data());
  const RegisteredPages& outbox = channel_->outbox();
  Place word = {reinterpret_cast<uintptr_t>(outbox.data()) + index * kWordBytes, {}};
  for (size_t port = 0; port < channel_->ports().own; ++port)
    word.keys[port] = outbox.registration(port).local_key();
  return word;
}

VerbsRmaComm::Pieces VerbsRmaComm::Cut(size_t bytes) const {
  Pieces pieces = {};
  if (bytes <= kStripeAbove) {
    pieces[0] = bytes;
  } else {
    CutByWeight(bytes, channel_->weights(), std::span(pieces).first(channel_->num_queue_pairs()));
  }
  return pieces;
}

// Only the last work of a step reports, because a completion stands for all earlier work on its
// queue pair.
Status VerbsRmaComm::Post(Request& request, size_t pair, ibv_send_wr& work, const Place& near,
                          size_t bytes, bool reports) {
  ibv_sge element = {};
  element.addr = near.address;
  element.length = static_cast<uint32_t>(bytes);
  element.lkey = near.keys[channel_->port_of(pair)];
  work.wr_id = static_cast<uint64_t>(&request - requests_.data()) | pair << kPairShift;
  work.sg_list = &element;
  work.num_sge = 1;
  work.send_flags = reports ? unsigned{IBV_SEND_SIGNALED} : 0;
  TUTTI_TRY(channel_->FailUnlessOk(channel_->pair(pair).Send(work)));
  if (reports) {
    ++request.due;
    ++in_flight_;
    ++posted_[pair];
  }
  return Status::Ok();
}

Status VerbsRmaComm::Move(Request& request, size_t pair, ibv_wr_opcode opcode, const Place& near,
                          const Place& far, size_t bytes, bool reports) {
  ibv_send_wr work = {};
  work.opcode = opcode;
  work.wr.rdma = {far.address, far.keys[channel_->remote_port_of(pair)]};
  return Post(request, pair, work, near, bytes, reports);
}

ibv_send_wr VerbsRmaComm::ReadTable(size_t pair) const {
  ibv_send_wr work = {};
  work.opcode = IBV_WR_RDMA_READ;
  work.wr.rdma = {channel_->remote().table_address,
                  channel_->remote().ports[channel_->remote_port_of(pair)].table_key};
  return work;
}

Status VerbsRmaComm::Confirm(Request& request, size_t pair) {
  ibv_send_wr work = ReadTable(pair);
  return Post(request, pair, work, Scratch(request), kWordBytes, true);
}

bool VerbsRmaComm::AreDone(const Counts& counts) const {
  for (size_t pair = 1; pair < kMaxPorts; ++pair) {
    if (done_[pair] < counts[pair]) return false;
  }
  return true;
}

Status VerbsRmaComm::Finish(Request& request, ibv_send_wr work, bool behind_all) {
  if (behind_all && (!steps_.empty() || !AreDone(posted_))) {
    ++request.due;
    steps_.push_back({&request, work, posted_});
    return Status::Ok();
  }
  return Post(request, 0, work, Scratch(request), kWordBytes, true);
}

// Posts the steps whose earlier work is done.
Status VerbsRmaComm::TakeSteps() {
  while (!steps_.empty() && AreDone(steps_.front().after)) {
    Step step = steps_.front();
    steps_.pop_front();
    --step.request->due;
    TUTTI_TRY(Post(*step.request, 0, step.work, Scratch(*step.request), kWordBytes, true));
  }
  return Status::Ok();
}

// The signal comes behind the write on the same queue pair, which carries out requests in order.
// The data is therefore in place when the signal arrives.
Result<NetRequest*> VerbsRmaComm::Iput(NetLocal from, NetRemote to, size_t bytes,
                                       const NetSignal* signal) {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  // Everything is checked before anything is posted.
  TUTTI_ASSIGN(const Place near, Local(from, bytes));
  TUTTI_ASSIGN(const Place far, Reach(to, bytes));
  Place word;
  if (signal) {
    TUTTI_ASSIGN(word, ReachWord(signal->word));
  }
  Request& request = Take("a put");
  const Pieces pieces = Cut(bytes);
  size_t at = 0;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    if (pieces[pair] == 0) continue;
    const bool reports = pair == 0 && !signal;
    TUTTI_TRY(Move(request, pair, IBV_WR_RDMA_WRITE, near + at, far + at, pieces[pair], reports));
    if (pair > 0) TUTTI_TRY(Confirm(request, pair));
    at += pieces[pair];
  }
  if (signal) {
    ibv_send_wr work = {};
    work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    work.wr.atomic = {word.address, signal->value, 0, word.keys[channel_->remote_port_of(0)]};
    TUTTI_TRY(Finish(request, work, signal->strong || pieces[0] < bytes));
  }
  return &request;
}

Result<NetRequest*> VerbsRmaComm::Iget(NetLocal to, NetRemote from, size_t bytes) {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  TUTTI_ASSIGN(const Place near, Local(to, bytes));
  TUTTI_ASSIGN(const Place far, Reach(from, bytes));
  Request& request = Take("a get");
  const Pieces pieces = Cut(bytes);
  size_t at = 0;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    if (pieces[pair] == 0) continue;
    TUTTI_TRY(Move(request, pair, IBV_WR_RDMA_READ, near + at, far + at, pieces[pair], true));
    at += pieces[pair];
  }
  return &request;
}

// Atomic operations always take the first queue pair (rma_comm.h).
Result<NetRequest*> VerbsRmaComm::Iatomic(NetLocal before, const NetAtomic& atomic) {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  TUTTI_ASSIGN(const Place near, Local(before, kWordBytes));
  TUTTI_ASSIGN(const Place word, ReachWord(atomic.word));
  Request& request = Take("an atomic operation");
  ibv_send_wr work = {};
  const uint32_t key = word.keys[channel_->remote_port_of(0)];
  if (atomic.kind == NetAtomic::Kind::kAdd) {
    work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    work.wr.atomic = {word.address, atomic.operand, 0, key};
  } else {
    work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    work.wr.atomic = {word.address, atomic.compare, atomic.operand, key};
  }
  TUTTI_TRY(Post(request, 0, work, near, kWordBytes, true));
  return &request;
}

// A read is answered after all earlier writes of its queue pair have been carried out.
Result<NetRequest*> VerbsRmaComm::Iflush() {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  Request& request = Take("a flush");
  TUTTI_TRY(Finish(request, ReadTable(0), true));
  return &request;
}

Result<bool> VerbsRmaComm::TakeCompletions() {
  TUTTI_ASSIGN(const std::span<const ibv_wc> completions, channel_->Poll());
  bool moved = false;
  for (const ibv_wc& completion : completions) {
    const uint64_t index = completion.wr_id & ((uint64_t{1} << kPairShift) - 1);
    const uint64_t pair = completion.wr_id >> kPairShift;
    if (index >= requests_.size() || pair >= channel_->num_queue_pairs()) continue;
    Request& request = requests_[index];
    if (completion.status != IBV_WC_SUCCESS) {
      Status failed = channel_->FailCompletion(completion, request.doing);
      // Completions before the failure still count; the next call fails.
      if (moved) return true;
      return failed;
    }
    --request.due;
    --in_flight_;
    ++done_[pair];
    moved = true;
  }
  TUTTI_TRY(TakeSteps());
  return moved;
}

Result<bool> VerbsRmaComm::Hear(bool idle) {
  ControlMessage message;
  TUTTI_ASSIGN(const bool came, channel_->Listen(idle, in_flight_ > 0, message));
  if (!came) return false;
  TUTTI_TRY(TakeControl(message));
  return true;
}

// Takes the messages that open a connection: the answer to this end's offer, or "ready" of the
// peer.
Status VerbsRmaComm::TakeControl(const ControlMessage& message) {
  if (message.type == ControlType::kReady && channel_->Open()) return Status::Ok();
  if (message.type == ControlType::kAnswer && channel_->state() == Recovery::State::kSettingUp) {
    Result<VerbsEnd> end = VerbsEnd::Decode(message.payload);
    if (!end.ok()) return channel_->Refuse(std::move(end).status());
    const Status joined = channel_->Join(*end, channel_->options().one_sided_traffic_class);
    if (!joined.ok()) return channel_->Refuse(joined);
    channel_->Open();
    return channel_->FailUnlessOk(channel_->control().Send(ControlType::kReady, {}));
  }
  return channel_->Refuse(RemoteError("the other end sent control message {} at the wrong time",
                                      static_cast<int>(message.type)));
}

Result<bool> VerbsRmaComm::Progress() {
  TUTTI_TRY(channel_->failure());
  TUTTI_ASSIGN(const bool moved, TakeCompletions());
  TUTTI_ASSIGN(const bool heard, Hear(!moved));
  return moved || heard;
}

Result<bool> VerbsRmaComm::Test(NetRequest& request) {
  auto& mine = static_cast<Request&>(request);
  if (!mine.taken) return InternalError("a request was tested that is not under way");
  if (mine.due > 0) return false;
  mine.taken = false;
  free_.push_back(static_cast<uint32_t>(&mine - requests_.data()));
  return true;
}

NetIdle VerbsRmaComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (!channel_->failure().ok()) return NetIdle::kProgress;
  return channel_->PrepareToWait(waits);
}

}  // namespace tutti
