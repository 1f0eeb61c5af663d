#pragma once

// Holds the settings of cards that kernels drive.

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
  // Fails, with a sentence, if the settings ask for an unsupported way to tell cards of new
  // entries.
  Status CheckNicHandler() const;
};

}  // namespace tutti
