#include "comm/device_communicators.h"

#include <memory>

#include "comm/communicator.h"
#include "devcomm/record.h"

namespace tutti {

Result<ResourcePlan> DeviceCommunicators::Plan(
    const Result<ncclDevCommRequirements_t>& requirements) const {
  if (!requirements.ok()) return requirements.status();
  if (!comm_.symmetric().has_flat_space())
    return InvalidUsage("kernels of {} do not reach the memory of other ranks",
                        comm_.operations().RankKind());
  return PlanResources(requirements.value(), {comm_.num_ranks(), comm_.symmetric().team().size});
}

Result<ncclDevComm> DeviceCommunicators::Create(
    const Result<ncclDevCommRequirements_t>& requirements) {
  const Result<ResourcePlan> plan = Plan(requirements);
  SymmetricMemory::Request request;
  if (plan.ok()) {
    request.bytes = plan.value().bytes;
    request.alike = plan.value().digest;
  } else {
    request.wrong = plan.status();
  }
  TUTTI_ASSIGN(const std::shared_ptr<const Window> window, comm_.RegisterWindow(request));
  StoreHandles(plan.value());
  {
    const MutexLock lock(mutex_);
    resource_windows_.insert(window->handle);
  }
  return MakeDevComm({.rank = comm_.rank(),
                      .num_ranks = comm_.num_ranks(),
                      .lsa_size = comm_.symmetric().team().size,
                      .plan = &plan.value(),
                      .resource_window = window->handle,
                      .resource_record = comm_.symmetric().RecordOf(*window),
                      .window_table = comm_.symmetric().table(),
                      .abort_flag = reinterpret_cast<uint32_t*>(&aborted_)});
}

Status DeviceCommunicators::Destroy(const void* devcomm) {
  const ncclWindow_t window = ResourceWindowOf(devcomm);
  {
    const MutexLock lock(mutex_);
    if (resource_windows_.erase(window) == 0)
      return InvalidArgument("the device communicator is none of this communicator");
  }
  return comm_.DeregisterWindow(window);
}

}  // namespace tutti
