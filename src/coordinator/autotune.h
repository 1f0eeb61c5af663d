#pragma once

// Autotune: looks for the fusion threshold, window and switches with which most bytes are moved in
// a given time, while the job runs. Rank 0 searches, and its choices go to all ranks with a round
// of negotiation.
//
// The two numbers are chosen by Bayesian optimisation: a Gaussian process over the logarithms of
// both, and the point of the largest expected improvement next. Then each switch is tried at the
// best point and kept where it helps.
//
// One thread at a time.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "coordinator/round_message.h"

namespace tutti::coordinator {

// A function of points in the unit square, known at some of the points up to noise.
// Squared-exponential kernel; see Rasmussen and Williams, "Gaussian Processes for Machine
// Learning", algorithm 2.1.
class GaussianProcess {
 public:
  struct Point {
    double x = 0;
    double y = 0;
  };
  struct Prediction {
    double mean = 0;
    double deviation = 0;
  };
  // `noise`: the variance of a value, relative to that of all values.
  GaussianProcess(std::vector<Point> points, const std::vector<double>& values, double noise);

  Prediction Predict(const Point& point) const;
  // Returns how much more than the largest value so far is to be expected at `point`.
  double ExpectedImprovement(const Point& point) const;

 private:
  std::vector<Point> points_;
  double mean_ = 0;
  double scale_ = 1;
  double best_ = 0;
  std::vector<double> weights_;  // K⁻¹ v
  std::vector<double> factor_;   // lower Cholesky factor of K, row by row
};

class Autotune {
 public:
  struct Options {
    int warmup_samples = 3;
    int steps_per_sample = 10;
    int max_samples = 20;
    double noise = 0.8;
    bool try_hierarchical_allreduce = false;
    bool try_hierarchical_allgather = false;
    std::string log_path;  // empty: none
  };
  Autotune(const Options& options, const Tuning& initial);

  // Notes that a batch whose first tensor is `name` has moved `bytes`. A step ends when a name
  // comes again.
  void Moved(const std::string& name, int64_t bytes, int64_t now_ns);
  // Returns the tuning to use from now on, once, when the tuning differs from `current`.
  std::optional<Tuning> TakeNext(const Tuning& current);
  bool done() const { return phase_ == Phase::kDone; }
  const Tuning& best() const { return best_; }

  // Translate to and from the box of the search; the defaults lie inside.
  static GaussianProcess::Point ToPoint(const Tuning& tuning);
  static Tuning FromPoint(const GaussianProcess::Point& point, const Tuning& rest);

 private:
  // The order of the search: the two numbers, then each switch.
  enum class Phase { kNumbers, kAllreduce, kAllgather, kCache, kDone };
  void EndSample(double score);
  void Advance();
  Phase NextPhase() const;
  Tuning NextNumbers() const;
  void Log(double score);
  void WriteLog(std::string_view line);

  const Options options_;
  Phase phase_ = Phase::kNumbers;
  Tuning trying_;
  Tuning best_;
  double best_score_ = -1;
  std::vector<GaussianProcess::Point> points_;
  std::vector<double> scores_;
  std::set<std::string> seen_;
  int warmup_left_;
  int steps_ = 0;
  int64_t sample_bytes_ = 0;
  int64_t sample_begin_ns_ = 0;
  bool changed_ = false;
  UniqueFd log_;  // not valid: no log
};

}  // namespace tutti::coordinator
