#pragma once

// What the boards say, in Prometheus's text format (version 0.0.4). No metric has exactly the
// meaning of a metric of NCCL Inspector's exporter, and all names begin with "tutti_". Pure
// functions.

#include <span>
#include <string>
#include <string_view>

#include "observe/readings.h"

namespace tutti::tools {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

struct Metric {
  std::string_view name;
  std::string_view type;  // "counter" or "gauge"
  std::string_view help;
};

// Returns all metrics that MetricsText may have.
std::span<const Metric> AllMetrics();

// Returns the metrics of all jobs that live. `slurm_job_id` is a label; empty: unknown.
std::string MetricsText(const Jobs& jobs, std::string_view slurm_job_id);

}  // namespace tutti::tools
