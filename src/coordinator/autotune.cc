#include "coordinator/autotune.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "base/file.h"
#include "base/log.h"

namespace tutti::coordinator {
namespace {

// The distance up to which points of the unit square tell of one another. Throughput is smooth in
// the logarithm of both parameters.
constexpr double kLengthScale = 0.3;
// Exploration: improvements below this share of the spread of values are not worth a sample.
constexpr double kWorthwhile = 0.01;
// Candidates on a side of the square: finer steps than a tenth of an octave do not matter.
constexpr int kGrid = 41;

// A step ends where a name comes again, or after this number of names, which is more than models
// have tensors: names of operations without a name never come again.
constexpr size_t kLongestStep = 4096;

constexpr double kMinThresholdLog2 = 20;  // 1 MiB
constexpr double kMaxThresholdLog2 = 28;  // 256 MiB; the default is 128 MiB
constexpr double kMinWindowLog2 = 14;     // 16 us
constexpr double kMaxWindowLog2 = 24;     // 17 ms; the default is 1 ms

using Point = GaussianProcess::Point;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double Kernel(const Point& a, const Point& b) {
  const double dx = a.x - b.x;
  const double dy = a.y - b.y;
  return std::exp(-(dx * dx + dy * dy) / (2 * kLengthScale * kLengthScale));
}

}  // namespace

GaussianProcess::GaussianProcess(std::vector<Point> points, const std::vector<double>& values,
                                 double noise)
    : points_(std::move(points)) {
  const auto n = static_cast<Eigen::Index>(points_.size());
  mean_ = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n);
  double square = 0;
  for (const double value : values) square += (value - mean_) * (value - mean_);
  scale_ = std::max(std::sqrt(square / static_cast<double>(n)), 1e-12);
  best_ = (*std::max_element(values.begin(), values.end()) - mean_) / scale_;
  RowMatrix covariance(n, n);
  Eigen::VectorXd normalised(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    normalised(i) = (values[static_cast<size_t>(i)] - mean_) / scale_;
    for (Eigen::Index j = 0; j < n; ++j) {
      covariance(i, j) = Kernel(points_[static_cast<size_t>(i)], points_[static_cast<size_t>(j)]);
    }
    covariance(i, i) += noise + 1e-9;
  }
  const Eigen::LLT<RowMatrix> cholesky(covariance);
  const Eigen::VectorXd weights = cholesky.solve(normalised);
  const RowMatrix lower = cholesky.matrixL();
  weights_.assign(weights.data(), weights.data() + n);
  factor_.assign(lower.data(), lower.data() + n * n);
}

GaussianProcess::Prediction GaussianProcess::Predict(const Point& point) const {
  const auto n = static_cast<Eigen::Index>(points_.size());
  Eigen::VectorXd covariance(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    covariance(i) = Kernel(points_[static_cast<size_t>(i)], point);
  }
  const Eigen::Map<const Eigen::VectorXd> weights(weights_.data(), n);
  const Eigen::Map<const RowMatrix> lower(factor_.data(), n, n);
  const Eigen::VectorXd v = lower.triangularView<Eigen::Lower>().solve(covariance);
  const double variance = std::max(1 - v.squaredNorm(), 0.0);
  return {mean_ + scale_ * covariance.dot(weights), scale_ * std::sqrt(variance)};
}

double GaussianProcess::ExpectedImprovement(const Point& point) const {
  const Prediction prediction = Predict(point);
  const double deviation = prediction.deviation / scale_;
  if (deviation < 1e-9) return 0;
  const double ahead = (prediction.mean - mean_) / scale_ - best_ - kWorthwhile;
  const double z = ahead / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  const double below = std::erfc(-z / std::numbers::sqrt2) / 2;
  return ahead * below + deviation * density;
}

Autotune::Autotune(const Options& options, const Tuning& initial)
    : options_(options), trying_(initial), best_(initial), warmup_left_(options.warmup_samples) {
  if (!options_.log_path.empty()) {
    log_ = OpenToWrite(options_.log_path, O_WRONLY | O_TRUNC);
    if (!log_.valid())
      TUTTI_WARN("the log of the autotuning, {}, cannot be written: {}", options_.log_path,
                 strerrordesc_np(errno));
    WriteLog(
        "fusion_threshold_bytes,window_us,hierarchical_allreduce,hierarchical_allgather,cache,"
        "bytes_per_us\n");
  }
}

Point Autotune::ToPoint(const Tuning& tuning) {
  const double threshold =
      std::log2(static_cast<double>(std::max<int64_t>(tuning.fusion_threshold, 1)));
  const double window = std::log2(static_cast<double>(std::max<int64_t>(tuning.window_ns, 1)));
  return {std::clamp((threshold - kMinThresholdLog2) / (kMaxThresholdLog2 - kMinThresholdLog2), 0.0,
                     1.0),
          std::clamp((window - kMinWindowLog2) / (kMaxWindowLog2 - kMinWindowLog2), 0.0, 1.0)};
}

Tuning Autotune::FromPoint(const Point& point, const Tuning& rest) {
  Tuning tuning = rest;
  tuning.fusion_threshold = static_cast<int64_t>(
      std::exp2(kMinThresholdLog2 + point.x * (kMaxThresholdLog2 - kMinThresholdLog2)));
  tuning.window_ns =
      static_cast<int64_t>(std::exp2(kMinWindowLog2 + point.y * (kMaxWindowLog2 - kMinWindowLog2)));
  return tuning;
}

void Autotune::Moved(const std::string& name, int64_t bytes, int64_t now_ns) {
  if (done()) return;
  if (!seen_.insert(name).second || seen_.size() > kLongestStep) {
    seen_ = {name};
    if (++steps_ >= options_.steps_per_sample && now_ns > sample_begin_ns_) {
      EndSample(static_cast<double>(sample_bytes_) * 1e3 /
                static_cast<double>(now_ns - sample_begin_ns_));
      sample_begin_ns_ = now_ns;
      sample_bytes_ = 0;
      steps_ = 0;
    }
  }
  if (sample_begin_ns_ == 0) sample_begin_ns_ = now_ns;
  sample_bytes_ += bytes;
}

std::optional<Tuning> Autotune::TakeNext(const Tuning& current) {
  if (!changed_) return std::nullopt;
  changed_ = false;
  // The next measurement begins with the first step under the new setting.
  seen_.clear();
  steps_ = 0;
  sample_bytes_ = 0;
  sample_begin_ns_ = 0;
  if (trying_ == current) return std::nullopt;
  return trying_;
}

void Autotune::EndSample(double score) {
  if (warmup_left_ > 0) {
    --warmup_left_;
    return;
  }
  Log(score);
  if (phase_ == Phase::kNumbers) {
    points_.push_back(ToPoint(trying_));
    scores_.push_back(score);
  }
  if (score > best_score_) {
    best_score_ = score;
    best_ = trying_;
  }
  Advance();
  changed_ = true;
}

void Autotune::Advance() {
  if (phase_ == Phase::kNumbers && static_cast<int>(scores_.size()) < options_.max_samples) {
    trying_ = NextNumbers();
    return;
  }
  phase_ = NextPhase();
  trying_ = best_;
  if (phase_ == Phase::kAllreduce) trying_.hierarchical_allreduce = !best_.hierarchical_allreduce;
  if (phase_ == Phase::kAllgather) trying_.hierarchical_allgather = !best_.hierarchical_allgather;
  if (phase_ == Phase::kCache) trying_.cache = !best_.cache;
}

Autotune::Phase Autotune::NextPhase() const {
  if (phase_ < Phase::kAllreduce && options_.try_hierarchical_allreduce) return Phase::kAllreduce;
  if (phase_ < Phase::kAllgather && options_.try_hierarchical_allgather) return Phase::kAllgather;
  return phase_ < Phase::kCache ? Phase::kCache : Phase::kDone;
}

Tuning Autotune::NextNumbers() const {
  // Two corners give the process something to interpolate between.
  if (scores_.size() == 1) return FromPoint({0.25, 0.25}, trying_);
  if (scores_.size() == 2) return FromPoint({0.75, 0.75}, trying_);
  const GaussianProcess process(points_, scores_, options_.noise);
  Point best_point;
  double best_improvement = -1;
  for (int i = 0; i < kGrid; ++i) {
    for (int j = 0; j < kGrid; ++j) {
      const Point point{static_cast<double>(i) / (kGrid - 1), static_cast<double>(j) / (kGrid - 1)};
      const double improvement = process.ExpectedImprovement(point);
      if (improvement > best_improvement) {
        best_improvement = improvement;
        best_point = point;
      }
    }
  }
  return FromPoint(best_point, trying_);
}

void Autotune::Log(double score) {
  WriteLog(fmt::format("{},{:.1f},{:d},{:d},{:d},{:.3f}\n", trying_.fusion_threshold,
                       static_cast<double>(trying_.window_ns) / 1e3, trying_.hierarchical_allreduce,
                       trying_.hierarchical_allgather, trying_.cache, score));
}

// A full disk ends the log, and not the search.
void Autotune::WriteLog(std::string_view line) {
  if (log_.valid() && !WriteAll(log_.get(), line).ok()) log_.Reset();
}

}  // namespace tutti::coordinator
