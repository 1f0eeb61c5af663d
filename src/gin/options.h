#pragma once

// Holds what the settings say about device-initiated networking.

#include <cstdint>
#include <string>

#include "config/settings.h"

namespace tutti {

struct GinOptions {
  bool direct = false;   // Kernels are to drive cards themselves.
  int64_t query_ns = 0;  // how often these are asked for errors; 0: never
  std::string mlx5_library;

  static GinOptions From(const Settings& settings);
};

}  // namespace tutti
