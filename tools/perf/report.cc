#include "perf/report.h"

#include <cmath>

namespace tutti::tools {
namespace {

// Keeps about four digits in seven columns, whatever the magnitude.
std::string TimeText(double time_us) {
  if (time_us < 10) return fmt::format("{:.3f}", time_us);
  if (time_us < 100) return fmt::format("{:.2f}", time_us);
  if (time_us < 1000) return fmt::format("{:.1f}", time_us);
  return fmt::format("{:.0f}", time_us);
}

std::string BandwidthText(double gbps) {
  return gbps < 100 ? fmt::format("{:.2f}", gbps) : fmt::format("{:.1f}", gbps);
}

// Bytes per microsecond are megabytes per second; a thousandth is gigabytes.
double Bandwidth(size_t bytes, double time_us) {
  return time_us > 0 ? static_cast<double>(bytes) / time_us / 1e3 : 0;
}

Json SampleJson(const Sample& sample) {
  Json json = {{"time_us", sample.time_us},
               {"algbw_gbps", sample.algbw_gbps},
               {"busbw_gbps", sample.busbw_gbps}};
  json["wrong"] = sample.wrong ? Json(*sample.wrong) : Json(nullptr);
  return json;
}

}  // namespace

Sample MakeSample(double time_us, const CollectiveInfo& info, const Shape& shape, int num_ranks) {
  const double algbw = Bandwidth(shape.bytes, time_us);
  return {time_us, algbw, algbw * BusFactor(info.collective, num_ranks), std::nullopt};
}

Report::Report(const PerfOptions& options, const CollectiveInfo& collective,
               std::vector<std::string> libraries, std::FILE* out)
    : options_(options), collective_(collective), libraries_(std::move(libraries)), out_(out) {}

void Report::PrintHeader() const {
  const bool compare = libraries_.size() > 1;
  const int half = compare ? 50 : 33;
  fmt::print(out_, "#{:>11}{:>13}{:>12}{:>8}{:>6}{}  {:^{}}  {:^{}}\n", "", "", "", "", "",
             PredictionCell(""), "out of place", half, "in place", half);
  const std::string columns =
      compare ? fmt::format("{:>9}{:>8}{:>8}{:>8}{:>10}{:>7}", "time", "algbw", "busbw", "#wrong",
                            "against", "ratio")
              : fmt::format("{:>9}{:>8}{:>8}{:>8}", "time", "algbw", "busbw", "#wrong");
  const std::string units =
      compare ? fmt::format("{:>9}{:>8}{:>8}{:>8}{:>10}{:>7}", "(us)", "(GB/s)", "(GB/s)", "",
                            "(us)", "")
              : fmt::format("{:>9}{:>8}{:>8}{:>8}", "(us)", "(GB/s)", "(GB/s)", "");
  fmt::print(out_, "#{:>11}{:>13}{:>12}{:>8}{:>6}{}  {}  {}\n", "size", "count", "type", "redop",
             "root", PredictionCell("predicted"), columns, columns);
  fmt::print(out_, "#{:>11}{:>13}{:>12}{:>8}{:>6}{}  {}  {}\n", "(B)", "(elements)", "", "", "",
             PredictionCell("(us)"), units, units);
  std::fflush(out_);
}

std::string Report::PredictionCell(std::string_view text) const {
  return options_.predict ? fmt::format("{:>11}", text) : std::string();
}

void Report::PrintHalf(const std::vector<const Sample*>& samples) const {
  const Sample* mine = samples.front();
  if (!mine) {
    fmt::print(out_, "  {:>9}{:>8}{:>8}{:>8}", "N/A", "N/A", "N/A", "N/A");
  } else {
    fmt::print(out_, "  {:>9}{:>8}{:>8}{:>8}", TimeText(mine->time_us),
               BandwidthText(mine->algbw_gbps), BandwidthText(mine->busbw_gbps),
               mine->wrong ? std::to_string(*mine->wrong) : "N/A");
  }
  if (samples.size() < 2) return;
  const Sample* other = samples[1];
  if (!mine || !other) {
    fmt::print(out_, "{:>10}{:>7}", "N/A", "N/A");
  } else {
    fmt::print(out_, "{:>10}{:>7.2f}", TimeText(other->time_us), other->time_us / mine->time_us);
  }
}

void Report::Add(const Row& row) {
  fmt::print(out_, " {:>11}{:>13}{:>12}{:>8}{:>6}{}", row.shape.bytes, row.shape.count,
             TypeName(row.type), Name(row.reduction), row.root,
             PredictionCell(row.predicted_us ? TimeText(*row.predicted_us) : "N/A"));
  std::vector<const Sample*> out_of_place;
  std::vector<const Sample*> in_place;
  for (size_t i = 0; i < libraries_.size(); ++i) {
    out_of_place.push_back(&row.out_of_place[i]);
    in_place.push_back(row.in_place[i] ? &*row.in_place[i] : nullptr);
    Json json = {{"collective", collective_.name},
                 {"library", libraries_[i]},
                 {"ranks", options_.num_ranks},
                 {"net", options_.net},
                 {"bytes", row.shape.bytes},
                 {"count", row.shape.count},
                 {"type", TypeName(row.type)},
                 {"op", Name(row.reduction)},
                 {"out_of_place", SampleJson(row.out_of_place[i])},
                 {"in_place", row.in_place[i] ? SampleJson(*row.in_place[i]) : Json(nullptr)}};
    // Without the root, rows of several roots could not be told apart.
    if (options_.roots.size() > 1 && collective_.rooted) json["root"] = row.root;
    if (options_.predict && i == 0)
      json["predicted_us"] = row.predicted_us ? Json(*row.predicted_us) : Json(nullptr);
    rows_.push_back(std::move(json));
  }
  for (const auto* half : {&out_of_place, &in_place}) {
    PrintHalf(*half);
    for (const Sample* sample : *half) total_wrong_ += sample && sample->wrong ? *sample->wrong : 0;
    if (const Sample* mine = half->front()) {
      busbw_sum_ += mine->busbw_gbps;
      ++num_samples_;
      if (half->size() > 1 && (*half)[1] && mine->time_us > 0) {
        log_ratio_sum_ += std::log((*half)[1]->time_us / mine->time_us);
        ++num_ratios_;
      }
    }
  }
  fmt::print(out_, "\n");
  std::fflush(out_);
}

void Report::PrintFooter() const {
  if (options_.check)
    fmt::print(out_, "# Wrong elements: {} {}\n", total_wrong_, total_wrong_ ? "FAILED" : "OK");
  if (num_samples_ > 0) {
    fmt::print(out_, "# Average bus bandwidth: {:.4g} GB/s\n",
               busbw_sum_ / static_cast<double>(num_samples_));
  }
  if (num_ratios_ > 0) {
    fmt::print(out_, "# Geometric mean of the ratios (above 1: faster than the other): {:.3f}\n",
               std::exp(log_ratio_sum_ / static_cast<double>(num_ratios_)));
  }
  std::fflush(out_);
}

}  // namespace tutti::tools
