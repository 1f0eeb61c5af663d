#pragma once

// The record of a proxy's context in the form of a card's (nccl_device/impl/gin_gdaki_context.h).

#include "nccl_device/impl/gin_descriptor.h"
#include "nccl_device/impl/gin_gdaki_context.h"

namespace tutti {

// Returns the record of a context, by which programs find the words of signals and counters.
inline ncclGinGdakiGPUContext RecordOf(const device::GinContext& context) {
  ncclGinGdakiGPUContext record = {};
  record.counters_table.buffer = context.counters;
  record.signals_table.buffer = context.signals;
  return record;
}

}  // namespace tutti
