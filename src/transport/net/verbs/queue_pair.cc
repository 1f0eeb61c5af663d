#include "transport/net/verbs/queue_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/net/verbs/fault.h"
#include "transport/net/verbs/table.h"

namespace tutti {
namespace {

// The wanted room for inline data: the grants of a group fit into a request.
constexpr uint32_t kWantedInline = sizeof(GrantSlot);

// The wait of a sender that found no receive posted, by the code of the standard: 0.64 ms. Ends
// that keep to the grants never wait.
constexpr uint8_t kNoReceiveTimer = 12;
constexpr uint8_t kNoReceiveRetries = 6;

// The most routers between two ports of different subnets, on RoCE and fabrics alike.
constexpr uint8_t kHopLimit = 255;

// The reads under way at once; every device has room for several.
constexpr int kReads = 8;

// The sleeps in a row without a completion until Disarm looks for an event.
constexpr uint32_t kSleepsPerLook = 4;

}  // namespace

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::Create(std::shared_ptr<VerbsNic> nic,
                                                                 int depth) {
  const VerbsLibrary& library = nic->library();
  ibv_context& context = nic->device().context();
  errno = 0;
  ibv_comp_channel* const channel = library.create_comp_channel(&context);
  if (!channel) {
    return DescribeRefusal(errno, "making a completion channel failed", nic->device().name());
  }
  std::unique_ptr<CompletionQueue> made(new CompletionQueue(std::move(nic), *channel));
  const int flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoError(errno, "preparing a completion channel failed");
  }
  const int room = std::min(depth, made->nic_->device().attributes().max_cqe);
  made->queue_ = library.create_cq(&context, room, nullptr, channel, 0);
  if (!made->queue_) {
    return DescribeRefusal(errno, "making a completion queue failed", made->nic_->device().name());
  }
  return made;
}

CompletionQueue::~CompletionQueue() {
  if (queue_) nic_->library().destroy_cq(queue_);
  nic_->library().destroy_comp_channel(channel_);
}

Result<int> CompletionQueue::Poll(ibv_wc* completions, int room) {
  const int count = ibv_poll_cq(queue_, room, completions);
  if (count > 0) fired_ = armed_;
  if (count < 0) return SystemError("{}: its completions cannot be read", nic_->device().name());
  return count;
}

Status CompletionQueue::Arm() {
  if (armed_) {
    ++armed_again_;
    return Status::Ok();
  }
  const int error = ibv_req_notify_cq(queue_, 0);
  if (error != 0) {
    return DescribeRefusal(error, "waiting for completions failed", nic_->device().name());
  }
  armed_ = true;
  armed_again_ = 0;
  return Status::Ok();
}

void CompletionQueue::Disarm() {
  if (!armed_ || (!fired_ && armed_again_ < kSleepsPerLook)) return;
  armed_again_ = 0;
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  // Asking once brings a single event, perhaps a moment after its completion. Until the event comes
  // the queue counts as armed, since asking twice would bring no second event.
  if (nic_->library().get_cq_event(channel_, &queue, &context) != 0) return;
  nic_->library().ack_cq_events(queue_, 1);
  armed_ = fired_ = false;
}

// Sends and receives report to the same completion queue, so that a poll finds both.
Result<std::unique_ptr<QueuePair>> QueuePair::Create(std::shared_ptr<VerbsNic> nic,
                                                     const VerbsPort& port, CompletionQueue& queue,
                                                     const QueuePairDepths& depths) {
  ibv_qp_init_attr wish = {};
  wish.qp_type = IBV_QPT_RC;
  wish.send_cq = wish.recv_cq = &queue.queue();
  wish.cap.max_send_wr = depths.sends;
  wish.cap.max_recv_wr = depths.receives;
  wish.cap.max_send_sge = wish.cap.max_recv_sge = 1;
  wish.cap.max_inline_data = kWantedInline;
  const VerbsLibrary& library = nic->library();
  errno = 0;
  ibv_qp* made = library.create_qp(&nic->domain(), &wish);
  // A device may have less room in a request. Data outside the request needs registered memory, and
  // the tables are registered in any case.
  for (const size_t less : {sizeof(GrantEntry), size_t{0}}) {
    if (made) break;
    wish.cap.max_inline_data = static_cast<uint32_t>(less);
    made = library.create_qp(&nic->domain(), &wish);
  }
  if (!made) {
    return DescribeRefusal(errno,
                           fmt::format("making a queue pair for {} sends and {} receives failed",
                                       depths.sends, depths.receives),
                           nic->device().name());
  }
  std::unique_ptr<QueuePair> pair(new QueuePair(std::move(nic), port, *made));
  pair->max_inline_ = wish.cap.max_inline_data;
  TUTTI_TRY(pair->Initialise());
  return pair;
}

// Brings the queue pair into the state INIT, in which it takes receives but does not carry data
// yet.
Status QueuePair::Initialise() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = nic_->options().pkey_index;
  attributes.port_num = port_.number;
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "initialising");
}

// The error state flushes all posted requests. A receive that is posted afterwards completes behind
// them, as the marker of recovery does.
Status QueuePair::Stop() {
  staged_.clear();
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return Modify(attributes, IBV_QP_STATE, "stopping");
}

// A reset drops all posted requests, so that the queue pair can lie on a different port afterwards.
Status QueuePair::Renew(const VerbsPort& port) {
  staged_.clear();
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RESET;
  TUTTI_TRY(Modify(attributes, IBV_QP_STATE, "renewing"));
  nic_->ForgetPair(number());
  port_ = port;
  return Initialise();
}

QueuePair::~QueuePair() {
  const uint32_t number = pair_->qp_num;
  nic_->library().destroy_qp(pair_);
  nic_->ForgetPair(number);
}

Status QueuePair::Modify(ibv_qp_attr& attributes, int mask, const char* step) {
  const int error = nic_->library().modify_qp(pair_, &attributes, mask);
  if (error == 0) return Status::Ok();
  return DescribeRefusal(error, fmt::format("{} queue pair {} failed", step, number()),
                         port_.Name());
}

// RoCE always needs the global header; InfiniBand needs the global header between subnets only.
ibv_ah_attr QueuePair::AddressOf(const VerbsEnd::Port& remote, uint8_t traffic_class) const {
  ibv_ah_attr address = {};
  address.port_num = port_.number;
  address.sl = nic_->options().service_level;
  address.dlid = remote.lid;
  // Ports of a fabric's subnet reach each other by LID; the first 8 bytes of a GID are the subnet's
  // prefix.
  const bool same_subnet =
      std::equal(remote.gid.begin(), remote.gid.begin() + 8, port_.gid.bytes.begin());
  if (port_.ethernet || !same_subnet) {
    address.is_global = 1;
    std::memcpy(address.grh.dgid.raw, remote.gid.data(), remote.gid.size());
    address.grh.sgid_index = static_cast<uint8_t>(port_.gid.index);
    address.grh.hop_limit = kHopLimit;
    address.grh.traffic_class = traffic_class;
  }
  return address;
}

// Verbs ask for the state "ready to receive" first and "ready to send" second. The attributes of
// the peer belong to the first step, and the retries of this end to the second step.
Status QueuePair::Join(const Remote& remote, uint32_t first_packet, uint8_t traffic_class) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min<int>(port_.mtu, remote.port.mtu));
  attributes.dest_qp_num = remote.number;
  attributes.rq_psn = remote.first_packet;
  attributes.max_dest_rd_atomic = kReads;
  attributes.min_rnr_timer = kNoReceiveTimer;
  attributes.ah_attr = AddressOf(remote.port, traffic_class);
  TUTTI_TRY(Modify(attributes,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                   "joining"));
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = nic_->options().timeout;
  attributes.retry_cnt = nic_->options().retry_count;
  attributes.rnr_retry = kNoReceiveRetries;
  attributes.sq_psn = first_packet;
  attributes.max_rd_atomic = kReads;
  return Modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "opening");
}

Status QueuePair::Send(ibv_send_wr& request) {
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pair_, &request, &refused);
  if (error == 0) return Status::Ok();
  // Queue pairs of iWARP end with their TCP connection.
  if (error == ENOTCONN) return RemoteError("{}: the other end's queue pair is gone", port_.Name());
  return DescribeRefusal(error, "posting a send failed", port_.Name());
}

void QueuePair::Stage(const ibv_send_wr& request) {
  Staged& staged = staged_.emplace_back();
  staged.request = request;
  if (request.num_sge > 0) staged.element = *request.sg_list;
}

Status QueuePair::PostStaged(Completions completions) {
  if (staged_.empty()) return Status::Ok();
  // The loop goes backwards, because a completion stands for all requests before its own.
  uint32_t requests = kPerCompletion;
  uint64_t bytes = 0;
  for (size_t i = staged_.size(); i-- > 0;) {
    Staged& staged = staged_[i];
    staged.request.sg_list = staged.request.num_sge > 0 ? &staged.element : nullptr;
    staged.request.next = i + 1 < staged_.size() ? &staged_[i + 1].request : nullptr;
    bytes += staged.element.length;
    if ((staged.request.send_flags & IBV_SEND_SIGNALED) == 0) continue;
    const bool refers =
        staged.request.num_sge > 0 && (staged.request.send_flags & IBV_SEND_INLINE) == 0;
    if (completions == Completions::kAllThatRefer && refers) continue;
    if (++requests > kPerCompletion || bytes > kBytesPerCompletion) {
      requests = 1;
      bytes = staged.element.length;
    } else {
      staged.request.send_flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
    }
  }
  const Status posted = Send(staged_.front().request);
  staged_.clear();
  return posted;
}

Status QueuePair::Receive(uint64_t id, ibv_sge* element) {
  ibv_recv_wr request = {};
  request.wr_id = id;
  request.sg_list = element;
  request.num_sge = element ? 1 : 0;
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(pair_, &request, &refused);
  if (error == 0) return Status::Ok();
  return DescribeRefusal(error, "posting a receive failed", port_.Name());
}

}  // namespace tutti
