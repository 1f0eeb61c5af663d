#pragma once

// The device communicator that kernels are given, in the form of the release that they were
// compiled for.

#include <cstdint>

#include "base/status.h"
#include "devcomm/requirements.h"
#include "nccl_device/comm.h"

namespace tutti {

// Holds what a device communicator is made of.
struct DevCommParts {
  int rank = 0;
  int num_ranks = 1;
  int lsa_size = 1;
  const ResourcePlan* plan = nullptr;
  ncclWindow_t resource_window = nullptr;
  // A copy of the record that `resource_window` points at.
  ncclWindow_vidmem resource_record = {};
  ncclDevCommWindowTable* window_table = nullptr;
  uint32_t* abort_flag = nullptr;
  void* gin_handle = nullptr;  // The contexts of the plan's GIN (gin/backend.h); null without it.
  bool gin_direct = false;     // They are those of a card.
};

// Returns the device communicator in today's form.
ncclDevComm MakeDevComm(const DevCommParts& parts);

// Stores it in the form that a program expects which asked by requirements of this version and
// size, in the list's places too.
void StoreDevComm(const ncclDevComm& made, const ncclDevCommRequirements_t& asked, void* out);
void StoreHandles(const ResourcePlan& plan);

// Returns the resource window of a device communicator of any form that StoreDevComm writes.
ncclWindow_t ResourceWindowOf(const void* devcomm);

}  // namespace tutti
