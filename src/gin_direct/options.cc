#include "gin_direct/options.h"

#include "nccl_device/impl/mlx5_queue.h"

namespace tutti {

GinOptions GinOptions::From(const Settings& settings) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  GinOptions options;
  options.query_ns = settings.gin_error_query_s * kSecondNs;
  options.mlx5_library = settings.mlx5_library;
  options.nic_handler = settings.gin_nic_handler;
  return options;
}

Status GinOptions::CheckNicHandler() const {
  constexpr const char* kWays[] = {nullptr,
                                   "a thread of the host that rings",
                                   nullptr,
                                   "BlueFlame",
                                   "doorbells without doorbell records",
                                   "a thread of the host that rings, without doorbell records"};
  static_assert(device::mlx5::kRungByKernels == 2, "the way that is there");
  const char* const way = kWays[nic_handler];
  if (way == nullptr) return Status::Ok();
  return InvalidArgument(
      "NCCL_GIN_GDAKI_NIC_HANDLER={} asks for {}, and here kernels tell a card of new entries by "
      "doorbell records and doorbells alone (2, or 0 for automatic)",
      nic_handler, way);
}

}  // namespace tutti
