#pragma once

// Writes the results of a measurement as a table while it runs, and as JSON.

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/channel.h"
#include "perf/options.h"

namespace tutti::tools {

// Holds one library's result for one size, in place or out of place.
struct Sample {
  double time_us = 0;
  double algbw_gbps = 0;  // 1e9 bytes per second
  double busbw_gbps = 0;
  std::optional<size_t> wrong;  // empty where results were not checked
};

struct Row {
  Shape shape;
  ncclDataType_t type = ncclFloat32;
  Reduction reduction = Reduction::kNone;
  int root = -1;  // -1 for an operation without a root
  // Results per library: the measured library, and the library to compare with, if any. An
  // operation may have no in-place form.
  std::vector<Sample> out_of_place;
  std::vector<std::optional<Sample>> in_place;
  // The measured library's prediction of the time. Empty where no prediction was asked for or the
  // library makes none.
  std::optional<double> predicted_us;
};

Sample MakeSample(double time_us, const CollectiveInfo& info, const Shape& shape, int num_ranks);

class Report {
 public:
  // Writes the table of one collective. `libraries` has one or two names, as they are written into
  // the JSON. `out` must outlive the Report.
  Report(const PerfOptions& options, const CollectiveInfo& collective,
         std::vector<std::string> libraries, std::FILE* out);

  void PrintHeader() const;
  void Add(const Row& row);
  void PrintFooter() const;

  size_t total_wrong() const { return total_wrong_; }
  const Json& rows() const { return rows_; }

 private:
  // Writes the column of predictions, where the table has one.
  std::string PredictionCell(std::string_view text) const;
  void PrintHalf(const std::vector<const Sample*>& samples) const;

  const PerfOptions& options_;
  const CollectiveInfo collective_;
  const std::vector<std::string> libraries_;
  std::FILE* const out_;
  Json rows_ = Json::array();
  size_t total_wrong_ = 0;
  double busbw_sum_ = 0;
  size_t num_samples_ = 0;
  double log_ratio_sum_ = 0;
  size_t num_ratios_ = 0;
};

}  // namespace tutti::tools
