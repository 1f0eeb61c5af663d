#include "transport/net/verbs/recv_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

// Writes of grants ask for a completion twice in the life of a slot. The queue pair has room for as
// many writes again, so that a late completion does not stop the grants.
constexpr uint64_t kGrantsPerCompletion = kTableSlots / 2;
constexpr uint32_t kGrantDepth = 2 * kTableSlots;

// Distinguish completions of grants and flushes from completions of receives.
constexpr uint64_t kGrantBit = uint64_t{1} << 63;
constexpr uint64_t kFlushBit = uint64_t{1} << 62;

// The most flushes under way at a time. Each flush reads into its own word behind the grants in the
// outbox, and nobody uses the word.
constexpr uint32_t kFlushes = kNetWindow;

// Behind the records in the table, each queue pair has a slot for the notice of each of its
// receives. The id of a receive is the number of the slot above the number of the queue pair.
constexpr size_t kNotices = kTableSlots;
constexpr int kNoticeShift = 8;
static_assert(kMaxQueuePairs <= size_t{1} << kNoticeShift);

}  // namespace

Result<std::unique_ptr<NetRecvComm>> VerbsRecvComm::Accept(const PortSet& ports,
                                                           ControlSocket control,
                                                           const ControlMessage& offer,
                                                           std::string peer) {
  const auto make = [&](const VerbsEnd& sender) -> Result<std::unique_ptr<VerbsChannel>> {
    VerbsChannel::Parts parts;
    parts.ports = ports;
    parts.peer = peer;
    parts.notices = sender.notices;
    parts.outbox_bytes = kGrantBytes + kFlushes * sizeof(uint64_t);
    parts.queue_pairs = sender.queue_pairs.size();
    parts.table_bytes = kRecordBytes;
    if (sender.notices) parts.table_bytes += parts.queue_pairs * kNotices * sizeof(Notice);
    parts.depths = {kGrantDepth + 1, kTableSlots + 1};  // one for a greeting, one for a marker
    parts.recovers = true;
    parts.loopback_depth = kFlushes;
    TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts), &sender));
    TUTTI_TRY(channel->Join(sender, channel->options().grant_traffic_class));
    return channel;
  };
  TUTTI_ASSIGN(auto channel, VerbsChannel::Answer(std::move(control), offer, peer, make));
  return std::unique_ptr<NetRecvComm>(new VerbsRecvComm(std::move(channel)));
}

VerbsRecvComm::VerbsRecvComm(std::unique_ptr<VerbsChannel> channel)
    : ChannelComm(std::move(channel)),
      requests_(kTableSlots),
      receives_(channel_->num_queue_pairs()),
      next_ended_(channel_->num_queue_pairs()),
      next_notice_(channel_->num_queue_pairs()),
      flushes_(kFlushes) {
  // Group g ends on queue pair g mod the number of queue pairs, and groups begin with 1.
  std::iota(next_ended_.begin(), next_ended_.end(), uint64_t{0});
  next_ended_[0] = next_ended_.size();
}

GrantSlot& VerbsRecvComm::Grants(uint64_t group) const {
  return reinterpret_cast<GrantSlot*>(channel_->outbox().data())[group % kTableSlots];
}

// Posts the receives of a group before Progress grants the buffers: the sender may write as soon as
// the grant has come, and immediate values need receives. Groups begun together are granted by a
// single list of writes.
Result<NetRequest*> VerbsRecvComm::Irecv(std::span<const NetReceive> group) {
  TUTTI_TRY(channel_->failure());
  const uint64_t number = posted_ + 1;
  Request& request = At(number);
  if (request.group != 0) return nullptr;
  GrantSlot& grants = Grants(number);
  for (size_t i = 0; i < group.size(); ++i) {
    const NetReceive& buffer = group[i];
    std::array<uint32_t, kMaxPorts> keys = {};  // an empty buffer has none
    if (buffer.capacity > 0) {
      TUTTI_ASSIGN(const VerbsMemory* const memory,
                   channel_->Check(buffer.memory, buffer.data, buffer.capacity));
      for (size_t port = 0; port < kMaxPorts; ++port) {
        if (const Registration* const held = memory->registration(port))
          keys[port] = held->remote_key();
      }
    }
    const auto low = static_cast<uint32_t>(number);
    grants[i] = {low,
                 buffer.tag,
                 reinterpret_cast<uintptr_t>(buffer.data),
                 static_cast<uint32_t>(std::min(buffer.capacity, kMaxNetMessageBytes)),
                 static_cast<uint32_t>(group.size()),
                 keys,
                 {},
                 low};
    request.capacities[i] = buffer.capacity;
  }
  request.group = number;
  request.count = static_cast<uint32_t>(group.size());
  Expect(request);
  posted_ = number;
  ++unfinished_;
  TUTTI_TRY(PostReceives());
  return &request;
}

// Resets a group to the state in which no part has come.
void VerbsRecvComm::Expect(Request& request) {
  request.pending = 1;
  request.ended = false;
  request.bytes = 0;
  request.side_ends = 0;
}

// Posts receives until each queue pair has a receive for every group that has not come, because
// only the sender knows the queue pair of a group. Lost queue pairs get their receives after the
// renewal.
Status VerbsRecvComm::PostReceives() {
  if (channel_->state() == Recovery::State::kLost) return Status::Ok();
  for (size_t pair = 0; pair < receives_.size(); ++pair) {
    for (; receives_[pair] < unfinished_; ++receives_[pair]) {
      TUTTI_TRY(channel_->FailUnlessOk(PostReceive(pair)));
    }
  }
  return Status::Ok();
}

Status VerbsRecvComm::PostReceive(size_t pair) {
  if (!channel_->notices()) return channel_->pair(pair).Receive(channel_->Mark(pair));
  const uint64_t slot = next_notice_[pair]++ % kNotices;
  ibv_sge element =
      channel_->table().Element(kRecordBytes + (pair * kNotices + slot) * sizeof(Notice),
                                sizeof(Notice), channel_->port_of(pair));
  return channel_->pair(pair).Receive(channel_->Mark(slot << kNoticeShift | pair), &element);
}

const Notice* VerbsRecvComm::Notices(size_t pair) const {
  const std::byte* const first = channel_->table().data() + kRecordBytes;
  return reinterpret_cast<const Notice*>(first) + pair * kNotices;
}

// The greeting has no contents: its bytes are the first bytes of the outbox. The sending end must
// not send before the greeting has come (manager.h).
Status VerbsRecvComm::SayHello() {
  if (said_hello_ || !channel_->ports().iwarp() || !channel_->IsJoined()) return Status::Ok();
  said_hello_ = true;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    ibv_sge element = channel_->outbox().Element(0, sizeof(Notice), channel_->port_of(pair));
    ibv_send_wr work = {};
    work.wr_id = channel_->Mark(kGrantBit);
    work.sg_list = &element;
    work.num_sge = 1;
    work.opcode = IBV_WR_SEND;
    TUTTI_TRY(channel_->FailUnlessOk(channel_->pair(pair).Send(work)));
  }
  return Status::Ok();
}

// Grants go out while the queue pair has free requests for them. TakeCompletion frees requests.
Status VerbsRecvComm::GrantWhatIsPosted() {
  if (!channel_->open()) return Status::Ok();
  while (granted_ < posted_ && granted_ - reclaimed_ < kGrantDepth) {
    StageGrants(++granted_);
  }
  TUTTI_TRY(channel_->FailUnlessOk(channel_->pair(0).PostStaged()));
  return TellIfAsleep();
}

// Stages the write of a group's grants into the sender's table. The grants are copied into the
// request where they fit.
void VerbsRecvComm::StageGrants(uint64_t group) {
  const auto slot = static_cast<size_t>(group % kTableSlots);
  const VerbsEnd::Port& there = channel_->remote().ports[channel_->remote_port_of(0)];
  ibv_sge element = channel_->outbox().Element(
      slot * sizeof(GrantSlot), At(group).count * sizeof(GrantEntry), channel_->port_of(0));
  ibv_send_wr work = {};
  work.wr_id = channel_->Mark(kGrantBit | group);
  work.sg_list = &element;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE;
  work.wr.rdma.remote_addr = channel_->remote().table_address + slot * sizeof(GrantSlot);
  work.wr.rdma.rkey = there.table_key;
  QueuePair& pair = channel_->pair(0);
  if (element.length <= pair.max_inline()) work.send_flags |= IBV_SEND_INLINE;
  if (group % kGrantsPerCompletion == 0) work.send_flags |= IBV_SEND_SIGNALED;
  pair.Stage(work);
}

Result<std::unique_ptr<NetMemory>> VerbsRecvComm::Register(const NetRegion& region) {
  TUTTI_ASSIGN(auto memory, channel_->Register(region));
  if (region.kind == NetMemoryKind::kGpu && channel_->options().gpu_flush) {
    TUTTI_TRY(channel_->placement().MakeLoopbacks());
  }
  return memory;
}

// A NIC that reads back its own data pushes its earlier writes into the GPU's memory, because over
// PCIe a read does not pass writes. A single read by each NIC covers all earlier data.
Result<NetRequest*> VerbsRecvComm::Iflush(std::span<const NetReceive> buffers) {
  TUTTI_TRY(channel_->failure());
  const auto free = std::find_if(flushes_.begin(), flushes_.end(),
                                 [](const Request& request) { return request.group == 0; });
  if (free == flushes_.end()) return nullptr;
  free->group = 1;
  free->pending = 0;
  const auto last = std::find_if(buffers.rbegin(), buffers.rend(), [](const NetReceive& buffer) {
    return buffer.capacity > 0 && buffer.memory &&
           buffer.memory->region().kind == NetMemoryKind::kGpu;
  });
  if (last == buffers.rend() || !channel_->options().gpu_flush) return &*free;
  free->flushed = *last;
  TUTTI_TRY(channel_->FailUnlessOk(PostFlush(*free)));
  return &*free;
}

// The last message of a leaving sender may still have to be read back.
bool VerbsRecvComm::IsFlushing() const {
  return std::any_of(flushes_.begin(), flushes_.end(),
                     [](const Request& flush) { return flush.pending > 0; });
}

// Posts the reads of a flush. Lost loop-backs are made again with the queue pairs, and AnswerOffer
// posts the flush again.
Status VerbsRecvComm::PostFlush(Request& request) {
  const NetReceive& buffer = request.flushed;
  TUTTI_ASSIGN(const VerbsMemory* const memory, channel_->Check(buffer.memory, buffer.data, 1));
  const auto index = static_cast<uint64_t>(&request - flushes_.data());
  request.pending = channel_->placement().loopbacks().size();
  if (!channel_->placement().loops()) return Status::Ok();
  for (const Placement::Pair& loop : channel_->placement().loopbacks()) {
    ibv_sge element =
        channel_->outbox().Element(kGrantBytes + index * sizeof(uint64_t), 1, loop.port);
    ibv_send_wr work = {};
    work.wr_id = channel_->Mark(kFlushBit | index);
    work.sg_list = &element;
    work.num_sge = 1;
    work.opcode = IBV_WR_RDMA_READ;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(buffer.data);
    work.wr.rdma.rkey = memory->registration(loop.port)->remote_key();
    TUTTI_TRY(loop.pair->Send(work));
  }
  return Status::Ok();
}

Result<bool> VerbsRecvComm::TakeCompletions() {
  TUTTI_ASSIGN(const std::span<const ibv_wc> completions, channel_->Poll());
  bool moved = false;
  for (const ibv_wc& completion : completions) {
    Status taken = TakeCompletion(completion);
    // Completions before the failure still count; the next call fails.
    if (!taken.ok() && moved) return true;
    TUTTI_TRY(std::move(taken));
    moved = true;
  }
  return moved;
}

Status VerbsRecvComm::TakeCompletion(const ibv_wc& completion) {
  uint64_t id = completion.wr_id;
  if (!channel_->Unmark(id)) return Status::Ok();
  if ((id & kMarkerBit) != 0) {
    ++markers_taken_;
    return Status::Ok();
  }
  const bool is_grant = (id & kGrantBit) != 0;
  const bool is_flush = (id & kFlushBit) != 0;
  if (completion.status != IBV_WC_SUCCESS) {
    return channel_->Lose(completion, is_flush   ? "reading back GPU memory that data came into"
                                      : is_grant ? "granting buffers"
                                                 : "receiving");
  }
  if (is_flush) {
    --flushes_[id & ~kFlushBit].pending;
    return Status::Ok();
  }
  channel_->NoteWhole();
  if (!is_grant) {
    constexpr uint64_t kPairs = (uint64_t{1} << kNoticeShift) - 1;
    return TakeReceive(completion, static_cast<size_t>(id & kPairs), id >> kNoticeShift);
  }
  reclaimed_ = std::max(reclaimed_, id & ~kGrantBit);
  return Status::Ok();
}

// Takes an immediate value or a notice. The value of a send names a group with pieces on this
// further queue pair. The value of a write ends the next group whose own queue pair this is.
Status VerbsRecvComm::TakeReceive(const ibv_wc& completion, size_t pair, size_t slot) {
  --receives_[pair];
  if (channel_->notices()) {
    if (completion.byte_len == sizeof(Notice)) return TakeNotice(Notices(pair)[slot], pair);
    return channel_->Refuse(RemoteError("the sender's notice has {} bytes instead of {}",
                                        completion.byte_len, sizeof(Notice)));
  }
  const uint32_t immediate = ntohl(completion.imm_data);
  if (completion.opcode == IBV_WC_RECV) return TakeSideEnd(immediate);
  Request* const request = NextEnded(pair);
  if (!request) {
    return channel_->Refuse(RemoteError("the sender ended a group on queue pair {} twice", pair));
  }
  return TakeEnd(*request, immediate, completion.byte_len);
}

Status VerbsRecvComm::TakeNotice(const Notice& notice, size_t pair) {
  if (notice.kind == Notice::Kind::kSideEnd) return TakeSideEnd(notice.group);
  if (notice.kind != Notice::Kind::kEnd) {
    return channel_->Refuse(RemoteError("the sender's notice is of a kind {}, which there is not",
                                        static_cast<uint32_t>(notice.kind)));
  }
  Request* const request = NextEnded(pair);
  if (!request || static_cast<uint32_t>(request->group) != notice.group) {
    return channel_->Refuse(
        RemoteError("the sender ended group {} on queue pair {}, where it is "
                    "not the next under way",
                    notice.group, pair));
  }
  return TakeEnd(*request, notice.immediate, notice.bytes);
}

Status VerbsRecvComm::TakeSideEnd(uint32_t group) {
  Request& request = At(group);
  if (static_cast<uint32_t>(request.group) != group || request.pending == 0) {
    return channel_->Refuse(
        RemoteError("the sender ended group {}, which is not under way", group));
  }
  ++request.side_ends;
  return FinishIfWhole(request);
}

Status VerbsRecvComm::TakeEnd(Request& request, uint32_t immediate, size_t bytes) {
  request.ended = true;
  request.immediate = immediate;
  request.bytes = bytes;
  return FinishIfWhole(request);
}

VerbsRecvComm::Request* VerbsRecvComm::NextEnded(size_t pair) {
  uint64_t& next = next_ended_[pair];
  while (next <= posted_ && (At(next).group != next || At(next).pending == 0))
    next += next_ended_.size();
  if (next > posted_) return nullptr;
  Request& request = At(next);
  next += next_ended_.size();
  return &request;
}

// A group is whole when its own queue pair and all further queue pairs with pieces have reported
// the end. For a group with records, the immediate value is the number of further queue pairs.
Status VerbsRecvComm::FinishIfWhole(Request& request) {
  if (!request.ended) return Status::Ok();
  const size_t others = HasRecords(request) ? request.immediate : 0;
  if (request.side_ends < others) return Status::Ok();
  request.pending = 0;
  --unfinished_;
  return Finish(request);
}

const RecordSlot& VerbsRecvComm::Records(const Request& request) const {
  const auto* const slots = reinterpret_cast<const RecordSlot*>(channel_->table().data());
  return slots[request.group % kTableSlots];
}

// A group of a single message has records only where the sender needed them.
bool VerbsRecvComm::HasRecords(const Request& request) const {
  return request.count > 1 || IsWhole(Records(request)[0], request.group);
}

// Fills in sizes and op tags: from the table where the sender has written records of the group, and
// otherwise from the completion.
Status VerbsRecvComm::Finish(Request& request) {
  const RecordSlot& records = Records(request);
  if (!HasRecords(request)) {
    request.received[0] = {request.bytes, request.immediate};
  } else {
    for (size_t i = 0; i < request.count; ++i) {
      if (!IsWhole(records[i], request.group)) {
        return channel_->Refuse(
            RemoteError("the sender ended group {} without its records", request.group));
      }
      request.received[i] = {records[i].bytes, records[i].op_tag};
    }
  }
  for (size_t i = 0; i < request.count; ++i) {
    if (request.received[i].bytes > request.capacities[i]) {
      return channel_->Refuse(RemoteError("the sender wrote {} bytes for a buffer of {}",
                                          request.received[i].bytes, request.capacities[i]));
    }
  }
  return Status::Ok();
}

Result<bool> VerbsRecvComm::Progress() {
  TUTTI_TRY(channel_->failure());
  TUTTI_ASSIGN(const bool moved, TakeCompletions());
  if (granted_ < posted_) TUTTI_TRY(GrantWhatIsPosted());
  if (channel_->state() == Recovery::State::kLost) TUTTI_TRY(GoOnLost());
  ControlMessage message;
  TUTTI_ASSIGN(const bool came, channel_->Listen(!moved, !moved && IsFlushing(), message));
  if (!channel_->open()) TUTTI_TRY(SayHello());
  if (!came) return moved;
  TUTTI_TRY(TakeControl(message));
  return true;
}

Result<bool> VerbsRecvComm::Test(NetRequest& request) {
  auto& mine = static_cast<Request&>(request);
  if (mine.group == 0) return InternalError("a request was tested that is not under way");
  if (mine.pending > 0) return false;
  mine.group = 0;
  return true;
}

NetIdle VerbsRecvComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (!channel_->failure().ok()) return NetIdle::kProgress;
  return channel_->PrepareToWait(waits, !channel_->open());
}

}  // namespace tutti
