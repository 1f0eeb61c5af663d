#include "transport/net/verbs/recv_comm.h"

#include <arpa/inet.h>

#include <algorithm>
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
constexpr size_t kGrantBytes = kTableSlots * sizeof(GrantSlot);

}  // namespace

Result<std::unique_ptr<NetRecvComm>> VerbsRecvComm::Create(std::shared_ptr<VerbsNic> nic,
                                                           const VerbsPort& port,
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
    parts.nic = std::move(nic);
    parts.port = port;
    parts.peer = std::move(peer);
    parts.table_bytes = kTableSlots * sizeof(RecordSlot);
    parts.outbox_bytes = kGrantBytes + kFlushes * sizeof(uint64_t);
    parts.queue_pairs = sender.queue_pairs.size();
    parts.depths = {kGrantDepth, kTableSlots + 1};  // One is for a marker.
    parts.recovers = true;
    parts.loopback_depth = kFlushes;
    TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts)));
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
  const VerbsEnd here = channel.Here(channel.remote().split);
  channel.SetControl(std::move(control));
  TUTTI_TRY(channel.control().Send(ControlType::kAnswer, here.Encode()));
  return std::unique_ptr<NetRecvComm>(std::move(*comm));
}

VerbsRecvComm::VerbsRecvComm(std::unique_ptr<VerbsChannel> channel)
    : ChannelComm(std::move(channel)), requests_(kTableSlots), flushes_(kFlushes) {}

GrantSlot& VerbsRecvComm::Grants(uint64_t group) const {
  return reinterpret_cast<GrantSlot*>(channel_->outbox().data())[group % kTableSlots];
}

// Posts the receives of a group and grants its buffers, in this order: the sender may write as soon
// as it has the grant, and its immediate values need receives.
Result<NetRequest*> VerbsRecvComm::Irecv(std::span<const NetReceive> group) {
  TUTTI_TRY(channel_->failure());
  const uint64_t number = posted_ + 1;
  Request& request = At(number);
  if (request.group != 0) return nullptr;
  GrantSlot& grants = Grants(number);
  for (size_t i = 0; i < group.size(); ++i) {
    const NetReceive& buffer = group[i];
    uint32_t key = 0;  // an empty buffer has none
    if (buffer.capacity > 0) {
      TUTTI_ASSIGN(const Registration* const registration,
                   channel_->Check(buffer.memory, buffer.data, buffer.capacity));
      key = registration->remote_key();
    }
    const auto low = static_cast<uint32_t>(number);
    grants[i] = {low,
                 buffer.tag,
                 reinterpret_cast<uintptr_t>(buffer.data),
                 static_cast<uint32_t>(std::min(buffer.capacity, kMaxNetMessageBytes)),
                 key,
                 static_cast<uint32_t>(group.size()),
                 low};
    request.capacities[i] = buffer.capacity;
  }
  request.group = number;
  request.count = static_cast<uint32_t>(group.size());
  posted_ = number;
  TUTTI_TRY(PostReceives(request));
  TUTTI_TRY(GrantWhatIsPosted());
  return &request;
}

// Posts a receive for each immediate value that ends the group. Lost queue pairs get theirs later.
Status VerbsRecvComm::PostReceives(Request& request) {
  const size_t pairs = channel_->num_queue_pairs();
  const bool split = channel_->remote().split;
  request.bytes = 0;
  request.pending = split ? pairs : 1;
  if (channel_->lost() && !answered_again_) return Status::Ok();
  for (size_t i = 0; i < request.pending; ++i) {
    const size_t pair = split ? i : request.group % pairs;
    const Status posted = channel_->pair(pair).Receive(channel_->Mark(request.group));
    if (!posted.ok()) return channel_->Fail(posted);
  }
  return Status::Ok();
}

Status VerbsRecvComm::TakeOfferAgain(const ControlMessage& message) {
  if (offer_again_ || answered_again_) {
    return channel_->Refuse(RemoteError("the sender offered queue pairs twice"));
  }
  Result<VerbsEnd> offer = VerbsEnd::Decode(message.payload);
  if (!offer.ok()) return channel_->Refuse(std::move(offer).status());
  TUTTI_TRY(channel_->Lose(RemoteError("the other end lost its queue pairs"), false));
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
  TUTTI_TRY(channel_->Renew());
  answered_again_ = true;
  AnswerAgain answer;
  answer.groups.posted = posted_;
  const uint64_t first = posted_ < kTableSlots ? 1 : posted_ - kTableSlots + 1;
  granted_ = posted_;
  // In order, because each immediate value uses up the first receive that is there.
  for (uint64_t group = first; group <= posted_; ++group) {
    Request& request = At(group);
    if (request.group != group || request.pending == 0) continue;
    answer.groups.Miss(group);
    granted_ = std::min(granted_, group - 1);
    TUTTI_TRY(PostReceives(request));
  }
  reclaimed_ = granted_;
  TUTTI_TRY(channel_->Join(*offer_again_, channel_->options().grant_traffic_class));
  answer.end = channel_->Here(channel_->remote().split);
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
    const Status written = WriteGrants(granted_ + 1);
    if (!written.ok()) return channel_->Fail(written);
    ++granted_;
  }
  return TellIfAsleep();
}

// Writes the grants of a group into the sender's table, from within the request where they fit.
Status VerbsRecvComm::WriteGrants(uint64_t group) {
  const auto slot = static_cast<size_t>(group % kTableSlots);
  ibv_sge element = {};
  element.addr = reinterpret_cast<uintptr_t>(&Grants(group));
  element.length = static_cast<uint32_t>(At(group).count * sizeof(GrantEntry));
  element.lkey = channel_->outbox().registration().local_key();
  ibv_send_wr work = {};
  work.wr_id = channel_->Mark(kGrantBit | group);
  work.sg_list = &element;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE;
  work.wr.rdma.remote_addr = channel_->remote().table_address + slot * sizeof(GrantSlot);
  work.wr.rdma.rkey = channel_->remote().table_key;
  QueuePair& pair = channel_->pair(0);
  if (element.length <= pair.max_inline()) work.send_flags |= IBV_SEND_INLINE;
  if (group % kGrantsPerCompletion == 0) work.send_flags |= IBV_SEND_SIGNALED;
  return pair.Send(work);
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
    TUTTI_TRY(channel_->MakeLoopback());
  }
  return memory;
}

// A read by the NIC of what it has written pushes the writes before it into the GPU's memory: over
// PCIe a read does not pass them. One read is enough for all that came before.
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
  const Status posted = PostFlush(*last, static_cast<size_t>(free - flushes_.begin()));
  if (!posted.ok()) return channel_->Fail(posted);
  free->pending = 1;
  return &*free;
}

Status VerbsRecvComm::PostFlush(const NetReceive& buffer, size_t index) {
  TUTTI_ASSIGN(const Registration* const registration,
               channel_->Check(buffer.memory, buffer.data, 1));
  ibv_sge element = {};
  element.addr = reinterpret_cast<uintptr_t>(channel_->outbox().data()) + kGrantBytes +
                 index * sizeof(uint64_t);
  element.length = 1;
  element.lkey = channel_->outbox().registration().local_key();
  ibv_send_wr work = {};
  work.wr_id = kFlushBit | index;
  work.sg_list = &element;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_READ;
  work.send_flags = IBV_SEND_SIGNALED;
  work.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(buffer.data);
  work.wr.rdma.rkey = registration->remote_key();
  return channel_->loopback()->Send(work);
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
  // The loop-back queue pair is never renewed, so that its completions carry no mark.
  if ((id & kFlushBit) != 0) return TakeFlush(completion);
  if (!channel_->Unmark(id)) return Status::Ok();
  if ((id & kMarkerBit) != 0) {
    ++markers_taken_;
    return Status::Ok();
  }
  const bool is_grant = (id & kGrantBit) != 0;
  if (completion.status != IBV_WC_SUCCESS) {
    return channel_->Lose(completion, is_grant ? "granting buffers" : "receiving");
  }
  channel_->NoteWhole();
  if (!is_grant) return TakeReceive(completion, id);
  reclaimed_ = std::max(reclaimed_, id & ~kGrantBit);
  return Status::Ok();
}

Status VerbsRecvComm::TakeFlush(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    return channel_->FailCompletion(completion, "reading back GPU memory that data came into");
  }
  flushes_[completion.wr_id & ~kFlushBit].pending = 0;
  return Status::Ok();
}

// An immediate value has come. A group that is split over queue pairs is whole when that of each
// pair has.
Status VerbsRecvComm::TakeReceive(const ibv_wc& completion, uint64_t group) {
  Request& request = At(group);
  if (request.group != group || request.pending == 0) {
    return channel_->Refuse(RemoteError("the sender ended group {} twice", group));
  }
  request.bytes += completion.byte_len;
  request.op_tag = ntohl(completion.imm_data);
  if (--request.pending > 0) return Status::Ok();
  return Finish(request);
}

// Finds out what has come: from the table where the sender has written records of this group, and
// else from the completions.
Status VerbsRecvComm::Finish(Request& request) {
  const auto* const slots = reinterpret_cast<const RecordSlot*>(channel_->table().data());
  const RecordSlot& records = slots[request.group % kTableSlots];
  if (request.count == 1 && !IsWhole(records[0], request.group)) {
    request.received[0] = {request.bytes, request.op_tag};
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
  if (message.type == ControlType::kLost) {
    return channel_->Lose(RemoteError("the other end lost its queue pairs"), false);
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
  TUTTI_ASSIGN(const bool came, channel_->Listen(!moved, false, message));
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
  return channel_->PrepareToWait(waits);
}

}  // namespace tutti
