#include "coordinator/tensor_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/checks.h"

namespace tutti::coordinator {
namespace {

bool IsBarrier(const tuttiTensor_t& asked) {
  return static_cast<OpKind>(asked.kind) == OpKind::kBarrier;
}

std::span<const int64_t> ShapeOf(const tuttiTensor_t& asked) {
  if (IsBarrier(asked)) return {};
  return {asked.shape, static_cast<size_t>(asked.ndim)};
}

std::span<const int64_t> SplitsOf(const tuttiTensor_t& asked) {
  if (static_cast<OpKind>(asked.kind) != OpKind::kAlltoall) return {};
  return {asked.splits, static_cast<size_t>(asked.nsplits)};
}

// Returns the fields on which the ranks must agree. Fields unknown to the operation keep their
// defaults, which are the same on all ranks.
RequestFields FieldsOf(const tuttiTensor_t& asked, uint32_t group_size) {
  RequestFields fields;
  fields.kind = static_cast<OpKind>(asked.kind);
  fields.group_size = group_size;
  if (!IsBarrier(asked)) {
    fields.type = static_cast<ElementType>(asked.type);
    // The ranks must agree on whether the tensor lies on a GPU, but not on the number of the GPU.
    fields.device = asked.device < 0 ? -1 : 0;
  }
  if (fields.kind == OpKind::kAllreduce || fields.kind == OpKind::kReducescatter) {
    fields.op = static_cast<ReduceOp>(asked.op);
    fields.compression = static_cast<Compression>(asked.compression);
    fields.prescale = asked.prescale;
    fields.postscale = asked.postscale;
  }
  if (fields.kind == OpKind::kBroadcast || fields.kind == OpKind::kRemoveSet) {
    fields.root = asked.root;
  }
  return fields;
}

// Makes the checks that need no other rank.
Status CheckAsked(const tuttiTensor_t& asked, const Request& request,
                  const std::vector<int>& members) {
  TUTTI_TRY(CheckRequest(asked.name, request, members));
  const bool has_input = request.kind != OpKind::kBarrier && request.bytes() > 0;
  const bool needs_input = request.kind != OpKind::kAddSet && request.kind != OpKind::kRemoveSet;
  if (has_input && needs_input && asked.input == nullptr && asked.output == nullptr) {
    return InvalidArgument("{} \"{}\": the tensor is null", Name(request.kind), asked.name);
  }
  if (request.kind != OpKind::kAlltoall) return Status::Ok();
  const std::span<const int64_t> splits = SplitsOf(asked);
  const auto n = members.size();
  if (splits.size() != n ||
      std::any_of(splits.begin(), splits.end(), [](int64_t s) { return s < 0; })) {
    return InvalidArgument("alltoall \"{}\": there must be {} splits, none below 0", asked.name, n);
  }
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (rows > request.first_dim()) {  // Rows beyond the splits go nowhere.
    return InvalidArgument("alltoall \"{}\": the splits add up to {} rows, but the tensor has {}",
                           asked.name, rows, request.first_dim());
  }
  return Status::Ok();
}

// Returns whether the last request of this name was the same. Tensors without an input and
// alltoalls, whose splits would have to be compared, are always checked anew.
bool AsksForTheSame(const tuttiTensor_t& asked, const RequestFields& fields, std::string_view group,
                    const Tensor& tensor) {
  const Request& request = tensor.request;
  const std::span<const int64_t> shape = ShapeOf(asked);
  return tensor.input != nullptr && asked.input != nullptr && SplitsOf(asked).empty() &&
         fields == request && request.group == group &&
         std::equal(shape.begin(), shape.end(), request.shape.begin(), request.shape.end());
}

}  // namespace

tuttiTensor_t MakeTensor(const char* name, OpKind kind) {
  tuttiTensor_t tensor = {};
  tensor.size = sizeof tensor;
  tensor.name = name;
  tensor.kind = static_cast<tuttiOpKind_t>(kind);
  tensor.type = tuttiFloat32;
  tensor.op = tuttiReduceSum;
  tensor.prescale = tensor.postscale = 1;
  tensor.device = -1;
  return tensor;
}

Status TensorQueue::Describe(const tuttiTensor_t& asked, const RequestFields& fields,
                             std::string_view group, Tensor& tensor) const {
  // A request that equals the last request of this name has been checked.
  if (AsksForTheSame(asked, fields, group, tensor)) return Status::Ok();
  Request& request = tensor.request;
  tensor.known.reset();
  static_cast<RequestFields&>(request) = fields;
  const std::span<const int64_t> shape = ShapeOf(asked), splits = SplitsOf(asked);
  request.shape.assign(shape.begin(), shape.end());
  request.group = group;
  TUTTI_TRY(CheckAsked(asked, request, members_));
  tensor.splits.assign(splits.begin(), splits.end());
  return Status::Ok();
}

Status TensorQueue::AddOne(const tuttiTensor_t& asked, const RequestFields& fields,
                           std::string_view group, int64_t now_ns) {
  TensorHome& home = names_.Enter(asked.name);
  if (home.pending != nullptr) {
    return InvalidUsage(
        "a tensor named \"{}\" is still pending: give each operation a name of its own, or wait "
        "for the first",
        asked.name);
  }
  std::unique_ptr<Tensor> tensor = std::move(home.spare);
  if (!tensor) {
    tensor = std::make_unique<Tensor>();
    tensor->name = asked.name;
    tensor->home = &home;
  }
  if (Status status = Describe(asked, fields, group, *tensor); !status.ok()) {
    names_.Forget(asked.name);
    return status;
  }
  if (fields.device >= 0) {
    auto ready = gpu_.Admit(asked.device, asked.stream);
    if (!ready.ok()) {
      names_.Forget(asked.name);
      return std::move(ready).status().Annotate(
          fmt::format("{} \"{}\" on GPU {}", Name(fields.kind), asked.name, asked.device));
    }
    tensor->ready = std::move(*ready);
  }
  home.pending = tensor.get();
  home.reported_ns = 0;
  tensor->input = asked.input;
  tensor->output = asked.output;
  tensor->sent = false;
  tensor->order = order_++;
  tensor->since_ns = now_ns;
  queued_.push_back(std::move(tensor));
  return Status::Ok();
}

Status TensorQueue::Add(std::span<const tuttiTensor_t> tensors, const char* group,
                        std::span<TicketHold> tickets, int64_t now_ns) {
  const size_t before = queued_.size();
  const auto group_size = static_cast<uint32_t>(group != nullptr ? tensors.size() : 0);
  for (const tuttiTensor_t& asked : tensors) {
    Status status =
        AddOne(asked, FieldsOf(asked, group_size), group != nullptr ? group : "", now_ns);
    if (status.ok()) continue;
    for (size_t i = before; i < queued_.size(); ++i) names_.Forget(queued_[i]->name);
    queued_.resize(before);
    return status;
  }
  // Tickets are taken last: after a refusal they remain the caller's.
  for (size_t i = 0; i < tickets.size(); ++i) queued_[before + i]->ticket = std::move(tickets[i]);
  return Status::Ok();
}

TicketHold TensorQueue::Return(std::unique_ptr<Tensor> tensor) {
  TicketHold ticket = std::move(tensor->ticket);
  TensorHome& home = *tensor->home;
  home.pending = nullptr;
  home.spare = std::move(tensor);
  names_.Trim();
  return ticket;
}

}  // namespace tutti::coordinator
