#pragma once

// Holds what the NCCL_IB_* settings say about queue pairs and transfers.

#include <cstdint>

#include "config/settings.h"

namespace tutti {

struct VerbsOptions {
  uint8_t timeout = 20;  // an acknowledgement is waited for 4.096 µs × 2^timeout
  uint8_t retry_count = 7;
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint8_t grant_traffic_class = 0;
  uint8_t one_sided_traffic_class = 0;
  uint16_t pkey_index = 0;
  int queue_pairs = 1;        // A connection has so many; the sending end's word counts.
  bool split = false;         // Each message goes over all queue pairs, else over one of them.
  bool inline_data = false;   // small messages are copied into the request
  bool send_notices = false;  // Sends tell of messages instead of immediate values.
  // On networks with adaptive routing, messages longer than `separate_above` bytes are followed by
  // a write of their own that carries the immediate value, because packets may be reordered.
  bool adaptive_on_ethernet = false;
  bool adaptive_on_infiniband = true;
  uint64_t separate_above = 8192;
  bool relaxed_ordering = true;
  bool fail_on_events = true;
  bool dmabuf = true;                         // GPU memory may be registered by DMA-BUF
  bool gpu_flush = true;                      // GPU memory is read back after data has come into it
  int64_t resume_within_ns = 10'000'000'000;  // how long lost queue pairs are made again; 0: never

  static VerbsOptions From(const Settings& settings);
};

}  // namespace tutti
