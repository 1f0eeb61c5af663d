#include "plan/planner.h"

#include "base/rounding.h"

namespace tutti {

Question QuestionOf(const PlanContext& context, const CollectiveTask& task, Buffers buffers) {
  const bool adds = task.is_reduction();
  const bool in_bytes = context.kind != RankKind::kHost && !adds;
  return {.collective = task.collective,
          .count = in_bytes ? task.plan_count() * task.elem_bytes() : task.plan_count(),
          .type = in_bytes ? DataType::kUint8 : task.type,
          .order = adds && IsDeterministic(context, task) ? OrderOf(task.type, task.op.kind)
                                                          : ReductionOrder::kAny,
          .buffers = buffers,
          .algorithms = task.wishes.algorithms,
          .most_channels = task.wishes.most_blocks};
}

double PredictUs(const PlanContext& context, const Task& task, Buffers buffers,
                 CostAdviser* adviser) {
  Question question;
  if (const auto* const message = std::get_if<MessageTask>(&task)) {
    question = {.collective = Collective::kSendRecv, .count = message->bytes()};
  } else if (const auto* const collective = std::get_if<CollectiveTask>(&task)) {
    question = QuestionOf(context, *collective, buffers);
    // A prediction counts the mean part of a variable-size collective, as the count of NCCL's calls
    // is the part of one rank. A plan counts the longest part.
    if (collective->parts)
      question.count = DivUp(collective->bytes() / question.elem_bytes(),
                             static_cast<size_t>(context.num_ranks));
  } else {
    return 0;
  }
  return PredictUs(context, question, adviser);
}

// The key picks one of kRemembered entries. A remembered plan is used only if the whole question is
// equal. With a tuner the plan is made anew.
const Plan& Planner::For(const CollectiveTask& task, Buffers buffers) {
  const Question question = QuestionOf(context_, task, buffers);
  const size_t key = question.count * question.elem_bytes() +
                     static_cast<size_t>(question.collective) * 7 +
                     static_cast<size_t>(question.buffers) * 3;
  Remembered& entry = remembered_[key * 0x9E3779B97F4A7C15u >> 58];
  // A tuner has no name for the algorithms that take scattered buffers.
  CostAdviser* const adviser = buffers == Buffers::kScattered ? nullptr : adviser_;
  if (adviser != nullptr || entry.plan.row == nullptr || entry.question != question)
    entry = {question, MakePlan(context_, question, adviser)};
  return entry.plan;
}

Status Planner::CheckWishes(const CollectiveTask& task, Buffers buffers) const {
  if (!task.wishes.demands_algorithms || context_.num_ranks == 1 || task.plan_count() == 0)
    return Status::Ok();
  const Algorithm algorithm =
      Serves(context_.kind, task.collective)
          ? MakePlan(context_, QuestionOf(context_, task, buffers)).algorithm()
          : Algorithm::kExchange;
  if ((task.wishes.algorithms & Bit(algorithm)) != 0) return Status::Ok();
  return InvalidUsage("none of the algorithms that algSelection leaves serves this {} of {} bytes",
                      Name(task.collective), task.bytes());
}

}  // namespace tutti
