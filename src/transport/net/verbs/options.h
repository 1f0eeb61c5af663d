#pragma once

// Holds the NCCL_IB_* settings for queue pairs and transfers.

#include <cstdint>

#include "config/settings.h"

namespace tutti {

struct VerbsOptions {
  uint8_t timeout = 20;  // The NIC waits 4.096 µs × 2^timeout for an acknowledgement.
  uint8_t retry_count = 7;
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint8_t grant_traffic_class = 0;
  uint8_t one_sided_traffic_class = 0;
  uint16_t pkey_index = 0;
  int queue_pairs = 1;        // queue pairs of a connection; the sending end's setting counts
  bool split = false;         // Each message goes over all queue pairs instead of only one.
  bool inline_data = false;   // Small messages are copied into the request.
  bool send_notices = false;  // Sends announce messages instead of immediate values.
  // On networks with adaptive routing, a separate write carries the immediate value behind messages
  // of more than `separate_above` bytes, because the network may reorder packets.
  bool adaptive_on_ethernet = false;
  bool adaptive_on_infiniband = true;
  uint64_t separate_above = 8192;
  bool relaxed_ordering = true;
  bool fail_on_events = true;
  bool dmabuf = true;       // GPU memory may be registered by DMA-BUF.
  bool gpu_flush = true;    // Data is read back after it has come into GPU memory.
  int host_timeout_s = 10;  // A peer's host that is silent for so long breaks the connection.
  int64_t resume_within_ns = 10'000'000'000;  // how long lost queue pairs are made again; 0: never

  static VerbsOptions From(const Settings& settings);
};

}  // namespace tutti
