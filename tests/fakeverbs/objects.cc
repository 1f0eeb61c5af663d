// Devices, events, protection domains, registrations and completion queues.

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "queue_pairs.h"
#include "state.h"

using namespace fakeverbs;  // NOLINT: all of it is for these functions

namespace {

template <class T>
T* Refuse(int error) {
  errno = error;
  return nullptr;
}

Context& Of(ibv_context* context) { return *reinterpret_cast<Context*>(context); }
Domain& Of(ibv_pd* domain) { return *reinterpret_cast<Domain*>(domain); }
Cq& Of(ibv_cq* queue) { return *reinterpret_cast<Cq*>(queue); }
Channel& Of(ibv_comp_channel* channel) { return *reinterpret_cast<Channel*>(channel); }

// Takes one of the events that a descriptor counts. Returns false where there is none and the
// descriptor does not wait.
bool TakeOne(int fd) {
  uint64_t one = 0;
  return read(fd, &one, sizeof(one)) == sizeof(one);
}

int PollQueue(ibv_cq* queue, int room, ibv_wc* completions) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Cq& cq = Of(queue);
  int count = 0;
  for (; count < room && !cq.completions.empty(); ++count) {
    const Completion& first = cq.completions.front();
    completions[count] = first.wc;
    const auto pair = s.pairs.find(first.pair);
    if (pair != s.pairs.end()) {
      pair->second->reclaimed = std::max(pair->second->reclaimed, first.posted);
    }
    cq.completions.pop_front();
  }
  return count;
}

int ArmQueue(ibv_cq* queue, int) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("req_notify_cq")) return error;
  Of(queue).armed = true;
  return 0;
}

ibv_mr* Add(ibv_pd* pd, std::byte* base, size_t bytes, uint64_t begin, unsigned access) {
  State& s = TheState();
  auto region = std::make_unique<Region>();
  region->domain = &Of(pd);
  ++region->domain->users;
  region->begin = begin;
  region->base = base;
  region->access = access;
  region->mr.context = pd->context;
  region->mr.pd = pd;
  region->mr.addr = reinterpret_cast<void*>(begin);
  region->mr.length = bytes;
  do {
    s.next_key += 0x101;
  } while (s.next_key == 0 || s.regions.count(s.next_key) != 0);
  region->mr.lkey = region->mr.rkey = s.next_key;
  ibv_mr* const mr = &region->mr;
  s.regions[s.next_key] = std::move(region);
  return mr;
}

// A NIC writes through a mapping that may be written, unless others may only read.
constexpr unsigned kWrites =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

}  // namespace

extern "C" {

int ibv_fork_init(void) { return 0; }

ibv_device** ibv_get_device_list(int* count) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("get_device_list")) return Refuse<ibv_device*>(error);
  auto** const list = new ibv_device*[s.devices.size() + 1]();
  for (size_t i = 0; i < s.devices.size(); ++i) list[i] = &s.devices[i]->device;
  if (count) *count = static_cast<int>(s.devices.size());
  return list;
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }

ibv_context* ibv_open_device(ibv_device* device) {
  State& s = TheState();
  {
    const Lock lock(s.mutex);
    if (const int error = Refusal("open_device")) return Refuse<ibv_context>(error);
  }
  StartNic();
  const Lock lock(s.mutex);
  auto made = std::make_unique<Context>();
  Context& context = *made;
  context.device = reinterpret_cast<Device*>(device);
  ++context.device->open;
  context.context.device = device;
  context.context.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  context.context.num_comp_vectors = 1;
  context.context.ops.poll_cq = PollQueue;
  context.context.ops.req_notify_cq = ArmQueue;
  context.context.ops.post_send = PostSend;
  context.context.ops.post_recv = PostReceive;
  s.contexts[&context] = std::move(made);
  return &context.context;
}

int ibv_close_device(ibv_context* context) {
  State& s = TheState();
  const Lock lock(s.mutex);
  for (const auto& entry : s.domains) {
    if (entry.second->pd.context == context) Violation("a device is closed that has a domain");
  }
  for (const auto& entry : s.queues) {
    if (entry.second->cq.context == context) Violation("a device is closed that has a queue");
  }
  --Of(context).device->open;
  close(context->async_fd);
  s.contexts.erase(&Of(context));
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("query_device")) return error;
  const DeviceSpec& spec = Of(context).device->spec;
  *attributes = {};
  snprintf(attributes->fw_ver, sizeof(attributes->fw_ver), "1.0");
  uint64_t guid = 0x0200;
  for (const char c : spec.name) guid = guid * 131 + static_cast<uint8_t>(c);
  attributes->node_guid = htobe64(guid);
  attributes->phys_port_cnt = static_cast<uint8_t>(spec.ports.size());
  attributes->max_qp_wr = static_cast<int>(kMaxWork);
  attributes->max_cqe = kMaxCompletions;
  attributes->max_sge = kMaxElements;
  attributes->max_qp = static_cast<int>(1u << kSlotShift);
  attributes->max_qp_rd_atom = 16;
  attributes->max_qp_init_rd_atom = 16;
  attributes->atomic_cap = !spec.atomics || spec.iwarp ? IBV_ATOMIC_NONE
                           : spec.global_atomics       ? IBV_ATOMIC_GLOB
                                                       : IBV_ATOMIC_HCA;
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t number, _compat_ibv_port_attr* into) {
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(into);
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("query_port")) return error;
  const DeviceSpec& spec = Of(context).device->spec;
  if (number < 1 || number > spec.ports.size()) return EINVAL;
  *attributes = {};
  attributes->state = spec.ports[number - size_t{1}].active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes->max_mtu = attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 1;
  attributes->pkey_tbl_len = 1;
  attributes->lid = spec.infiniband ? LidOf(spec.ports[number - size_t{1}]) : uint16_t{0};
  attributes->active_width = 2;  // 4 lanes
  attributes->active_speed = spec.ports[number - size_t{1}].speed;
  attributes->link_layer = spec.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t room, uint32_t,
                             size_t entry_bytes) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("query_gid_table")) return -error;
  if (entry_bytes != sizeof(ibv_gid_entry)) return -EINVAL;
  const DeviceSpec& spec = Of(context).device->spec;
  size_t count = 0;
  for (; count < spec.ports.size() && count < room; ++count) {
    ibv_gid_entry& entry = entries[count];
    entry = {};
    entry.port_num = static_cast<uint32_t>(count + 1);
    entry.gid_type = spec.infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
    const auto gid = GidOf(spec.ports[count]);
    memcpy(entry.gid.raw, gid.data(), gid.size());
  }
  return static_cast<ssize_t>(count);
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (!TakeOne(context->async_fd)) return -1;
  State& s = TheState();
  const Lock lock(s.mutex);
  if (Of(context).events.empty()) return -1;  // its queue pair is gone
  *event = Of(context).events.front();
  Of(context).events.pop_front();
  if (Qp* const pair = PairOf(*event)) ++pair->events;
  return 0;
}

void ibv_ack_async_event(ibv_async_event* event) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (Qp* const pair = PairOf(*event)) --pair->events;
  s.acknowledged.notify_all();
}

const char* ibv_event_type_str(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_QP_FATAL:
      return "local work queue catastrophic error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "local access violation work queue error";
    default:
      return "some event";
  }
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "RNR retry counter exceeded";
    default:
      return "some error";
  }
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("alloc_pd")) return Refuse<ibv_pd>(error);
  auto made = std::make_unique<Domain>();
  Domain& domain = *made;
  domain.pd.context = context;
  s.domains[&domain] = std::move(made);
  return &domain.pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (Of(pd).users > 0) Violation("a domain is freed that has registrations or queue pairs");
  s.domains.erase(&Of(pd));
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* memory, size_t bytes, int access) {
  State& s = TheState();
  const Lock lock(s.mutex);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  Note({"reg_mr", address, bytes, static_cast<unsigned>(access)});
  if (const int error = Refusal("reg_mr")) return Refuse<ibv_mr>(error);
  return Add(pd, static_cast<std::byte*>(memory), bytes, address, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* memory, size_t bytes, uint64_t begin, unsigned access) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Note({"reg_mr_iova2", begin, bytes, access});
  if (const int error = Refusal("reg_mr_iova2")) return Refuse<ibv_mr>(error);
  return Add(pd, static_cast<std::byte*>(memory), bytes, begin, access);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t begin, int fd,
                          int access) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Note({"reg_dmabuf_mr", begin, bytes, static_cast<unsigned>(access)});
  if (const int error = Refusal("reg_dmabuf_mr")) return Refuse<ibv_mr>(error);
  if (!Of(pd->context).device->spec.dmabuf) return Refuse<ibv_mr>(EOPNOTSUPP);
  if (fcntl(fd, F_GETFD) < 0) return Refuse<ibv_mr>(EBADF);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t from = offset / page * page;
  const size_t length = bytes + (offset - from);
  const bool writes = (static_cast<unsigned>(access) & kWrites) != 0;
  void* const mapping = mmap(nullptr, length, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd,
                             static_cast<off_t>(from));
  if (mapping == MAP_FAILED) return Refuse<ibv_mr>(EINVAL);
  ibv_mr* const mr = Add(pd, static_cast<std::byte*>(mapping) + (offset - from), bytes, begin,
                         static_cast<unsigned>(access));
  Region& region = *s.regions[mr->lkey];
  region.mapping = mapping;
  region.mapping_bytes = length;
  if (s.watcher != nullptr) s.watcher->Added(region, fd, offset);
  return mr;
}

int ibv_dereg_mr(ibv_mr* mr) {
  State& s = TheState();
  const Lock lock(s.mutex);
  auto& region = *reinterpret_cast<Region*>(mr);
  Note({"dereg_mr", region.begin, mr->length});
  DeliverAllOfEveryPair();
  --region.domain->users;
  if (region.mapping && s.watcher != nullptr) s.watcher->Gone(mr->lkey);
  if (region.mapping) munmap(region.mapping, region.mapping_bytes);
  s.regions.erase(mr->lkey);
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("create_comp_channel")) return Refuse<ibv_comp_channel>(error);
  auto made = std::make_unique<Channel>();
  Channel& channel = *made;
  channel.channel.context = context;
  channel.channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  s.channels[&channel] = std::move(made);
  return &channel.channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (Of(channel).users > 0) Violation("a completion channel is destroyed that has queues");
  close(channel->fd);
  s.channels.erase(&Of(channel));
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int room, void* user, ibv_comp_channel* channel, int) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("create_cq")) return Refuse<ibv_cq>(error);
  if (room < 1 || room > kMaxCompletions) return Refuse<ibv_cq>(EINVAL);
  auto made = std::make_unique<Cq>();
  Cq& queue = *made;
  queue.cq.context = context;
  queue.cq.channel = channel;
  queue.cq.cq_context = user;
  queue.cq.cqe = room;
  queue.room = static_cast<size_t>(room);
  if (channel) ++Of(channel).users;
  s.queues[&queue] = std::move(made);
  return &queue.cq;
}

int ibv_destroy_cq(ibv_cq* queue) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Cq& cq = Of(queue);
  if (cq.users > 0) Violation("a completion queue is destroyed that has queue pairs");
  if (cq.acked != cq.taken)
    Violation("a completion queue is destroyed with events not acknowledged");
  if (queue->channel) {
    Channel& channel = Of(queue->channel);
    --channel.users;
    std::erase(channel.events, &cq);
  }
  s.queues.erase(&cq);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** user) {
  if (!TakeOne(channel->fd)) return -1;
  State& s = TheState();
  const Lock lock(s.mutex);
  Channel& mine = Of(channel);
  if (mine.events.empty()) return -1;  // its queue is gone
  Cq& cq = *mine.events.front();
  mine.events.pop_front();
  ++cq.taken;
  *queue = &cq.cq;
  *user = cq.cq.cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* queue, unsigned count) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Of(queue).acked += count;
}

}  // extern "C"
