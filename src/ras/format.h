#pragma once

// The answers of RAS in NCCL's two forms. The names, the order and the layout are those of NCCL
// 2.28 to 2.30, because programs parse them (docs/ras.md). Pure functions.

#include <cstdint>
#include <string>

#include "ras/report.h"

namespace tutti::ras {

// What an answer says besides the report.
struct Frame {
  int cuda_driver_version = -1;  // as cuDriverGetVersion tells; -1: there are no GPUs
  std::string time;              // such as "2026-11-30 13:07:07", in local time
  double seconds = 0;            // how long the collection took
  int num_timeouts = 0;          // processes that have not answered in time
};

// Returns the time of an answer, now.
std::string TimeNow();

std::string ToJson(const Report& report, const Frame& frame);
// `verbose` lists the ranks of larger groups.
std::string ToText(const Report& report, const Frame& frame, bool verbose);

// Returns an event for clients that monitor. `event` is "PEER_NEW" or "PEER_DEAD".
std::string EventText(const Report& report, const ProcessName& process, std::string_view event,
                      std::string_view time, bool as_json);

}  // namespace tutti::ras
