#include "transport/net/verbs/send_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace tutti {
namespace {

// A message takes at most three requests of a queue pair: data, records, and the write with the
// immediate value or a notice instead.
constexpr uint32_t kWorkPerMessage = 3;
constexpr uint32_t kMostRequests = 256;

// The outbox holds two notices of each request, by their kind. The table holds, behind the grants,
// the greeting that the receiver sends first over each queue pair of iWARP.
constexpr size_t kNoticesPerRequest = 2;

// Mark the receives for greetings, and the reads that prove arrival: one read on each queue pair,
// whose word goes into the outbox behind the notices.
constexpr uint64_t kHelloBit = uint64_t{1} << 63;
constexpr uint64_t kProofBit = uint64_t{1} << 62;
constexpr size_t kNoticesAt = kRecordBytes;
constexpr size_t kProofsAt = kNoticesAt + kMostRequests * kNoticesPerRequest * sizeof(Notice);

// The id of work is its number on its queue pair, with the queue pair in the bits above.
constexpr int kWorkShift = 40;
static_assert(kMaxQueuePairs <= size_t{1} << 8);

}  // namespace

// The number of messages under way is bounded by the requests that all NICs of the ports take on a
// queue pair, because every message may go over any queue pair.
Result<std::unique_ptr<NetSendComm>> VerbsSendComm::Create(const PortSet& ports,
                                                           size_t remote_ports,
                                                           SealedSocket control, std::string peer) {
  int most = std::numeric_limits<int>::max();
  for (const UsedPort& port : ports.ports)
    most = std::min(most, port.nic->device().attributes().max_qp_wr);
  const uint32_t proofs = ports.iwarp() ? 1 : 0;
  const uint32_t requests = std::clamp(
      (static_cast<uint32_t>(std::max(most, 1)) - proofs) / kWorkPerMessage, 1u, kMostRequests);
  const size_t row = std::max(ports.own, remote_ports);
  const auto wanted = static_cast<size_t>(ports.ports.front().nic->options().queue_pairs);
  VerbsChannel::Parts parts;
  parts.ports = ports;
  parts.peer = std::move(peer);
  parts.queue_pairs = row * std::min(wanted, kMaxQueuePairs / row);
  parts.table_bytes = kGrantBytes + parts.queue_pairs * sizeof(Notice);
  parts.outbox_bytes = kProofsAt + parts.queue_pairs * sizeof(uint64_t);
  parts.depths = {requests * kWorkPerMessage + proofs, 1};
  parts.recovers = true;
  parts.notices = ports.iwarp() || ports.ports.front().nic->options().send_notices;
  TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts), nullptr));
  std::unique_ptr<VerbsSendComm> comm(new VerbsSendComm(std::move(channel), requests, row));
  TUTTI_TRY(comm->PostHelloReceives());
  TUTTI_TRY(comm->channel_->Offer(std::move(control)));
  return std::unique_ptr<NetSendComm>(std::move(comm));
}

VerbsSendComm::VerbsSendComm(std::unique_ptr<VerbsChannel> channel, uint64_t requests, size_t row)
    : ChannelComm(std::move(channel)),
      row_(row),
      requests_(requests),
      under_way_(channel_->num_queue_pairs()) {
  for (uint32_t i = 0; i < requests; ++i) free_.push_back(i);
}

Status VerbsSendComm::PostHelloReceives() {
  if (!channel_->ports().iwarp()) return Status::Ok();
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    ibv_sge element = channel_->table().Element(kGrantBytes + pair * sizeof(Notice), sizeof(Notice),
                                                channel_->port_of(pair));
    TUTTI_TRY(channel_->pair(pair).Receive(channel_->Mark(kHelloBit | pair), &element));
  }
  return Status::Ok();
}

const GrantSlot& VerbsSendComm::Granted(uint64_t group) const {
  return reinterpret_cast<const GrantSlot*>(channel_->table().data())[group % kTableSlots];
}

RecordSlot& VerbsSendComm::Records(uint64_t group) const {
  return reinterpret_cast<RecordSlot*>(channel_->outbox().data())[group % kTableSlots];
}

// Looks for the grants of the current group, and keeps a copy, because the receiver may overwrite
// the slot later. Fails the connection where the grants make no sense.
bool VerbsSendComm::LoadGroup() {
  if (group_size_ > 0) return true;
  const GrantSlot& slot = Granted(group_);
  if (!IsWhole(slot[0], group_)) return false;
  const uint32_t count = slot[0].count;
  if (count < 1 || count > kMaxNetGroup) {
    [[maybe_unused]] const Status refused = channel_->Refuse(RemoteError(
        "the receiver granted a group of {} buffers; there are at most {}", count, kMaxNetGroup));
    return false;
  }
  for (uint32_t i = 1; i < count; ++i) {
    if (!IsWhole(slot[i], group_)) return false;
  }
  grants_ = slot;
  if (!IsGroup(grants_)) {
    [[maybe_unused]] const Status refused = channel_->Refuse(RemoteError(
        "what the receiver granted as group {} is none: a buffer is missing or named twice",
        group_));
    return false;
  }
  group_size_ = count;
  matched_ = 0;
  return true;
}

// Returns whether the buffers agree on their number, and have different tags.
bool VerbsSendComm::IsGroup(const GrantSlot& slot) const {
  const uint32_t count = slot[0].count;
  for (uint32_t i = 0; i < count; ++i) {
    if (slot[i].count != count) return false;
    for (uint32_t j = 0; j < i; ++j) {
      if (slot[i].tag == slot[j].tag) return false;
    }
  }
  return true;
}

// Returns the free buffer of the current group with this tag, or -1.
int VerbsSendComm::FindTag(uint32_t tag) const {
  for (uint32_t i = 0; i < group_size_; ++i) {
    if ((matched_ >> i & 1) == 0 && grants_[i].tag == tag) return static_cast<int>(i);
  }
  return -1;
}

VerbsSendComm::Request* VerbsSendComm::TakeRequest() {
  if (free_.empty()) return nullptr;
  Request& request = requests_[free_.back()];
  free_.pop_back();
  request.taken = true;
  return &request;
}

// Returns the queue pairs over which a message is cut: all of them where the settings say so, a row
// for a long message where an end has several ports, and otherwise only the group's own queue pair.
VerbsSendComm::Stripe VerbsSendComm::StripeOf(const Request& request) const {
  const bool all = channel_->options().split;
  const size_t row = all ? channel_->num_queue_pairs() : row_;
  const size_t own = OwnPair(request.group);
  if (row == 1 || request.message.bytes <= (all ? kPieceAlignment : kStripeAbove)) return {own, 1};
  return {own / row * row, row};
}

// Returns whether sizes and op tags go into the receiver's table, because the immediate value has
// no room, or because the packets of a write may be reordered.
bool VerbsSendComm::NeedsRecords(const Request& request) const {
  const VerbsOptions& options = channel_->options();
  const bool adaptive =
      channel_->ports().ethernet() ? options.adaptive_on_ethernet : options.adaptive_on_infiniband;
  return request.group_size > 1 || StripeOf(request).count > 1 ||
         (adaptive && request.message.bytes > options.separate_above);
}

// Begins a message if the receiver has granted a buffer with the message's tag in the current
// group. No message travels ahead of its grant. The requests are only staged here, and Progress
// posts them, so that messages begun together are posted together.
Result<NetRequest*> VerbsSendComm::Isend(const NetSend& message) {
  TUTTI_TRY(channel_->failure());
  if (message.bytes > kMaxNetMessageBytes) {
    return InternalError("a message of {} bytes is too long", message.bytes);
  }
  if (!channel_->open() || free_.empty()) return nullptr;
  starved_ = !LoadGroup();
  if (starved_) {
    TUTTI_TRY(channel_->failure());
    return nullptr;
  }
  const int index = FindTag(message.tag);
  if (index < 0) return nullptr;
  const GrantEntry& grant = grants_[static_cast<size_t>(index)];
  if (message.bytes > grant.capacity) {
    return channel_->Refuse(RemoteError("a message of {} bytes was sent for a buffer of {}",
                                        message.bytes, grant.capacity));
  }
  Request& request = *TakeRequest();
  matched_ |= 1u << index;
  request.message = message;
  request.grant = grant;
  request.number = begun_++;
  request.group = group_;
  request.group_size = group_size_;
  request.ends_group = static_cast<uint32_t>(std::popcount(matched_)) == group_size_;
  RecordEntry& record = Records(group_)[static_cast<size_t>(index)];
  const auto number = static_cast<uint32_t>(group_);
  record = {number, static_cast<uint32_t>(message.bytes), message.op_tag, number};
  ++in_flight_;
  TUTTI_TRY(channel_->FailUnlessOk(Post(request)));
  if (!request.ends_group) return &request;
  ++group_;
  group_size_ = 0;
  return &request;
}

// Stages all work of a message. The function is called again after a loss of the queue pairs, with
// the same grant, number and records as before.
Status VerbsSendComm::Post(Request& request) {
  if (posting_ != request.group) {
    posting_ = request.group;
    beside_.reset();
  }
  request.pending = 0;
  TUTTI_TRY(PostMessage(request));
  if (request.ends_group && NeedsRecords(request)) PostEnd(request);
  return Status::Ok();
}

// Stages the writes of a message's data. The only message of a group also carries the immediate
// value, unless records or a notice follow.
Status VerbsSendComm::PostMessage(Request& request) {
  const NetSend& message = request.message;
  const VerbsMemory* memory = nullptr;
  if (message.bytes > 0) {
    TUTTI_ASSIGN(memory, channel_->Check(message.memory, message.data, message.bytes));
  }
  const bool alone = !NeedsRecords(request);
  const bool carries_end = alone && !channel_->notices();
  const Stripe stripe = StripeOf(request);
  std::array<size_t, kMaxQueuePairs> pieces;  // Only the first stripe.count are set.
  CutByWeight(message.bytes, channel_->weights().subspan(stripe.first, stripe.count),
              std::span(pieces).first(stripe.count));
  for (size_t i = 0, from = 0; i < stripe.count; from += pieces[i++]) {
    if (pieces[i] == 0 && (stripe.count > 1 || channel_->notices())) continue;
    const size_t pair = stripe.first + i;
    if (pair != OwnPair(request.group)) beside_.set(pair);
    ibv_send_wr work = {};
    work.opcode = carries_end ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    work.imm_data = htonl(message.op_tag);
    work.wr.rdma.remote_addr = request.grant.address + from;
    work.wr.rdma.rkey = request.grant.keys[channel_->remote_port_of(pair)];
    const Registration* const held =
        memory ? memory->registration(channel_->port_of(pair)) : nullptr;
    // At the end of a group the completion of the record or of the immediate value, which follow on
    // the queue pair, stands for the data too. Over iWARP notices follow, and the data needs a
    // completion of its own (QueuePair::Completions).
    StagePiece(pair, work, request, carries_end || !request.ends_group || channel_->notices(),
               {message.data + from, pieces[i], held ? held->local_key() : 0,
                memory ? memory->region().kind : NetMemoryKind::kHost});
  }
  if (!alone || carries_end) return Status::Ok();
  PostNotice(OwnPair(request.group), request,
             {static_cast<uint32_t>(request.group), message.op_tag,
              static_cast<uint32_t>(message.bytes), Notice::Kind::kEnd});
  return Status::Ok();
}

// A notice that is not inline must stay unchanged until it has been sent, so each request has room
// in the outbox for its notices.
void VerbsSendComm::PostNotice(size_t pair, Request& request, const Notice& notice) {
  const auto index = static_cast<size_t>(&request - requests_.data()) * kNoticesPerRequest +
                     (notice.kind == Notice::Kind::kSideEnd ? 1 : 0);
  Notice& kept = reinterpret_cast<Notice*>(channel_->outbox().data() + kNoticesAt)[index];
  kept = notice;
  ibv_send_wr work = {};
  work.opcode = IBV_WR_SEND;
  if (sizeof(Notice) <= channel_->pair(pair).max_inline()) work.send_flags = IBV_SEND_INLINE;
  StagePiece(pair, work, request, true,
             {reinterpret_cast<const std::byte*>(&kept), sizeof(Notice),
              channel_->outbox().registration(channel_->port_of(pair)).local_key()});
}

// Stages the end of a group: the records, and a write without data whose immediate value is the
// number of further queue pairs with pieces. `request` is done only when the end is done.
void VerbsSendComm::PostEnd(Request& request) {
  PostSideEnds(request);
  const size_t own = OwnPair(request.group);
  const auto slot = static_cast<size_t>(request.group % kTableSlots);
  ibv_send_wr records = {};
  records.opcode = IBV_WR_RDMA_WRITE;
  records.wr.rdma.remote_addr = channel_->remote().table_address + slot * sizeof(RecordSlot);
  records.wr.rdma.rkey = channel_->remote().ports[channel_->remote_port_of(own)].table_key;
  StagePiece(own, records, request, false,
             {reinterpret_cast<const std::byte*>(&Records(request.group)),
              request.group_size * sizeof(RecordEntry),
              channel_->outbox().registration(channel_->port_of(own)).local_key()});
  const auto others = static_cast<uint32_t>(beside_.count());
  if (channel_->notices()) {
    PostNotice(own, request, {static_cast<uint32_t>(request.group), others, 0, Notice::Kind::kEnd});
    return;
  }
  ibv_send_wr end = {};
  end.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  end.imm_data = htonl(others);
  end.wr.rdma = records.wr.rdma;
  StagePiece(own, end, request, true, {});
}

// Stages a send without data that names the group, behind the pieces on each further queue pair.
void VerbsSendComm::PostSideEnds(Request& request) {
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    if (!beside_.test(pair)) continue;
    if (channel_->notices()) {
      PostNotice(pair, request,
                 {static_cast<uint32_t>(request.group), 0, 0, Notice::Kind::kSideEnd});
      continue;
    }
    ibv_send_wr end = {};
    end.opcode = IBV_WR_SEND_WITH_IMM;
    end.imm_data = htonl(static_cast<uint32_t>(request.group));
    StagePiece(pair, end, request, true, {});
  }
}

// Stages a write or send. Small data in memory of the host is copied into the request (inline), to
// spare the device a read of memory. Memory of a GPU is never copied by the processor.
void VerbsSendComm::StagePiece(size_t pair, ibv_send_wr& work, Request& request, bool completes,
                               const Piece& piece) {
  UnderWay& way = under_way_[pair];
  work.wr_id = channel_->Mark(uint64_t{pair} << kWorkShift | (way.first + way.requests.size()));
  if (completes) {
    way.requests.push_back(&request);
    ++request.pending;
    work.send_flags |= IBV_SEND_SIGNALED;
  }
  ibv_sge element = {};
  if (piece.bytes > 0) {
    element.addr = reinterpret_cast<uintptr_t>(piece.data);
    element.length = static_cast<uint32_t>(piece.bytes);
    element.lkey = piece.key;
    work.sg_list = &element;
    work.num_sge = 1;
    // Small data is always copied over iWARP: siw of Linux 6.1 sends wrong bytes for some uncopied
    // data that crosses a page, where siw's own thread sends.
    const bool copied = channel_->options().inline_data || channel_->ports().iwarp();
    if (copied && piece.kind == NetMemoryKind::kHost &&
        piece.bytes <= channel_->pair(pair).max_inline()) {
      work.send_flags |= IBV_SEND_INLINE;
    }
  }
  channel_->pair(pair).Stage(work);
  staged_.set(pair);
}

Status VerbsSendComm::Flush() {
  if (staged_.none()) return Status::Ok();
  const auto which =
      channel_->notices() ? QueuePair::Completions::kAllThatRefer : QueuePair::Completions::kFew;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    if (!staged_.test(pair)) continue;
    TUTTI_TRY(channel_->FailUnlessOk(channel_->pair(pair).PostStaged(which)));
  }
  staged_.reset();
  return Status::Ok();
}

bool VerbsSendComm::Drained() const {
  if (in_flight_ > 0) return false;
  if (!channel_->ports().iwarp() || proven_ == begun_) return true;
  proof_wanted_ = true;
  return false;
}

// A read is answered only when all earlier writes and sends on its queue pair have been placed. The
// device or kernel of the peer's host answers, whether or not the peer's process runs.
Status VerbsSendComm::ProveArrival() {
  if (in_flight_ > 0 || proofs_ > 0) return Status::Ok();
  proof_wanted_ = false;
  proving_ = begun_;
  for (size_t pair = 0; pair < channel_->num_queue_pairs(); ++pair) {
    ibv_sge element = channel_->outbox().Element(kProofsAt + pair * sizeof(uint64_t),
                                                 sizeof(uint64_t), channel_->port_of(pair));
    ibv_send_wr work = {};
    work.wr_id = channel_->Mark(kProofBit | uint64_t{pair} << kWorkShift);
    work.sg_list = &element;
    work.num_sge = 1;
    work.opcode = IBV_WR_RDMA_READ;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = channel_->remote().table_address;
    work.wr.rdma.rkey = channel_->remote().ports[channel_->remote_port_of(pair)].table_key;
    TUTTI_TRY(channel_->FailUnlessOk(channel_->pair(pair).Send(work)));
    ++proofs_;
  }
  return Status::Ok();
}

void VerbsSendComm::Complete(size_t pair, uint64_t number) {
  UnderWay& way = under_way_[pair];
  for (; way.first <= number && !way.requests.empty(); ++way.first) {
    if (--way.requests.front()->pending == 0) --in_flight_;
    way.requests.pop_front();
  }
}

// Completions of an earlier life of the queue pairs are left out (Unmark): their work was repeated.
Result<bool> VerbsSendComm::TakeCompletions() {
  TUTTI_ASSIGN(const std::span<const ibv_wc> completions, channel_->Poll());
  bool moved = false;
  for (const ibv_wc& completion : completions) {
    uint64_t id = completion.wr_id;
    if (!channel_->Unmark(id)) continue;
    if ((id & kHelloBit) != 0 && completion.status == IBV_WC_SUCCESS) {
      ++hellos_;
      moved = true;
      continue;
    }
    if ((id & kProofBit) != 0 && completion.status == IBV_WC_SUCCESS) {
      if (--proofs_ == 0) proven_ = proving_;
      moved = true;
      continue;
    }
    const auto pair = static_cast<size_t>((id & ~(kHelloBit | kProofBit)) >> kWorkShift);
    const uint64_t number = id & ((uint64_t{1} << kWorkShift) - 1);
    if (completion.status != IBV_WC_SUCCESS) {
      const UnderWay& way = under_way_[pair];
      const uint64_t place = number - way.first;
      const size_t bytes =
          place < way.requests.size() ? way.requests[place]->message.bytes : size_t{0};
      Status failed = channel_->Lose(completion, fmt::format("writing {} bytes", bytes));
      // Completions before the failure still count; the next call fails.
      if (!failed.ok() && !moved) return failed;
      if (!failed.ok()) return true;
    } else {
      Complete(pair, number);
      channel_->NoteWhole();
    }
    moved = true;
  }
  return moved;
}

// A look at the control socket is a system call, and waits until nothing else has moved.
Result<bool> VerbsSendComm::Progress() {
  TUTTI_TRY(channel_->failure());
  TUTTI_TRY(Flush());
  TUTTI_ASSIGN(const bool moved, TakeCompletions());
  if (channel_->state() == Recovery::State::kJoined) [[unlikely]]
    TUTTI_TRY(OpenIfJoined());
  if (proof_wanted_) [[unlikely]]
    TUTTI_TRY(ProveArrival());
  if (channel_->state() == Recovery::State::kLost && !moved) TUTTI_TRY(OfferAgain());
  ControlMessage message;
  TUTTI_ASSIGN(const bool came, channel_->Listen(!moved, in_flight_ > 0 || proofs_ > 0, message));
  if (!came) return moved;
  TUTTI_TRY(TakeControl(message));
  return true;
}

Result<bool> VerbsSendComm::Test(NetRequest& request) {
  auto& mine = static_cast<Request&>(request);
  if (!mine.taken) return InternalError("a request was tested that is not under way");
  if (mine.pending > 0) return false;
  mine.taken = false;
  free_.push_back(static_cast<uint32_t>(&mine - requests_.data()));
  return true;
}

// A grant brings no completion. Before this end sleeps for lack of a grant, this end asks the
// receiver for a message about the next grant, and looks for the grant once more.
NetIdle VerbsSendComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (!channel_->failure().ok()) return NetIdle::kProgress;
  if (channel_->open() && starved_) {
    if (LoadGroup()) return NetIdle::kProgress;
    // The receiver's message has overtaken the grant, which is on its way.
    if (woken_ >= group_) return NetIdle::kPoll;
    if (wake_asked_ < group_) {
      wake_asked_ = group_;
      WireWriter writer;
      writer.U64(group_);
      const Status asked = channel_->FailUnlessOk(
          channel_->control().Send(ControlType::kWake, std::move(writer).Take()));
      if (!asked.ok() || LoadGroup()) return NetIdle::kProgress;
    }
  }
  return channel_->PrepareToWait(waits, starved_ || !channel_->open());
}

}  // namespace tutti
