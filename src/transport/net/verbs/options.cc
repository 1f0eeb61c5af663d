#include "transport/net/verbs/options.h"

namespace tutti {

// The settings have been checked when they were read, so that all values fit.
VerbsOptions VerbsOptions::From(const Settings& settings) {
  VerbsOptions options;
  options.timeout = static_cast<uint8_t>(settings.ib_timeout);
  options.retry_count = static_cast<uint8_t>(settings.ib_retry_count);
  options.service_level = static_cast<uint8_t>(settings.ib_sl);
  options.traffic_class = static_cast<uint8_t>(settings.ib_tc);
  options.grant_traffic_class =
      settings.ib_fifo_tc < 0 ? options.traffic_class : static_cast<uint8_t>(settings.ib_fifo_tc);
  options.one_sided_traffic_class =
      settings.gin_ib_tc < 0 ? options.traffic_class : static_cast<uint8_t>(settings.gin_ib_tc);
  options.pkey_index = static_cast<uint16_t>(settings.ib_pkey);
  options.queue_pairs = static_cast<int>(settings.ib_qps);
  options.split = settings.ib_split_data;
  options.inline_data = settings.ib_use_inline;
  options.send_notices = settings.ib_send_notices;
  options.adaptive_on_ethernet = settings.ib_adaptive_routing == "1";
  options.adaptive_on_infiniband = settings.ib_adaptive_routing != "0";
  options.separate_above = static_cast<uint64_t>(settings.ib_ar_threshold);
  options.relaxed_ordering = settings.ib_relaxed_ordering != 0;
  options.fail_on_events = settings.ib_return_async_events;
  options.dmabuf = settings.dmabuf;
  options.gpu_flush = !settings.gdr_flush_disable;
  options.host_timeout_s = static_cast<int>(settings.host_timeout_s);
  options.resume_within_ns = settings.resume_timeout_s * 1'000'000'000;
  return options;
}

}  // namespace tutti
