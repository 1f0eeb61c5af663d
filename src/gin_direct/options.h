#pragma once

// Holds what the settings say about cards that kernels drive.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

struct GinOptions {
  int64_t query_ns = 0;  // how often cards are asked for errors; 0: never
  std::string mlx5_library;
  int64_t nic_handler = 0;  // NCCL_GIN_GDAKI_NIC_HANDLER

  static GinOptions From(const Settings& settings);
  // Fails, with a sentence, where cards are to be told of new entries in a way that is not there.
  Status CheckNicHandler() const;
};

}  // namespace tutti
