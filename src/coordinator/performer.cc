#include "coordinator/performer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "coordinator/adasum.h"
#include "coordinator/communicator.h"
#include "coordinator/staging.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

constexpr auto kFusion = TensorMemory::Buffer::kFusion;
constexpr auto kSecond = TensorMemory::Buffer::kSecond;
constexpr auto kDots = TensorMemory::Buffer::kDots;

size_t ElementsOf(const Response& response) {
  return static_cast<size_t>(response.agreement().request.elements());
}

}  // namespace

std::vector<int64_t> ReducescatterRows(int64_t first_dim, int num_ranks) {
  std::vector<int64_t> rows(static_cast<size_t>(num_ranks), first_dim / num_ranks);
  for (size_t i = 0; i < static_cast<size_t>(first_dim % num_ranks); ++i) ++rows[i];
  return rows;
}

Status DeliverInlineData(Response& response) {
  Tensor* const tensor = response.pending.get();
  if (tensor == nullptr) return Status::Ok();
  const Request& request = response.agreement().request;
  HostTensorMemory memory;
  TUTTI_TRY(memory.GiveOutput(*tensor, static_cast<size_t>(response.agreement().bytes())));
  tensor->ticket->output_shape = request.shape;
  alignas(8) const std::array<std::byte, kInlineDataBytes> reduced = response.reduced;
  StageOut(request, reduced.data(), tensor->output, ElementsOf(response));
  return Status::Ok();
}

Performer::Performer(std::vector<std::unique_ptr<Operations>> operations, int rank,
                     std::vector<int> members, Activity activity,
                     std::unique_ptr<TensorMemory> memory)
    : operations_(std::move(operations)),
      rank_(rank),
      num_ranks_(static_cast<int>(members.size())),
      members_(std::move(members)),
      activity_(std::move(activity)),
      memory_(std::move(memory)) {}

Operations& Performer::Choose(const Request& request, int64_t bytes) const {
  for (const auto& operations : operations_) {
    if (operations->Takes(request, bytes)) return *operations;
  }
  return *operations_.back();
}

bool Performer::Takes(const Request& request, int64_t bytes) const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [&](const auto& operations) { return operations->Takes(request, bytes); });
}

void Performer::Tell(const std::vector<Response>& batch, std::string_view activity) const {
  if (activity_) activity_(batch, activity);
}

void Performer::TellIfGrowing(const std::vector<Response>& batch, size_t bytes) const {
  if (memory_->WouldGrow(kFusion, bytes)) Tell(batch, "INIT_FUSION_BUFFER");
}

// Returns whether the user's buffers cannot be reduced as they are.
bool Performer::Stages(const Request& request) const {
  return NeedsStaging(request) && !memory_->leaves_scaling();
}

// Returns the operator of nccl.h for the request, including scale factors that nobody else applies.
Result<ncclRedOp_t> Performer::OpFor(const Request& request, Operations& operations) const {
  const double factor = request.prescale * request.postscale;
  if (!memory_->leaves_scaling() || !NeedsStaging(request)) return WireOp(request);
  return operations.ScaledSum(WireType(request),
                              request.op == ReduceOp::kAverage ? factor / num_ranks_ : factor);
}

// Broadcasts, alltoalls and reducescatters are never fused: their batches have one response.
Status Performer::Perform(std::vector<Response>& batch) {
  Response& first = batch.front();
  switch (first.agreement().request.kind) {
    case OpKind::kAllreduce:
      return Allreduce(batch);
    case OpKind::kAllgather:
      return Allgather(batch);
    case OpKind::kBroadcast:
      return Broadcast(first);
    case OpKind::kAlltoall:
      return Alltoall(first);
    case OpKind::kReducescatter:
      return Reducescatter(first);
    default:
      // Negotiation has brought all ranks together already.
      return Status::Ok();
  }
}

// Chooses the way of the data: Adasum, straight from and to a single tensor's buffers, scattered
// where the operations reduce many buffers, else through the fusion buffer.
Status Performer::Allreduce(std::vector<Response>& batch) {
  int64_t bytes = 0;
  for (Response& response : batch) {
    bytes += response.agreement().bytes();
    if (Tensor* const tensor = response.pending.get()) {
      TUTTI_TRY(memory_->GiveOutput(*tensor, static_cast<size_t>(response.agreement().bytes())));
      tensor->ticket->output_shape = response.agreement().request.shape;
    }
  }
  const Request& request = batch.front().agreement().request;
  Operations& operations = Choose(request, bytes);
  if (request.op == ReduceOp::kAdasum) return AllreduceAdasum(batch, operations);
  if (batch.size() == 1 && batch.front().pending) return AllreduceOne(batch.front(), operations);
  if (batch.size() > 1 && operations.ReducesScattered() && !Stages(request)) {
    return AllreduceScattered(batch, operations);
  }
  return AllreduceFused(batch, operations);
}

// Reduces every tensor in place. The neutral elements of a rank that has joined lie together.
Status Performer::AllreduceScattered(std::vector<Response>& batch, Operations& operations) {
  const Request& request = batch.front().agreement().request;
  const ncclDataType_t wire = WireType(request);
  size_t neutral = 0;
  for (const Response& response : batch) {
    if (!response.pending) neutral += ElementsOf(response);
  }
  std::byte* place = nullptr;
  if (neutral > 0) {
    TUTTI_ASSIGN(place, memory_->Scratch(kFusion, neutral * WireSize(wire)));
    TUTTI_TRY(memory_->Neutral(wire, request.op, place, neutral));
  }
  scattered_.Clear();
  for (const Response& response : batch) {
    const size_t count = ElementsOf(response);
    if (const Tensor* const tensor = response.pending.get()) {
      scattered_.Add(tensor->input, tensor->output, count);
    } else {
      scattered_.Add(place, place, count);
      place += count * WireSize(wire);
    }
  }
  Tell(batch, operations.name());
  return operations.AllreduceScattered(scattered_, wire, WireOp(request));
}

// Reduces straight from the user's buffer to the user's buffer.
Status Performer::AllreduceOne(Response& response, Operations& operations) {
  const Request& request = response.agreement().request;
  Tensor& tensor = *response.pending;
  const size_t count = ElementsOf(response);
  const ncclDataType_t wire = WireType(request);
  TUTTI_ASSIGN(const ncclRedOp_t op, OpFor(request, operations));
  if (!Stages(request)) {
    return operations.Allreduce(tensor.input, tensor.output, count, wire, op);
  }
  void* staged = tensor.output;
  if (WireSize(wire) != SizeOf(request.type)) {
    TUTTI_ASSIGN(staged, memory_->Scratch(kFusion, count * WireSize(wire)));
  }
  TUTTI_TRY(memory_->In(request, tensor.input, staged, count));
  TUTTI_TRY(operations.Allreduce(staged, staged, count, wire, op));
  return memory_->Out(request, staged, tensor.output, count);
}

// Packs the tensor of this rank, or neutral elements in its stead.
Status Performer::Pack(const Response& response, std::byte* place) {
  const Request& request = response.agreement().request;
  const size_t elements = ElementsOf(response);
  if (const Tensor* const tensor = response.pending.get()) {
    return memory_->In(request, tensor->input, place, elements);
  }
  return memory_->Neutral(WireType(request), request.op, place, elements);
}

// Packs, reduces and unpacks in pieces, because a piece stays in the cache between the three steps.
Status Performer::AllreduceFused(std::vector<Response>& batch, Operations& operations) {
  const Request& request = batch.front().agreement().request;
  const ncclDataType_t wire = WireType(request);
  const size_t element = WireSize(wire);
  TUTTI_ASSIGN(const ncclRedOp_t op, OpFor(request, operations));
  size_t begin = 0;
  while (begin < batch.size()) {
    // As many tensors as fit into a piece; at least one.
    size_t end = begin;
    size_t count = 0;
    do {
      count += ElementsOf(batch[end++]);
    } while (end < batch.size() &&
             (count + ElementsOf(batch[end])) * element <= memory_->piece_bytes());
    if (end == begin + 1 && batch[begin].pending) {
      TUTTI_TRY(AllreduceOne(batch[begin], operations));
      begin = end;
      continue;
    }
    if (begin == 0) TellIfGrowing(batch, count * element);
    TUTTI_ASSIGN(std::byte* const buffer, memory_->Scratch(kFusion, count * element));
    if (begin == 0) Tell(batch, "MEMCPY_IN_FUSION_BUFFER");
    std::byte* place = buffer;
    for (size_t i = begin; i < end; ++i) {
      TUTTI_TRY(Pack(batch[i], place));
      place += ElementsOf(batch[i]) * element;
    }
    if (begin == 0) Tell(batch, operations.name());
    TUTTI_TRY(operations.Allreduce(buffer, buffer, count, wire, op));
    if (end == batch.size()) Tell(batch, "MEMCPY_OUT_FUSION_BUFFER");
    place = buffer;
    for (size_t i = begin; i < end; ++i) {
      const size_t elements = ElementsOf(batch[i]);
      if (const Tensor* const tensor = batch[i].pending.get()) {
        TUTTI_TRY(memory_->Out(request, place, tensor->output, elements));
      }
      place += elements * element;
    }
    begin = end;
  }
  return Status::Ok();
}

// Converts between the tensors of a batch and Adasum's vector, in which they lie one behind
// another, with the scale factors. A tensor that this rank does not have counts as zeros.
Status Performer::ConvertForAdasum(const std::vector<Response>& batch, const AdasumVectors& vectors,
                                   bool widens) {
  const Request& request = batch.front().agreement().request;
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<size_t> counts;
  std::byte* place = vectors.vector;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Tensor* const tensor = batch[i].pending.get();
    if (widens || tensor != nullptr) {
      from.push_back(!widens ? place : tensor != nullptr ? tensor->input : nullptr);
      to.push_back(widens ? place : tensor->output);
      counts.push_back(vectors.counts[i]);
    }
    place += vectors.counts[i] * WireSize(vectors.type);
  }
  const ncclDataType_t type = WireType(request);
  return FromNccl(tuttiAdasumConvert(
      from.data(), widens ? type : vectors.type, to.data(), widens ? vectors.type : type,
      counts.data(), counts.size(), widens ? request.prescale : request.postscale,
      vectors.place.device, static_cast<cudaStream_t>(vectors.place.stream)));
}

Status Performer::AllreduceAdasum(std::vector<Response>& batch, Operations& operations) {
  const TwoLevels* const levels = operations.levels();
  std::vector<size_t> counts;
  for (const Response& response : batch) counts.push_back(ElementsOf(response));
  AdasumVectors vectors;
  vectors.type =
      WireType(batch.front().agreement().request) == ncclFloat64 ? ncclFloat64 : ncclFloat32;
  vectors.counts = counts;
  vectors.place = memory_->place();
  const size_t bytes =
      std::accumulate(counts.begin(), counts.end(), size_t{0}) * WireSize(vectors.type);
  const size_t dots = AdasumDotsBytes(counts.size(), levels ? levels->shape.local_size : 1);
  TellIfGrowing(batch, bytes);
  TUTTI_ASSIGN(vectors.vector, memory_->Scratch(kFusion, bytes));
  TUTTI_ASSIGN(vectors.scratch, memory_->Scratch(kSecond, bytes));
  TUTTI_ASSIGN(std::byte* const numbers, memory_->Scratch(kDots, dots));
  vectors.dots = reinterpret_cast<double*>(numbers);
  Tell(batch, "MEMCPY_IN_FUSION_BUFFER");
  TUTTI_TRY(ConvertForAdasum(batch, vectors, /*widens=*/true));
  Tell(batch, operations.name());
  TUTTI_TRY(levels ? AdasumInTwoLevels(*levels, vectors)
                   : Adasum(operations, rank_, num_ranks_, vectors));
  Tell(batch, "MEMCPY_OUT_FUSION_BUFFER");
  return ConvertForAdasum(batch, vectors, /*widens=*/false);
}

// The rows of all ranks are agreed on, and give the sizes of the results.
Status Performer::Allgather(std::vector<Response>& batch) {
  int64_t all_bytes = 0;
  for (Response& response : batch) {
    all_bytes += response.agreement().bytes();
    Tensor* const tensor = response.pending.get();
    if (tensor == nullptr) continue;
    const auto& dims = response.agreement().first_dims;
    TUTTI_TRY(memory_->GiveOutput(*tensor, static_cast<size_t>(response.agreement().bytes())));
    tensor->ticket->output_shape = response.agreement().request.shape;
    tensor->ticket->output_shape[0] = std::accumulate(dims.begin(), dims.end(), int64_t{0});
  }
  Operations& operations = Choose(batch.front().agreement().request, all_bytes);
  return AllgatherFused(batch, operations);
}

// The blocks of the ranks lie one after another; inside a block, the tensors. With a single tensor
// the blocks are the result itself.
Status Performer::AllgatherFused(std::vector<Response>& batch, Operations& operations) {
  const auto n = static_cast<size_t>(num_ranks_);
  const auto bytes_of = [](const Response& response, size_t rank) {
    const Request& request = response.agreement().request;
    return static_cast<size_t>(response.agreement().first_dims[rank] * request.row_elements()) *
           SizeOf(request.type);
  };
  std::vector<size_t> block_bytes(n, 0);
  for (const Response& response : batch) {
    for (size_t rank = 0; rank < n; ++rank) block_bytes[rank] += bytes_of(response, rank);
  }
  if (batch.size() == 1 && batch.front().pending) {
    const Tensor& tensor = *batch.front().pending;
    return operations.Allgather(tensor.input, tensor.output, block_bytes);
  }
  const size_t total = std::accumulate(block_bytes.begin(), block_bytes.end(), size_t{0});
  const auto mine = static_cast<size_t>(rank_);
  TUTTI_ASSIGN(std::byte* const in, memory_->Scratch(kSecond, block_bytes[mine]));
  TellIfGrowing(batch, total);
  TUTTI_ASSIGN(std::byte* const out, memory_->Scratch(kFusion, total));
  Tell(batch, "MEMCPY_IN_FUSION_BUFFER");
  std::byte* place = in;
  for (const Response& response : batch) {
    const size_t bytes = bytes_of(response, mine);
    if (bytes > 0) TUTTI_TRY(memory_->Copy(place, response.pending->input, bytes));
    place += bytes;
  }
  Tell(batch, operations.name());
  TUTTI_TRY(operations.Allgather(in, out, block_bytes));
  Tell(batch, "MEMCPY_OUT_FUSION_BUFFER");
  const std::byte* from = out;
  std::vector<size_t> written(batch.size(), 0);
  for (size_t rank = 0; rank < n; ++rank) {
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t bytes = bytes_of(batch[i], rank);
      if (const Tensor* const tensor = batch[i].pending.get(); tensor != nullptr && bytes > 0) {
        TUTTI_TRY(memory_->Copy(static_cast<std::byte*>(tensor->output) + written[i], from, bytes));
      }
      written[i] += bytes;
      from += bytes;
    }
  }
  return Status::Ok();
}

Status Performer::Broadcast(Response& response) {
  const Request& request = response.agreement().request;
  const auto bytes = static_cast<size_t>(response.agreement().bytes());
  const auto found = std::find(members_.begin(), members_.end(), request.root);
  const auto root = static_cast<int>(found - members_.begin());
  Operations& operations = Choose(request, response.agreement().bytes());
  Tensor* const tensor = response.pending.get();
  if (tensor == nullptr) {
    TUTTI_ASSIGN(std::byte* const ignored, memory_->Scratch(kFusion, bytes));
    return operations.Broadcast(ignored, ignored, bytes, root);
  }
  TUTTI_TRY(memory_->GiveOutput(*tensor, bytes));
  tensor->ticket->output_shape = request.shape;
  // Only the root's input counts; elsewhere the input may be missing.
  const void* const input = rank_ == root ? tensor->input : tensor->output;
  return operations.Broadcast(input, tensor->output, bytes, root);
}

// Each rank tells each other rank how many rows it sends.
Status Performer::ShareSplits(Response& response) {
  Tensor& tensor = *response.pending;
  const auto n = static_cast<size_t>(num_ranks_);
  std::vector<int64_t>& received = tensor.ticket->received_splits;
  received.assign(n, 0);
  const std::vector<size_t> word(n, sizeof(int64_t));
  return Choose(tensor.request, response.agreement().bytes())
      .Alltoall(tensor.splits.data(), word, received.data(), word);
}

// The sizes of the result are known only after the ranks have shared their splits.
Status Performer::Alltoall(Response& response) {
  Tensor& tensor = *response.pending;
  const Request& request = tensor.request;
  const auto n = static_cast<size_t>(num_ranks_);
  Operations& operations = Choose(request, response.agreement().bytes());
  const std::vector<int64_t>& received = tensor.ticket->received_splits;
  if (received.empty()) TUTTI_TRY(ShareSplits(response));
  const size_t row_bytes = static_cast<size_t>(request.row_elements()) * SizeOf(request.type);
  std::vector<size_t> input_bytes, output_bytes;
  for (size_t i = 0; i < n; ++i) {
    input_bytes.push_back(static_cast<size_t>(tensor.splits[i]) * row_bytes);
    output_bytes.push_back(static_cast<size_t>(received[i]) * row_bytes);
  }
  const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
  TUTTI_TRY(memory_->GiveOutput(tensor, static_cast<size_t>(rows) * row_bytes));
  tensor.ticket->output_shape = request.shape;
  tensor.ticket->output_shape[0] = rows;
  return operations.Alltoall(tensor.input, input_bytes, tensor.output, output_bytes);
}

// The input is packed where types or scale factors change, and where this rank has joined.
Status Performer::Reducescatter(Response& response) {
  const Request& request = response.agreement().request;
  const ncclDataType_t wire = WireType(request);
  const auto row = static_cast<size_t>(request.row_elements());
  const std::vector<int64_t> rows = ReducescatterRows(request.first_dim(), num_ranks_);
  std::vector<size_t> counts;
  for (const int64_t r : rows) counts.push_back(static_cast<size_t>(r) * row);
  const size_t mine = counts[static_cast<size_t>(rank_)];
  const size_t total = ElementsOf(response);
  Operations& operations = Choose(request, response.agreement().bytes());
  TUTTI_ASSIGN(const ncclRedOp_t op, OpFor(request, operations));
  Tensor* const tensor = response.pending.get();
  if (tensor != nullptr) {
    TUTTI_TRY(memory_->GiveOutput(*tensor, mine * SizeOf(request.type)));
    tensor->ticket->output_shape = request.shape;
    tensor->ticket->output_shape[0] = rows[static_cast<size_t>(rank_)];
    if (!Stages(request)) {
      return operations.Reducescatter(tensor->input, tensor->output, counts, wire, op);
    }
  }
  TUTTI_ASSIGN(std::byte* const in, memory_->Scratch(kFusion, total * WireSize(wire)));
  TUTTI_ASSIGN(std::byte* const out, memory_->Scratch(kSecond, mine * WireSize(wire)));
  TUTTI_TRY(Pack(response, in));
  TUTTI_TRY(operations.Reducescatter(in, out, counts, wire, op));
  return tensor == nullptr ? Status::Ok() : memory_->Out(request, out, tensor->output, mine);
}

}  // namespace tutti::coordinator
