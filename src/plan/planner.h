#pragma once

// Planner makes the plans of one communicator's operations. Programs repeat their calls, and
// therefore the planner remembers recent plans. With a tuner, the planner makes each plan anew,
// because the tuner may change its advice.
//
// One thread at a time may call For. Any thread may call the other functions.

#include <array>
#include <cstddef>

#include "plan/cost_adviser.h"
#include "plan/plan.h"
#include "plan/task.h"

namespace tutti {

// Returns the question that a task asks. GPUs count the data of collectives that do not reduce in
// bytes.
Question QuestionOf(const PlanContext& context, const CollectiveTask& task,
                    Buffers buffers = Buffers::kOwn);

// Returns how long a task takes by itself, in microseconds. The time of a one-sided call is not
// known, and 0 is returned.
double PredictUs(const PlanContext& context, const Task& task, Buffers buffers = Buffers::kOwn,
                 CostAdviser* adviser = nullptr);

// Returns whether the call or the whole communicator demands additions in the order of the ranks.
inline bool IsDeterministic(const PlanContext& context, const CollectiveTask& task) {
  return context.deterministic || task.wishes.deterministic;
}

class Planner {
 public:
  // `adviser` may be null and must outlive the planner.
  explicit Planner(PlanContext context = {}, CostAdviser* adviser = nullptr)
      : context_(std::move(context)), adviser_(adviser) {}

  const PlanContext& context() const { return context_; }
  CostAdviser* adviser() const { return adviser_; }

  // Returns the plan for a task with buffers of the kind `buffers`. The reference is valid until
  // the next call. The requirements are those of MakePlan.
  const Plan& For(const CollectiveTask& task, Buffers buffers = Buffers::kOwn);
  // Returns an equal plan, and remembers nothing.
  Plan Make(const CollectiveTask& task, Buffers buffers = Buffers::kOwn) const {
    return MakePlan(context_, QuestionOf(context_, task, buffers), adviser_);
  }
  double PredictUs(const Task& task, Buffers buffers = Buffers::kOwn) const {
    return tutti::PredictUs(context_, task, buffers, adviser_);
  }

  // Returns InvalidUsage if the call demands certain algorithms and none of them serves the call.
  // The planner does not ask the tuner here, because the tuner's advice may differ between ranks.
  Status CheckWishes(const CollectiveTask& task, Buffers buffers = Buffers::kOwn) const;

 private:
  struct Remembered {
    Question question;  // An entry is empty while its plan has no row.
    Plan plan;
  };
  static constexpr size_t kRemembered = 64;

  PlanContext context_;
  CostAdviser* adviser_;
  std::array<Remembered, kRemembered> remembered_ = {};
};

}  // namespace tutti
