#pragma once

// The bounds that settings set to the thread blocks of operations on GPUs. A channel has one block,
// as in NCCL, so that settings of channels and of blocks bound the same number.

#include <algorithm>
#include <cstdint>

#include "config/settings.h"

namespace tutti {

struct BlockBounds {
  int64_t fewest = 1;
  int64_t most = 0;  // 0: no bound
};

// Returns the higher minimum and the lower maximum of NCCL_MIN_NCHANNELS, NCCL_MIN_CTAS,
// NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS. A minimum above the maximum yields the maximum, as in NCCL.
inline BlockBounds BlockBoundsOf(const Settings& settings) {
  BlockBounds bounds;
  bounds.fewest = std::max<int64_t>({1, settings.min_nchannels, settings.min_ctas});
  bounds.most = std::max(settings.max_nchannels, settings.max_ctas);
  if (settings.max_nchannels > 0 && settings.max_ctas > 0)
    bounds.most = std::min(settings.max_nchannels, settings.max_ctas);
  if (bounds.most > 0) bounds.fewest = std::min(bounds.fewest, bounds.most);
  return bounds;
}

}  // namespace tutti
