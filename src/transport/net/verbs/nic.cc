#include "transport/net/verbs/nic.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>

#include "base/log.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// Returns the port of an event, or 0 for events of queue pairs and of the whole device.
int PortOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      return event.element.port_num;
    default:
      return 0;
  }
}

// Returns the queue pair of an event, or null.
const ibv_qp* PairOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return event.element.qp;
    default:
      return nullptr;
  }
}

}  // namespace

Result<std::shared_ptr<VerbsNic>> VerbsNic::Create(EventLoop& loop,
                                                   std::shared_ptr<VerbsDevice> device,
                                                   const VerbsOptions& options,
                                                   const std::string& sysfs) {
  errno = 0;
  ibv_pd* const domain = device->library().alloc_pd(&device->context());
  if (!domain) {
    return DescribeRefusal(errno, "allocating a protection domain failed", device->name());
  }
  std::shared_ptr<VerbsNic> nic(new VerbsNic(loop, std::move(device), *domain, options));
  nic->gpu_memory_ = FindGpuMemoryAccess(nic->library(), *domain, options.dmabuf, sysfs);
  const int events = nic->device_->context().async_fd;
  const int flags = fcntl(events, F_GETFL);
  if (flags < 0 || fcntl(events, F_SETFL, flags | O_NONBLOCK) != 0) {
    return DescribeRefusal(errno, "its events cannot be read", nic->device_->name());
  }
  TUTTI_TRY(loop.AddFd(events, EPOLLIN, [raw = nic.get()](uint32_t) { raw->TakeEvents(); }));
  nic->watched_ = true;
  return nic;
}

VerbsNic::VerbsNic(EventLoop& loop, std::shared_ptr<VerbsDevice> device, ibv_pd& domain,
                   const VerbsOptions& options)
    : loop_(loop),
      device_(std::move(device)),
      domain_(domain),
      options_(options),
      memory_(device_, domain, options.relaxed_ordering) {}

VerbsNic::~VerbsNic() {
  if (watched_) loop_.RemoveFd(device_->context().async_fd);
  library().dealloc_pd(&domain_);
}

// GPU memory is registered by a DMA-BUF, or by its address where the kernel has a module of peer
// memory. Without both the device cannot reach GPU memory.
Result<HeldRegistration> VerbsNic::Hold(const NetRegion& region, MemoryUse use) {
  if (region.dmabuf_fd >= 0 && !gpu_memory_.dmabuf) {
    return InvalidUsage("{} does not take DMA-BUFs, or NCCL_DMABUF_ENABLE=0 keeps it from them",
                        device_->name());
  }
  if (region.kind == NetMemoryKind::kGpu && region.dmabuf_fd < 0 && !gpu_memory_.peer_memory) {
    return InvalidUsage(
        "{} takes no GPU memory by address, for which the kernel's module nvidia_peermem is needed",
        device_->name());
  }
  return memory_.Get(region, use);
}

bool VerbsNic::IsActive(const VerbsPort& port) const {
  ibv_port_attr attributes = {};
  return library().query_port(&device_->context(), port.number, &attributes) == 0 &&
         attributes.state == IBV_PORT_ACTIVE;
}

Status VerbsNic::fault() const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return Status::Ok();
  const MutexLock lock(mutex_);
  return fault_;
}

Status VerbsNic::PairFault(uint32_t number) const {
  const MutexLock lock(mutex_);
  const auto found = pair_faults_.find(number);
  return found == pair_faults_.end() ? Status::Ok() : found->second;
}

void VerbsNic::ForgetPair(uint32_t number) {
  const MutexLock lock(mutex_);
  pair_faults_.erase(number);
}

// Runs on the loop's thread whenever the device reports an event.
void VerbsNic::TakeEvents() {
  ibv_async_event event = {};
  while (library().get_async_event(&device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const std::string sentence = DescribeEvent(library(), type, device_->name(), PortOf(event));
    if (IsFatal(type) && options_.fail_on_events) Keep(event, sentence);
    if (type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR)
      port_changes_.fetch_add(1, std::memory_order_release);
    // Destroying the object of an event waits for the acknowledgement. After the acknowledgement
    // the queue pair of the event may be gone, and a new queue pair may have its number.
    library().ack_async_event(&event);
    TUTTI_INFO(kLogNet, "net IB: {}", sentence);
    if (IsFatal(type)) TUTTI_WARN("net IB: {}", sentence);
  }
}

// Keeps a failure for the connection of the event's queue pair, or for all connections of the
// device.
void VerbsNic::Keep(const ibv_async_event& event, const std::string& sentence) {
  Status fault =
      SystemError("{}; the device reported it, and the kernel's log may tell why", sentence);
  const MutexLock lock(mutex_);
  if (const ibv_qp* const pair = PairOf(event)) {
    if (event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
      fault = RemoteError("{}: the other end reached for memory that it was not given", sentence);
    }
    pair_faults_.emplace(pair->qp_num, std::move(fault));
    pair_failed_.store(true, std::memory_order_release);
    return;
  }
  if (fault_.ok()) fault_ = std::move(fault);
  failed_.store(true, std::memory_order_release);
}

}  // namespace tutti
