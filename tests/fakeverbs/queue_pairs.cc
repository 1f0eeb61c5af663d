#include "queue_pairs.h"

#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace fakeverbs {
namespace {

constexpr uint32_t kMagic = 0x46414b45;

// A thread that has taken an event acknowledges it at once, if it does so at all.
constexpr std::chrono::seconds kMostToAcknowledge(20);

// What is polled in memory is short; longer messages are only read after a completion.
constexpr size_t kPolledBytes = 1024;

Qp& Of(ibv_qp* pair) { return *reinterpret_cast<Qp*>(pair); }
Cq& Of(ibv_cq* queue) { return *reinterpret_cast<Cq*>(queue); }

bool IsSend(uint8_t opcode) { return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM; }
bool IsWrite(uint8_t opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool IsAtomic(uint8_t opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}
bool HasImmediate(uint8_t opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool IsIwarp(const Qp& pair) { return pair.context->device->spec.iwarp; }

ibv_wc_opcode CompletionOf(uint8_t opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

// Returns the attributes that a step of a reliable queue pair needs.
int NeededFor(ibv_qp_state state) {
  switch (state) {
    case IBV_QPS_INIT:
      return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    case IBV_QPS_RTR:
      return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    case IBV_QPS_RTS:
      return IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
             IBV_QP_MAX_QP_RD_ATOMIC;
    default:
      return IBV_QP_STATE;
  }
}

bool MayFollow(ibv_qp_state from, ibv_qp_state to) {
  switch (to) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
      return true;
    case IBV_QPS_INIT:
      return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
    case IBV_QPS_RTR:
      return from == IBV_QPS_INIT;
    case IBV_QPS_RTS:
      return from == IBV_QPS_RTR || from == IBV_QPS_RTS;
    default:
      return false;
  }
}

void ForgetCompletions(Cq& queue, uint32_t key) {
  std::erase_if(queue.completions, [key](const Completion& each) { return each.pair == key; });
}

// Ends all messages without a word.
void Clear(Qp& pair) {
  LeaveManaged(pair);
  DeliverAll(pair);
  pair.sends.clear();
  pair.receives.clear();
  pair.posted = pair.reclaimed = 0;
  pair.held.clear();
  ForgetCompletions(Of(pair.qp.send_cq), pair.key);
  ForgetCompletions(Of(pair.qp.recv_cq), pair.key);
}

// Of a failed request a completion tells its id, its status and its queue pair, and nothing else.
void Spoil(ibv_wc& wc) {
  wc.opcode = static_cast<ibv_wc_opcode>(TheState().random() % 256);
  wc.byte_len = static_cast<uint32_t>(TheState().random());
  wc.imm_data = static_cast<uint32_t>(TheState().random());
  wc.src_qp = static_cast<uint32_t>(TheState().random()) & kNumberMask;
  wc.wc_flags = static_cast<unsigned>(TheState().random() % 16);
}

void Receive(Qp& pair, ibv_wc_status status, const Frame* frame) {
  const Posted posted = pair.receives.front();
  pair.receives.pop_front();
  Completion completion;
  completion.pair = pair.key;
  ibv_wc& wc = completion.wc;
  wc.wr_id = posted.id;
  wc.status = status;
  wc.qp_num = pair.qp.qp_num;
  wc.opcode = IBV_WC_RECV;
  if (frame && status == IBV_WC_SUCCESS) {
    if (IsWrite(frame->opcode)) wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.byte_len = static_cast<uint32_t>(frame->total);
    wc.src_qp = frame->source & kNumberMask;
    if (HasImmediate(frame->opcode)) {
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.imm_data = frame->immediate;
    }
  }
  if (status != IBV_WC_SUCCESS) Spoil(wc);
  pair.held.push_back(completion);
  if (!frame || TheState().random() % 2 == 0) ShowHeld(pair);
}

// Copies into, or out of, the buffers of a request, from `offset` on. Returns false where they are
// not registered for it or too short.
template <class Copy>
bool ForEachPart(const Domain* domain, const std::vector<ibv_sge>& elements, uint64_t offset,
                 size_t bytes, unsigned access, Copy copy) {
  uint64_t at = 0;
  size_t done = 0;
  for (const ibv_sge& element : elements) {
    const uint64_t end = at + element.length;
    while (done < bytes && offset + done >= at && offset + done < end) {
      const uint64_t skip = offset + done - at;
      const size_t part = std::min<size_t>(bytes - done, element.length - skip);
      std::byte* const memory = Locate(element.lkey, domain, element.addr + skip, part, access);
      if (!memory) return false;
      copy(memory, done, part);
      done += part;
    }
    at = end;
  }
  return done == bytes;
}

// Returns ok for a message, or a part of it, that a queue pair may take from this sender.
bool IsExpected(const Qp& pair, const Frame& frame) {
  const bool ready = pair.qp.state == IBV_QPS_RTR || pair.qp.state == IBV_QPS_RTS;
  const bool is_its = pair.remote == (frame.source & kNumberMask);
  if (!ready || !is_its || pair.expected_packet != frame.packet) return false;
  const PortSpec& port = PortOf(pair);
  if (!port.active) return false;
  return frame.global ? frame.gid == GidOf(port) : frame.lid == LidOf(port);
}

// Returns the queue pair that a message is for, or null.
Qp* TargetOf(const Frame& frame) {
  State& s = TheState();
  for (const auto& device : s.devices) {
    const auto found = s.pairs.find(device->index << kDeviceShift | frame.target);
    if (found != s.pairs.end() && IsExpected(*found->second, frame)) return found->second.get();
  }
  return nullptr;
}

Answer TakeSend(Qp& pair, const Frame& frame, const std::byte* bytes) {
  if (pair.receives.empty()) return Answer::kNotReady;
  const bool fits =
      ForEachPart(pair.domain, pair.receives.front().elements, frame.offset, frame.bytes,
                  IBV_ACCESS_LOCAL_WRITE,
                  [&](std::byte* to, size_t from, size_t part) { Place(to, bytes + from, part); });
  if (fits) return Answer::kDone;
  Receive(pair, IBV_WC_LOC_LEN_ERR, nullptr);
  return Answer::kInvalid;
}

Answer TakeWrite(Qp& pair, const Frame& frame, const std::byte* bytes) {
  if (frame.total == 0) return Answer::kDone;
  if ((pair.access & IBV_ACCESS_REMOTE_WRITE) == 0) return Answer::kAccess;
  std::byte* const memory =
      Locate(frame.key, pair.domain, frame.address, frame.total, IBV_ACCESS_REMOTE_WRITE);
  if (!memory) return Answer::kAccess;
  const Region& region = *TheState().regions.at(frame.key);
  Deliver(pair, region, memory + frame.offset, bytes, frame.bytes);
  return Answer::kDone;
}

Answer TakeAtomic(Qp& pair, const Frame& frame, uint64_t& before) {
  if (frame.address % 8 != 0) return Answer::kInvalid;
  if ((pair.access & IBV_ACCESS_REMOTE_ATOMIC) == 0) return Answer::kAccess;
  std::byte* const memory =
      Locate(frame.key, pair.domain, frame.address, 8, IBV_ACCESS_REMOTE_ATOMIC);
  if (!memory) return Answer::kAccess;
  auto* const word = reinterpret_cast<uint64_t*>(memory);
  const std::atomic_ref<uint64_t> shared(*word);
  const bool adds = frame.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  Device& device = *pair.context->device;
  if (!device.spec.global_atomics) {
    before = shared.load(std::memory_order_acquire);
    if (adds || before == frame.operand)
      device.atomic = {word, adds ? before + frame.operand : frame.swap};
  } else if (adds) {
    before = shared.fetch_add(frame.operand, std::memory_order_acq_rel);
  } else {
    before = frame.operand;
    shared.compare_exchange_strong(before, frame.swap, std::memory_order_acq_rel);
  }
  return Answer::kDone;
}

Answer CheckRead(const Qp& pair, const Frame& frame) {
  if (frame.total == 0) return Answer::kDone;
  if ((pair.access & IBV_ACCESS_REMOTE_READ) == 0) return Answer::kAccess;
  return Locate(frame.key, pair.domain, frame.address, frame.total, IBV_ACCESS_REMOTE_READ)
             ? Answer::kDone
             : Answer::kAccess;
}

ibv_wc_status StatusOf(Answer answer) {
  switch (answer) {
    case Answer::kDone:
      return IBV_WC_SUCCESS;
    case Answer::kSilent:
      return IBV_WC_RETRY_EXC_ERR;
    case Answer::kNotReady:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case Answer::kAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case Answer::kInvalid:
      return IBV_WC_REM_INV_REQ_ERR;
    case Answer::kOperation:
      return IBV_WC_REM_OP_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

// Returns 0, or why a request cannot be posted.
int Examine(const Qp& pair, const ibv_send_wr& work) {
  const auto opcode = static_cast<uint8_t>(work.opcode);
  if (IsIwarp(pair)) {
    if (HasImmediate(opcode) || IsAtomic(opcode)) return EINVAL;
    if (pair.qp.state == IBV_QPS_ERR) return ENOTCONN;
    if (pair.silent) Violation("the end that accepted a connection sends first");
  }
  if (pair.qp.state == IBV_QPS_RESET || pair.qp.state == IBV_QPS_INIT ||
      pair.qp.state == IBV_QPS_RTR) {
    return EINVAL;
  }
  if (pair.posted - pair.reclaimed >= pair.caps.max_send_wr) return ENOMEM;
  if (work.num_sge > static_cast<int>(pair.caps.max_send_sge)) return EINVAL;
  uint64_t total = 0;
  for (int i = 0; i < work.num_sge; ++i) total += work.sg_list[i].length;
  if ((work.send_flags & IBV_SEND_INLINE) != 0 && total > pair.caps.max_inline_data) return ENOMEM;
  if (IsAtomic(opcode) && total != 8) return EINVAL;
  return Refusal("post_send");
}

std::shared_ptr<Work> Copied(Qp& pair, const ibv_send_wr& from) {
  auto work = std::make_shared<Work>();
  work->id = from.wr_id;
  work->flags = from.send_flags;
  work->posted = ++pair.posted;
  for (int i = 0; i < from.num_sge; ++i) {
    const ibv_sge& element = from.sg_list[i];
    work->frame.total += element.length;
    if ((from.send_flags & IBV_SEND_INLINE) == 0) {
      work->elements.push_back(element);
      continue;
    }
    const auto* const bytes = reinterpret_cast<const std::byte*>(element.addr);
    work->inlined.insert(work->inlined.end(), bytes, bytes + element.length);
  }
  Frame& frame = work->frame;
  frame.magic = kMagic;
  frame.opcode = static_cast<uint8_t>(from.opcode);
  frame.target = pair.remote;
  frame.source = pair.key;
  frame.packet = pair.next_packet;
  pair.next_packet = (pair.next_packet + 1) & kPacketMask;
  frame.immediate = from.imm_data;
  if (IsAtomic(frame.opcode)) {
    frame.address = from.wr.atomic.remote_addr;
    frame.key = from.wr.atomic.rkey;
    frame.operand = from.wr.atomic.compare_add;
    frame.swap = from.wr.atomic.swap;
  } else {
    frame.address = from.wr.rdma.remote_addr;
    frame.key = from.wr.rdma.rkey;
  }
  frame.global = pair.route.is_global != 0;
  frame.lid = pair.route.dlid;
  memcpy(frame.gid.data(), pair.route.grh.dgid.raw, frame.gid.size());
  return work;
}

}  // namespace

std::array<uint8_t, 16> GidOf(const PortSpec& port) {
  std::array<uint8_t, 16> gid = {};
  if (inet_pton(AF_INET6, port.address.c_str(), gid.data()) == 1) return gid;
  gid[10] = gid[11] = 0xff;
  if (inet_pton(AF_INET, port.address.c_str(), &gid[12]) != 1) {
    Violation(port.address + " is no address");
  }
  return gid;
}

namespace {

// Returns the number of bytes in front of a line of the cache, by chance one of those that `bytes`
// bytes at `to` reach into; 0: they lie in one.
size_t LineIn(const std::byte* to, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t first = kLine - reinterpret_cast<uintptr_t>(to) % kLine;
  if (first >= bytes) return 0;
  return first + TheState().random() % ((bytes - first - 1) / kLine + 1) * kLine;
}

}  // namespace

uint16_t LidOf(const PortSpec& port) {
  const auto gid = GidOf(port);
  return static_cast<uint16_t>((gid[14] << 8 | gid[15]) & 0x7fff);
}

Qp* PairOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return &Of(event.element.qp);
    default:
      return nullptr;
  }
}

// A pause each time would be long on a busy machine.
void PauseByChance() {
  static std::minstd_rand chance;  // only for the NIC's thread
  if (chance() % 8 == 0) std::this_thread::yield();
}

void PlaceRelaxed(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t cut = LineIn(to, bytes);
  Place(to + cut, from + cut, bytes - cut);
  Place(to, from, cut);
}

void PlaceInOrder(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t cut = LineIn(to, bytes);
  Place(to, from, cut);
  if (cut > 0) PauseByChance();
  Place(to + cut, from + cut, bytes - cut);
}

void Place(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > kPolledBytes || bytes % 4 != 0 || reinterpret_cast<uintptr_t>(to) % 4 != 0) {
    memcpy(to, from, bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += 4) {
    uint32_t word = 0;
    memcpy(&word, from + at, sizeof(word));
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to + at))
        .store(word, std::memory_order_release);
  }
}

bool Take(const Frame& frame, const std::byte* bytes, Frame& answer) {
  answer = frame;
  answer.kind = FrameKind::kReply;
  answer.target = frame.source;
  answer.source = frame.target;
  answer.bytes = 0;
  answer.last = true;
  answer.answer = Answer::kSilent;
  Qp* const target = TargetOf(frame);
  if (!target) return true;
  Qp& pair = *target;
  LandAtomic(*pair.context->device);
  answer.source = pair.key;
  pair.silent = false;
  if (frame.last && HasImmediate(frame.opcode) && pair.receives.empty()) {
    answer.answer = Answer::kNotReady;
    return true;
  }
  const bool waits = frame.opcode != IBV_WR_RDMA_WRITE;
  if (frame.opcode == IBV_WR_RDMA_READ)
    DeliverAllOf(*pair.context->device);
  else if (waits && (TheState().delivery.atomics_wait || !IsAtomic(frame.opcode)))
    DeliverToHost(pair);
  if (IsWrite(frame.opcode)) {
    answer.answer = TakeWrite(pair, frame, bytes);
  } else if (IsSend(frame.opcode)) {
    answer.answer = TakeSend(pair, frame, bytes);
  } else if (IsAtomic(frame.opcode)) {
    answer.answer = TakeAtomic(pair, frame, answer.operand);
  } else {
    answer.answer = CheckRead(pair, frame);
  }
  if (answer.answer == Answer::kAccess || answer.answer == Answer::kInvalid) {
    ibv_async_event event = {};
    event.event_type =
        answer.answer == Answer::kAccess ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    event.element.qp = &pair.qp;
    Raise(*pair.context, event);
    Fail(pair);
    return true;
  }
  if (answer.answer != Answer::kDone) return true;
  if (!frame.last) return false;
  pair.expected_packet = (pair.expected_packet + 1) & kPacketMask;
  if (waits && IsWrite(frame.opcode)) DeliverToHost(pair);
  if (HasImmediate(frame.opcode) || IsSend(frame.opcode)) Receive(pair, IBV_WC_SUCCESS, &frame);
  return true;
}

void TakeAnswer(const Frame& frame, const std::byte* bytes) {
  State& s = TheState();
  const auto found = s.pairs.find(frame.target);
  if (found == s.pairs.end()) return;
  Qp& pair = *found->second;
  if (pair.sends.empty() || pair.sends.front()->frame.packet != frame.packet) return;
  const Work& work = *pair.sends.front();
  ibv_wc_status status = StatusOf(frame.answer);
  uint64_t before = frame.operand;
  const bool atomic = IsAtomic(frame.opcode);
  if (status == IBV_WC_SUCCESS && (atomic || frame.bytes > 0)) {
    const auto* const from = atomic ? reinterpret_cast<const std::byte*>(&before) : bytes;
    const bool fits =
        ForEachPart(pair.domain, work.elements, frame.offset, atomic ? sizeof(before) : frame.bytes,
                    IBV_ACCESS_LOCAL_WRITE,
                    [&](std::byte* to, size_t at, size_t part) { Place(to, from + at, part); });
    if (!fits) status = IBV_WC_LOC_PROT_ERR;
  }
  if (status == IBV_WC_SUCCESS && !frame.last) return;
  if (status == IBV_WC_SUCCESS && work.lose_answer) status = work.failure;
  if (status == IBV_WC_SUCCESS) CheckUnchanged(pair, work);
  Finish(pair, status);
  Settle(pair);
}

void Finish(Qp& pair, ibv_wc_status status) {
  const std::shared_ptr<Work> work = pair.sends.front();
  pair.sends.pop_front();
  if (status != IBV_WC_SUCCESS || pair.all_signaled || (work->flags & IBV_SEND_SIGNALED) != 0) {
    Completion completion;
    completion.pair = pair.key;
    completion.posted = work->posted;
    completion.wc.wr_id = work->id;
    completion.wc.status = status;
    completion.wc.opcode = CompletionOf(work->frame.opcode);
    completion.wc.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x81;
    completion.wc.qp_num = pair.qp.qp_num;
    // The length is that of data that have come.
    const bool brings = work->frame.opcode == IBV_WR_RDMA_READ || IsAtomic(work->frame.opcode);
    completion.wc.byte_len =
        static_cast<uint32_t>(brings ? work->frame.total : TheState().random());
    if (status != IBV_WC_SUCCESS) Spoil(completion.wc);
    Complete(Of(pair.qp.send_cq), completion);
  }
  if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR) Fail(pair);
}

void ShowHeld(Qp& pair) {
  for (; !pair.held.empty(); pair.held.pop_front())
    Complete(Of(pair.qp.recv_cq), pair.held.front());
}

void Settle(Qp& pair) {
  while (!pair.sends.empty() && pair.sends.front()->failure != IBV_WC_SUCCESS &&
         !pair.sends.front()->lose_answer) {
    Finish(pair, pair.sends.front()->failure);
  }
}

void Fail(Qp& pair) {
  pair.qp.state = IBV_QPS_ERR;
  LeaveManaged(pair);
  DeliverAll(pair);
  ShowHeld(pair);
  while (!pair.sends.empty()) Finish(pair, IBV_WC_WR_FLUSH_ERR);
  while (!pair.receives.empty()) Receive(pair, IBV_WC_WR_FLUSH_ERR, nullptr);
}

int PostSend(ibv_qp* qp, ibv_send_wr* work, ibv_send_wr** refused) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Qp& pair = Of(qp);
  for (const ibv_send_wr* const first = work; work; work = work->next) {
    if (const int error = Examine(pair, *work)) {
      *refused = work;
      return error;
    }
    std::shared_ptr<Work> copied = Copied(pair, *work);
    Note({"post_send", copied->frame.address, copied->frame.total, work->send_flags,
          static_cast<int>(work->opcode), qp->qp_num, pair.context->device->spec.name,
          work == first});
    pair.sends.push_back(copied);
    if (qp->state == IBV_QPS_ERR) {
      Finish(pair, IBV_WC_WR_FLUSH_ERR);
    } else {
      Transmit(pair, std::move(copied));
    }
  }
  return 0;
}

int PostReceive(ibv_qp* qp, ibv_recv_wr* work, ibv_recv_wr** refused) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Qp& pair = Of(qp);
  for (; work; work = work->next) {
    int error = qp->state == IBV_QPS_RESET ? EINVAL : Refusal("post_recv");
    if (error == 0 && pair.receives.size() >= pair.caps.max_recv_wr) error = ENOMEM;
    if (error != 0) {
      *refused = work;
      return error;
    }
    Posted posted = {work->wr_id, {}};
    for (int i = 0; i < work->num_sge; ++i) posted.elements.push_back(work->sg_list[i]);
    pair.receives.push_back(std::move(posted));
    if (qp->state == IBV_QPS_ERR) Receive(pair, IBV_WC_WR_FLUSH_ERR, nullptr);
  }
  return 0;
}

namespace {

void TellAttributes(ibv_qp_state state, const ibv_qp_attr& attributes) {
  char line[128] = {};
  if (state == IBV_QPS_INIT)
    snprintf(line, sizeof(line), "queue pair: pkey_index %d", attributes.pkey_index);
  if (state == IBV_QPS_RTR)
    snprintf(line, sizeof(line), "queue pair: sl %d, traffic_class %d", attributes.ah_attr.sl,
             attributes.ah_attr.grh.traffic_class);
  if (state == IBV_QPS_RTS)
    snprintf(line, sizeof(line), "queue pair: timeout %d, retry_cnt %d", attributes.timeout,
             attributes.retry_cnt);
  if (line[0] != 0) Tell(line);
}

}  // namespace

}  // namespace fakeverbs

using namespace fakeverbs;  // NOLINT: all of it is for these functions

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wish) {
  State& s = TheState();
  const Lock lock(s.mutex);
  auto& domain = *reinterpret_cast<Domain*>(pd);
  auto& context = *reinterpret_cast<Context*>(pd->context);
  int error = Refusal("create_qp");
  if (error == 0 && (wish->qp_type != IBV_QPT_RC || wish->cap.max_send_wr > kMaxWork ||
                     wish->cap.max_recv_wr > kMaxWork || wish->cap.max_send_sge > kMaxElements ||
                     wish->cap.max_inline_data > context.device->spec.max_inline)) {
    error = EINVAL;
  }
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  uint32_t number = 0;
  uint32_t key = 0;
  do {
    number = SlotOfNic() << kSlotShift | (++context.device->next_pair & ((1u << kSlotShift) - 1));
    key = context.device->index << kDeviceShift | number;
  } while (s.pairs.count(key) != 0);
  auto made = std::make_unique<Qp>();
  Qp& pair = *made;
  pair.key = key;
  pair.context = &context;
  pair.domain = &domain;
  pair.caps = wish->cap;
  pair.all_signaled = wish->sq_sig_all != 0;
  pair.qp.context = pd->context;
  pair.qp.qp_context = wish->qp_context;
  pair.qp.pd = pd;
  pair.qp.send_cq = wish->send_cq;
  pair.qp.recv_cq = wish->recv_cq;
  pair.qp.qp_num = number;
  pair.qp.qp_type = wish->qp_type;
  pair.qp.state = IBV_QPS_RESET;
  ++domain.users;
  ++Of(wish->send_cq).users;
  ++Of(wish->recv_cq).users;
  s.pairs[key] = std::move(made);
  Note({"create_qp", 0, 0, 0, 0, number, context.device->spec.name});
  return &pair.qp;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("modify_qp")) return error;
  Qp& pair = Of(qp);
  const ibv_qp_state state = attributes->qp_state;
  const int needed = NeededFor(state);
  if ((mask & IBV_QP_STATE) == 0 || (mask & needed) != needed || !MayFollow(qp->state, state)) {
    return EINVAL;
  }
  // The connection manager joins queue pairs of iWARP.
  if (IsIwarp(pair) && (state == IBV_QPS_RTR || state == IBV_QPS_RTS)) return EINVAL;
  Note({"modify_qp", 0, 0, 0, static_cast<int>(state), qp->qp_num});
  TellAttributes(state, *attributes);
  if (state == IBV_QPS_INIT) {
    if (attributes->port_num < 1 ||
        attributes->port_num > pair.context->device->spec.ports.size() ||
        attributes->pkey_index != 0) {
      return EINVAL;
    }
    pair.port = attributes->port_num;
    pair.access = static_cast<unsigned>(attributes->qp_access_flags);
  } else if (state == IBV_QPS_RTR) {
    pair.remote = attributes->dest_qp_num;
    pair.expected_packet = attributes->rq_psn;
    pair.route = attributes->ah_attr;
    if (!pair.context->device->spec.infiniband && !pair.route.is_global) return EINVAL;
  } else if (state == IBV_QPS_RTS) {
    pair.next_packet = attributes->sq_psn;
  } else if (state == IBV_QPS_ERR) {
    Fail(pair);
  } else if (state == IBV_QPS_RESET) {
    Clear(pair);
  }
  qp->state = state;
  return 0;
}

// As libibverbs does, waits until the events that were taken have been acknowledged.
int ibv_destroy_qp(ibv_qp* qp) {
  State& s = TheState();
  std::unique_lock lock(s.mutex);
  Qp& pair = Of(qp);
  if (!s.acknowledged.wait_for(lock, kMostToAcknowledge, [&] { return pair.events == 0; }))
    Violation("a queue pair is destroyed, and an event of it is never acknowledged");
  Clear(pair);
  // Its events that nobody has taken are gone with it.
  std::erase_if(pair.context->events,
                [&](const ibv_async_event& event) { return PairOf(event) == &pair; });
  --pair.domain->users;
  --Of(qp->send_cq).users;
  --Of(qp->recv_cq).users;
  s.pairs.erase(pair.key);
  return 0;
}

}  // extern "C"
