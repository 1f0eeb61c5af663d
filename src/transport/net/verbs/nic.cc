#include "transport/net/verbs/nic.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>

#include "base/log.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// Returns the port that an event is about, or 0.
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

}  // namespace

Result<std::shared_ptr<VerbsNic>> VerbsNic::Create(EventLoop& loop,
                                                   std::shared_ptr<VerbsDevice> device,
                                                   const VerbsOptions& options) {
  errno = 0;
  ibv_pd* const domain = device->library().alloc_pd(&device->context());
  if (!domain) {
    return DescribeRefusal(errno, "allocating a protection domain failed", device->name());
  }
  std::shared_ptr<VerbsNic> nic(new VerbsNic(loop, std::move(device), *domain, options));
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

Status VerbsNic::fault() const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return Status::Ok();
  const MutexLock lock(mutex_);
  return fault_;
}

void VerbsNic::TakeEvents() {
  ibv_async_event event = {};
  while (library().get_async_event(&device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    std::string sentence = DescribeEvent(library(), type, device_->name(), PortOf(event));
    // The event must be acknowledged before what it is about can be destroyed.
    library().ack_async_event(&event);
    TUTTI_INFO(kLogNet, "net IB: {}", sentence);
    if (!IsFatal(type)) continue;
    TUTTI_WARN("net IB: {}", sentence);
    if (!options_.fail_on_events) continue;
    {
      const MutexLock lock(mutex_);
      if (fault_.ok()) {
        fault_ =
            SystemError("{}; the device reported it, and the kernel's log may tell why", sentence);
      }
    }
    failed_.store(true, std::memory_order_release);
  }
}

}  // namespace tutti
