#pragma once

// The structures shared by the proxy of a GPU and kernels that were compiled with NVIDIA's headers
// of releases before 2.30. Contexts and queues work as today's (nccl_device/impl/gin_descriptor.h),
// but descriptors are half as long, and contexts have fewer fields:
//
//   word  bits
//   0     1..6 what to do (the first six of GinOp), 7..63 bytes
//   1..4  as today's
//   5     of 2.29.4 and later as today's; before: 8..23 counter, 24..39 signal, 40..55 bits 0..15
//         of what is added to the signal
//   6     as today's without the strength: signals are strong
//   7     spare
//
// Until 2.29.4 each connection had one context. The library therefore presents its contexts to such
// kernels as connections. Bit 0 of each word is set, as today. All bits without a name here have
// any value.

#include <cstdint>

#include "devcomm/gin_plan.h"
#include "nccl_device/impl/gin_descriptor.h"

namespace tutti {

struct GinContextBefore230 {
  int nranks;
  uint32_t queue_size;
  void* queues;
  uint32_t* producers;
  uint32_t* consumers;
  uint64_t* counters;
  uint64_t* signals;
};
static_assert(sizeof(GinContextBefore230) == 48, "part of the binary interface");

// Returns the length of a descriptor.
constexpr size_t GinDescriptorBytes(GinForm form) {
  return form == GinForm::kToday ? sizeof(device::GinDescriptor) : 64;
}

// Unpacks a descriptor of an older form.
inline device::GinOperation UnpackGinBefore230(GinForm form, const uint64_t* w) {
  device::GinOperation o = device::UnpackGin(w);
  o.op = static_cast<uint32_t>(w[0] >> 1 & 0x3f);
  o.strong = true;
  if (form == GinForm::kBefore2294) {
    o.counter = static_cast<uint32_t>(w[5] >> 8 & 0xffff);
    o.signal = static_cast<uint32_t>(w[5] >> 24 & 0xffff);
    o.added = (o.added & ~uint64_t{0xffff}) | (w[5] >> 40 & 0xffff);
  }
  // An increment has no value in these forms, and the value 1 in today's form.
  if ((o.op & device::kGinSignalInc) != 0) o.added = 1;
  return o;
}

}  // namespace tutti
