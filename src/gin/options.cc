#include "gin/options.h"

#include "nccl_device/core.h"

namespace tutti {

GinOptions GinOptions::From(const Settings& settings) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  GinOptions options;
  options.direct = settings.gin_enable && settings.gin_type == NCCL_GIN_TYPE_GDAKI;
  options.query_ns = settings.gin_error_query_s * kSecondNs;
  options.mlx5_library = settings.mlx5_library;
  return options;
}

}  // namespace tutti
