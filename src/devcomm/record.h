#pragma once

// The device communicator that kernels get, in the form of the release whose headers the program
// was compiled with.

#include <cstdint>

#include "base/status.h"
#include "devcomm/requirements.h"
#include "nccl_device/comm.h"

namespace tutti {

// Holds the parts of a device communicator.
struct DevCommParts {
  int rank = 0;
  int num_ranks = 1;
  int lsa_size = 1;
  const ResourcePlan* plan = nullptr;
  ncclWindow_t resource_window = nullptr;
  // A copy of the record behind `resource_window`.
  ncclWindow_vidmem resource_record = {};
  ncclDevCommWindowTable* window_table = nullptr;
  uint32_t* abort_flag = nullptr;
  void* gin_handle = nullptr;  // the contexts of the plan's GIN (gin/backend.h); null without GIN
  bool gin_direct = false;     // the contexts are those of a card
};

// Returns the device communicator in today's form.
ncclDevComm MakeDevComm(const DevCommParts& parts);

// Stores a device communicator in the form for requirements of this version and size; also stores
// handles in the places of the list.
void StoreDevComm(const ncclDevComm& made, const ncclDevCommRequirements_t& asked, void* out);
void StoreHandles(const ResourcePlan& plan);

// Returns the resource window of a device communicator in any form of StoreDevComm.
ncclWindow_t ResourceWindowOf(const void* devcomm);

}  // namespace tutti
