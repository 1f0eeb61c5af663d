#pragma once

// Planner: the plans of one communicator's operations. It remembers the last plans, because programs
// repeat their calls, and asks a tuner each time where there is one.
//
// One thread at a time calls For; the other functions are for any thread.

#include <array>
#include <cstddef>

#include "plan/cost_adviser.h"
#include "plan/plan.h"
#include "plan/task.h"

namespace tutti {

// Returns the question that a task asks. Ranks that are GPUs count what is only moved in bytes.
Question QuestionOf(const PlanContext& context, const CollectiveTask& task,
                    Buffers buffers = Buffers::kOwn);

// Returns how long a task takes by itself, in microseconds, as far as is known: nothing is known of
// one-sided calls.
double PredictUs(const PlanContext& context, const Task& task, Buffers buffers = Buffers::kOwn,
                 CostAdviser* adviser = nullptr);

// Returns whether the call, or the whole communicator, adds in the order of the ranks.
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

  // Returns the plan for a task whose buffers lie as `buffers` says. The reference is valid until
  // the next call. The requirements are those of MakePlan.
  const Plan& For(const CollectiveTask& task, Buffers buffers = Buffers::kOwn);

  // Returns InvalidUsage where a call demands algorithms of which none serves it. The planner does
  // not ask the tuner, which may advise each rank differently.
  Status CheckWishes(const CollectiveTask& task, Buffers buffers = Buffers::kOwn) const;

 private:
  struct Remembered {
    Question question;  // A count of 0 with no plan: empty.
    Plan plan;
  };
  static constexpr size_t kRemembered = 64;

  PlanContext context_;
  CostAdviser* adviser_;
  std::array<Remembered, kRemembered> remembered_ = {};
};

}  // namespace tutti
