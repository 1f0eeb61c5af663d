#include "transport/net/verbs/recv_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti {
namespace {

// Writes of grants ask for a completion so often: twice in the life of a slot. The queue pair has
// room for as many again, so that a late completion does not stop the grants.
constexpr uint64_t kGrantsPerCompletion = kTableSlots / 2;
constexpr uint32_t kGrantDepth = 2 * kTableSlots;

// Distinguish completions of grants and flushes from those of receives, whose ids are numbers of
// groups.
constexpr uint64_t kGrantBit = uint64_t{1} << 63;
constexpr uint64_t kFlushBit = uint64_t{1} << 62;
// Marks the receive that is posted behind all others of a queue pair which was stopped.
constexpr uint64_t kMarkerBit = uint64_t{1} << 61;

// How many flushes may be under way at a time. What each of them reads goes into a word of its own
// behind the grants in the outbox, and is not used.
constexpr uint32_t kFlushes = kNetWindow;

// Behind the records in the table, each queue pair has room for a notice to each of its receives.
// Its id says which of them, above the number of the queue pair.
constexpr size_t kNotices = kTableSlots;
constexpr int kNoticeShift = 8;
static_assert(kMaxQueuePairs <= size_t{1} << kNoticeShift);

}  // namespace

Result<std::unique_ptr<NetRecvComm>> VerbsRecvComm::Create(const PortSet& ports,
                                                           ControlSocket control,
                                                           const ControlMessage& offer,
                                                           std::string peer) {
  const auto make = [&]() -> Result<std::unique_ptr<VerbsRecvComm>> {
    if (offer.type != ControlType::kOffer) {
      return RemoteError("{} began with control message {} instead of an offer", peer,
                         static_cast<int>(offer.type));
    }
    TUTTI_ASSIGN(const VerbsEnd sender, VerbsEnd::Decode(offer.payload));
    VerbsChannel::Parts parts;
    parts.ports = ports;
    parts.peer = std::move(peer);
    parts.notices = sender.notices;
    parts.outbox_bytes = kGrantBytes + kFlushes * sizeof(uint64_t);
    parts.queue_pairs = sender.queue_pairs.size();
    parts.table_bytes = kRecordBytes;
    if (sender.notices) parts.table_bytes += parts.queue_pairs * kNotices * sizeof(Notice);
    parts.depths = {kGrantDepth + 1, kTableSlots + 1};  // one for a greeting, one for a marker
    parts.recovers = true;
    parts.loopback_depth = kFlushes;
    TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts), &sender));
    std::unique_ptr<VerbsRecvComm> comm(new VerbsRecvComm(std::move(channel)));
    TUTTI_TRY(comm->channel_->Join(sender, comm->channel_->options().grant_traffic_class));
    return comm;
  };
  Result<std::unique_ptr<VerbsRecvComm>> comm = make();
  if (!comm.ok()) {
    control.Refuse(comm.status());
    return std::move(comm).status();
  }
  VerbsChannel& channel = *(*comm)->channel_;
  channel.SetControl(std::move(control));
  TUTTI_TRY(channel.control().Send(ControlType::kAnswer, channel.Here().Encode()));
  return std::unique_ptr<NetRecvComm>(std::move(*comm));
}

VerbsRecvComm::VerbsRecvComm(std::unique_ptr<VerbsChannel> channel)
    : ChannelComm(std::move(channel)),
      requests_(kTableSlots),
      receives_(channel_->num_queue_pairs()),
      next_ended_(channel_->num_queue_pairs()),
      next_notice_(channel_->num_queue_pairs()),
      flushes_(kFlushes) {
  // Group g ends on queue pair g mod their number, and there is no group 0.
  std::iota(next_ended_.begin(), next_ended_.end(), uint64_t{0});
  next_ended_[0] = next_ended_.size();
}

GrantSlot& VerbsRecvComm::Grants(uint64_t group) const {
  return reinterpret_cast<GrantSlot*>(channel_->outbox().data())[group % kTableSlots];
}

// Posts the receives of a group and has Progress grant its buffers, in this order: the sender may
// write as soon as it has the grant, and its immediate values need receives. Groups that are begun
// together are granted by one list of writes.
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

// Forgets what has come of a group.
void VerbsRecvComm::Expect(Request& request) {
  request.pending = 1;
  request.ended = false;
  request.bytes = 0;
  request.side_ends = 0;
}

// Posts receives until each queue pair has one for every group that has not come: only the sender
// knows over which of them a group goes. Lost queue pairs get theirs later.
Status VerbsRecvComm::PostReceives() {
  if (channel_->lost() && !answered_again_) return Status::Ok();
  for (size_t pair = 0; pair < receives_.size(); ++pair) {
    for (; receives_[pair] < unfinished_; ++receives_[pair]) {
      const Status posted = PostReceive(pair);
      if (!posted.ok()) return channel_->Fail(posted);
    }
  }
  return Status::Ok();
}

Status VerbsRecvComm::PostReceive(size_t pair) {
  if (!channel_->notices()) return channel_->pair(pair).Receive(channel_->Mark(pair));
  const uint64_t slot = next_notice_[pair]++ % kNotices;
  ibv_sge element = {};
  element.addr = reinterpret_cast<uintptr_t>(&Notices(pair)[slot]);
  element.length = sizeof(Notice);
  element.lkey = channel_->table().registration(channel_->port_of(pair)).local_key();
  return channel_->pair(pair).Receive(channel_->Mark(slot << kNoticeShift | pair), &element);
}

const Notice* VerbsRecvComm::Notices(size_t pair) const {
  const std::byte* const first = channel_->table().data() + kRecordBytes;
  return reinterpret_cast<const Notice*>(first) + pair * kNotices;
}

Status VerbsRecvComm::SayHello() {
  if (said_hello_ || !channel_->ports().iwarp() || !channel_->IsJoined()) return Status::Ok();
  said_hello_ = true;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    ibv_sge element = {};
    element.addr = reinterpret_cast<uintptr_t>(channel_->outbox().data());
    element.length = sizeof(Notice);
    element.lkey = channel_->outbox().registration(channel_->port_of(pair)).local_key();
    ibv_send_wr work = {};
    work.wr_id = channel_->Mark(kGrantBit);
    work.sg_list = &element;
    work.num_sge = 1;
    work.opcode = IBV_WR_SEND;
    const Status sent = channel_->pair(pair).Send(work);
    if (!sent.ok()) return channel_->Fail(sent);
  }
  return Status::Ok();
}

Status VerbsRecvComm::TakeOfferAgain(const ControlMessage& message) {
  if (offer_again_ || answered_again_) {
    return channel_->Refuse(RemoteError("the sender offered queue pairs twice"));
  }
  Result<VerbsEnd> offer = VerbsEnd::Decode(message.payload);
  if (!offer.ok()) return channel_->Refuse(std::move(offer).status());
  TUTTI_TRY(
      channel_->Lose(RemoteError("the other end lost its queue pairs"), VerbsChannel::Loss::kTold));
  offer_again_ = std::move(offer).value();
  return Status::Ok();
}

// Waits until all receives of the lost queue pairs have come back: a marker is posted behind them,
// since completions come in order. Only then is it known which groups have come, and the offer can
// be answered.
Status VerbsRecvComm::GoOnLost() {
  if (answered_again_) return Status::Ok();
  for (; markers_posted_ < channel_->num_queue_pairs(); ++markers_posted_) {
    const Status posted =
        channel_->pair(markers_posted_).Receive(channel_->Mark(kMarkerBit | markers_posted_));
    if (!posted.ok()) return channel_->Fail(posted);
  }
  if (!offer_again_ || markers_taken_ < markers_posted_) return Status::Ok();
  const Status answered = AnswerOffer();
  return answered.ok() ? answered : channel_->Refuse(answered);
}

// Joins the renewed queue pairs and tells the sender which groups have not come. These are granted
// anew.
Status VerbsRecvComm::AnswerOffer() {
  TUTTI_TRY(channel_->Renew(&*offer_again_));
  answered_again_ = true;
  AnswerAgain answer;
  answer.groups.posted = posted_;
  const uint64_t first = posted_ < kTableSlots ? 1 : posted_ - kTableSlots + 1;
  granted_ = posted_;
  for (uint64_t group = first; group <= posted_; ++group) {
    Request& request = At(group);
    if (request.group != group || request.pending == 0) continue;
    answer.groups.Miss(group);
    granted_ = std::min(granted_, group - 1);
    Expect(request);
  }
  const size_t pairs = receives_.size();
  for (size_t pair = 0; pair < pairs; ++pair) {
    receives_[pair] = 0;
    next_ended_[pair] = first + (pair + pairs - first % pairs) % pairs;
  }
  TUTTI_TRY(PostReceives());
  for (Request& flush : flushes_) {
    if (flush.pending > 0) TUTTI_TRY(PostFlush(flush));
  }
  reclaimed_ = granted_;
  TUTTI_TRY(channel_->Join(*offer_again_, channel_->options().grant_traffic_class));
  answer.end = channel_->Here();
  offer_again_.reset();
  markers_posted_ = 0;
  markers_taken_ = 0;
  return channel_->control().Send(ControlType::kAnswerAgain, answer.Encode());
}

// Grants go out while requests of the queue pair are free for them; TakeCompletion gives these
// back.
Status VerbsRecvComm::GrantWhatIsPosted() {
  if (!channel_->open()) return Status::Ok();
  while (granted_ < posted_ && granted_ - reclaimed_ < kGrantDepth) {
    StageGrants(++granted_);
  }
  const Status posted = channel_->pair(0).PostStaged();
  if (!posted.ok()) return channel_->Fail(posted);
  return TellIfAsleep();
}

// Stages the write of a group's grants into the sender's table, from within the request where they
// fit.
void VerbsRecvComm::StageGrants(uint64_t group) {
  const auto slot = static_cast<size_t>(group % kTableSlots);
  const VerbsEnd::Port& there = channel_->remote().ports[channel_->remote_port_of(0)];
  ibv_sge element = {};
  element.addr = reinterpret_cast<uintptr_t>(&Grants(group));
  element.length = static_cast<uint32_t>(At(group).count * sizeof(GrantEntry));
  element.lkey = channel_->outbox().registration(channel_->port_of(0)).local_key();
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

// Wakes a sender that has said that it sleeps for lack of a grant. Grants themselves are writes
// into its memory, which no descriptor tells of.
Status VerbsRecvComm::TellIfAsleep() {
  if (wake_from_ == 0 || granted_ < wake_from_) return Status::Ok();
  WireWriter writer;
  writer.U64(granted_);
  wake_from_ = 0;
  const Status told = channel_->control().Send(ControlType::kWoken, std::move(writer).Take());
  // A sender that is gone is noticed when more is to be received.
  return told.ok() || told.code() == Code::kRemoteError ? Status::Ok() : channel_->Fail(told);
}

Result<std::unique_ptr<NetMemory>> VerbsRecvComm::Register(const NetRegion& region) {
  TUTTI_ASSIGN(auto memory, channel_->Register(region));
  if (region.kind == NetMemoryKind::kGpu && channel_->options().gpu_flush) {
    TUTTI_TRY(channel_->MakeLoopbacks());
  }
  return memory;
}

// A read by a NIC of what it has written pushes the writes before it into the GPU's memory: over
// PCIe a read does not pass them. One read of each NIC is enough for all that came before.
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
  const Status posted = PostFlush(*free);
  if (!posted.ok()) return channel_->Fail(posted);
  return &*free;
}

// The last message of a sender that leaves may still have to be read back.
bool VerbsRecvComm::IsFlushing() const {
  return std::any_of(flushes_.begin(), flushes_.end(),
                     [](const Request& flush) { return flush.pending > 0; });
}

// Where the loop-backs are lost, they are made again with the queue pairs, and the flush is posted
// then.
Status VerbsRecvComm::PostFlush(Request& request) {
  const NetReceive& buffer = request.flushed;
  TUTTI_ASSIGN(const VerbsMemory* const memory, channel_->Check(buffer.memory, buffer.data, 1));
  const auto index = static_cast<uint64_t>(&request - flushes_.data());
  request.pending = channel_->loopbacks().size();
  if (!channel_->loops()) return Status::Ok();
  for (const VerbsChannel::Pair& loop : channel_->loopbacks()) {
    ibv_sge element = {};
    element.addr = reinterpret_cast<uintptr_t>(channel_->outbox().data()) + kGrantBytes +
                   index * sizeof(uint64_t);
    element.length = 1;
    element.lkey = channel_->outbox().registration(loop.port).local_key();
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
    // What came before the failure still counts; the next call fails.
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

// An immediate value has come, or a notice in its place. The value of a send names a group of which
// pieces went over this queue pair; that of a write ends the next of the groups whose own queue
// pair this is.
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

// A group is whole when its own queue pair and all others that carried pieces have ended it: with
// records, the immediate value says how many.
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

// A group of one has records only where its message needed them.
bool VerbsRecvComm::HasRecords(const Request& request) const {
  return request.count > 1 || IsWhole(Records(request)[0], request.group);
}

// Finds out what has come: from the table where the sender has written records of this group, and
// else from the completions.
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

Status VerbsRecvComm::TakeControl(const ControlMessage& message) {
  if (message.type == ControlType::kReady && !channel_->open() &&
      (!channel_->lost() || answered_again_)) {
    channel_->SetOpen();
    if (std::exchange(answered_again_, false)) channel_->TellRecovered(0);
    return GrantWhatIsPosted();
  }
  if (message.type == ControlType::kAwaiting && channel_->ports().iwarp()) {
    const Status begun = channel_->BeginToConnect();
    return begun.ok() ? begun : channel_->Refuse(begun);
  }
  if (message.type == ControlType::kLost) {
    return channel_->Lose(RemoteError("the other end lost its queue pairs"),
                          VerbsChannel::Loss::kTold);
  }
  if (message.type == ControlType::kOfferAgain) return TakeOfferAgain(message);
  WireReader reader(message.payload);
  const uint64_t group = reader.U64();
  if (message.type == ControlType::kWake && (channel_->open() || channel_->lost()) &&
      !reader.failed() && group > 0) {
    wake_from_ = group;
    return TellIfAsleep();
  }
  return channel_->Refuse(RemoteError("the sender sent control message {} at the wrong time",
                                      static_cast<int>(message.type)));
}

Result<bool> VerbsRecvComm::Progress() {
  TUTTI_TRY(channel_->failure());
  TUTTI_ASSIGN(const bool moved, TakeCompletions());
  if (granted_ < posted_) TUTTI_TRY(GrantWhatIsPosted());
  if (channel_->lost()) TUTTI_TRY(GoOnLost());
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
