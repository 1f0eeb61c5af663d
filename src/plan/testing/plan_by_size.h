#pragma once

// Makes plans for tests from the size of an element, whatever its type.

#include "plan/plan.h"

namespace tutti {

inline DataType TypeOfSize(size_t elem_bytes) {
  return elem_bytes == 1   ? DataType::kUint8
         : elem_bytes == 2 ? DataType::kFloat16
         : elem_bytes == 4 ? DataType::kFloat32
                           : DataType::kFloat64;
}

inline Plan PlanFor(const PlanContext& context, Collective collective, size_t count,
                    size_t elem_bytes, ReductionOrder order = ReductionOrder::kAny,
                    Buffers buffers = Buffers::kOwn) {
  return MakePlan(context, {.collective = collective,
                            .count = count,
                            .type = TypeOfSize(elem_bytes),
                            .order = order,
                            .buffers = buffers});
}

}  // namespace tutti
