#include "coordinator/tensor_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/checks.h"

namespace tutti::coordinator {
namespace {

// Checks what no other rank need be asked about.
Status CheckAsk(const Ask& ask, const Request& request, const std::vector<int>& members) {
  TUTTI_TRY(CheckRequest(std::string(ask.name), request, members));
  const bool has_input = request.kind != OpKind::kBarrier && request.bytes() > 0;
  const bool needs_input = request.kind != OpKind::kAddSet && request.kind != OpKind::kRemoveSet;
  if (has_input && needs_input && ask.input == nullptr && ask.output == nullptr) {
    return InvalidArgument("{} \"{}\": the tensor is null", Name(request.kind), ask.name);
  }
  if (request.kind != OpKind::kAlltoall) return Status::Ok();
  const auto n = members.size();
  if (ask.splits.size() != n ||
      std::any_of(ask.splits.begin(), ask.splits.end(), [](int64_t s) { return s < 0; })) {
    return InvalidArgument("alltoall \"{}\": there must be {} splits, none below 0", ask.name, n);
  }
  const int64_t rows = std::accumulate(ask.splits.begin(), ask.splits.end(), int64_t{0});
  if (rows > request.first_dim()) {  // rows beyond the splits go nowhere
    return InvalidArgument("alltoall \"{}\": the splits add up to {} rows, but the tensor has {}",
                           ask.name, rows, request.first_dim());
  }
  return Status::Ok();
}

bool AsksForTheSame(const Ask& ask, const Tensor& tensor) {
  const Request& request = tensor.request;
  return tensor.input != nullptr && ask.input != nullptr && ask.splits.empty() &&
         ask.fields == request && request.group == ask.group &&
         std::equal(ask.shape.begin(), ask.shape.end(), request.shape.begin(), request.shape.end());
}

}  // namespace

Status TensorQueue::Describe(const Ask& ask, Tensor& tensor) const {
  // What was asked for before in just this way has been checked.
  if (AsksForTheSame(ask, tensor)) return Status::Ok();
  Request& request = tensor.request;
  tensor.known.reset();
  static_cast<RequestFields&>(request) = ask.fields;
  request.shape.assign(ask.shape.begin(), ask.shape.end());
  request.group = ask.group;
  TUTTI_TRY(CheckAsk(ask, request, members_));
  tensor.splits.assign(ask.splits.begin(), ask.splits.end());
  return Status::Ok();
}

Status TensorQueue::AddOne(Ask& ask, int64_t now_ns) {
  TensorHome& home = names_.Enter(ask.name);
  if (home.pending != nullptr) {
    return InvalidUsage(
        "a tensor named \"{}\" is still pending: give each operation a name of its own, or wait "
        "for the first",
        ask.name);
  }
  std::unique_ptr<Tensor> tensor = std::move(home.spare);
  if (!tensor) {
    tensor = std::make_unique<Tensor>();
    tensor->name = ask.name;
    tensor->home = &home;
  }
  if (Status status = Describe(ask, *tensor); !status.ok()) {
    names_.Forget(ask.name);
    return status;
  }
  if (ask.device >= 0) {
    auto ready = gpu_.Admit(ask);
    if (!ready.ok()) {
      names_.Forget(ask.name);
      return std::move(ready).status().Annotate(
          fmt::format("{} \"{}\" on GPU {}", Name(ask.fields.kind), ask.name, ask.device));
    }
    tensor->ready = std::move(*ready);
  }
  Tensor& entered = *tensor;
  queued_.push_back(std::move(tensor));
  home.pending = &entered;
  home.reported_ns = 0;
  entered.input = ask.input;
  entered.output = ask.output;
  entered.ticket = std::move(ask.ticket);
  entered.sent = false;
  entered.order = order_++;
  entered.since_ns = now_ns;
  return Status::Ok();
}

Status TensorQueue::Add(std::span<Ask> asks, int64_t now_ns) {
  const size_t before = queued_.size();
  for (Ask& ask : asks) {
    Status status = AddOne(ask, now_ns);
    if (status.ok()) continue;
    for (size_t i = before; i < queued_.size(); ++i) names_.Forget(queued_[i]->name);
    queued_.resize(before);
    return status;
  }
  return Status::Ok();
}

TicketHold TensorQueue::Return(std::unique_ptr<Pending> pending) {
  std::unique_ptr<Tensor> tensor(static_cast<Tensor*>(pending.release()));
  TicketHold ticket = std::move(tensor->ticket);
  TensorHome& home = *tensor->home;
  home.pending = nullptr;
  home.spare = std::move(tensor);
  names_.Trim();
  return ticket;
}

}  // namespace tutti::coordinator
