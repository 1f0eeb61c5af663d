#pragma once

// Conversion between a tensor's own elements and the elements that are reduced: type and scale
// change on the way into the fusion buffer and out of the buffer. Pure functions; any thread.

#include <cstddef>

#include "coordinator/request.h"

namespace tutti::coordinator {

// Returns the type as which the tensor of `request` is reduced.
ncclDataType_t WireType(const Request& request);

// Returns whether the user's buffers can be reduced as they are.
bool NeedsStaging(const Request& request);

// wire[i] = input[i] × prescale, in the wire's type. Floats of up to 32 bits are scaled in float32
// by the factor rounded to float32, as Horovod does; all others in float64, and integers then
// truncated. `input` may be `wire` where the types are equally wide.
void StageIn(const Request& request, const void* input, void* wire, size_t count);
// output[i] = wire[i] × postscale, in the tensor's type.
void StageOut(const Request& request, const void* wire, void* output, size_t count);

// Returns the operator of nccl.h for the wire, by `request`'s operator. A bool's sum is "or"; its
// average, which truncates, and its product are "and". REQUIRES: not Adasum.
ncclRedOp_t WireOp(const Request& request);

// Fills `count` elements of the wire with the operator's neutral element.
void FillNeutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count);

}  // namespace tutti::coordinator
