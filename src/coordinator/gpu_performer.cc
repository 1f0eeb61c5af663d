#include "coordinator/gpu_performer.h"

#include <utility>

#include "coordinator/staging.h"

namespace tutti::coordinator {
namespace {

// Copies on a GPU run at its memory's bandwidth, and each costs the host 2 us or so. A tensor of
// this size or more is better reduced by itself.
constexpr size_t kPieceBytes = size_t{16} << 20;

// Returns the ticket's outcome, and makes an outcome at the first call.
GpuOutcome& OutcomeOf(Ticket& ticket, const std::shared_ptr<Gpu>& gpu) {
  if (!ticket.gpu) {
    ticket.gpu = std::make_shared<GpuOutcome>();
    ticket.gpu->gpu = gpu;
    ticket.gpu->stream = gpu->stream();
  }
  return *ticket.gpu;
}

class GpuTensorMemory final : public TensorMemory {
 public:
  explicit GpuTensorMemory(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~GpuTensorMemory() override {
    for (const Scratchpad& pad : scratch_) {
      if (pad.memory != nullptr) gpu_->Free(pad.memory, gpu_->stream());
    }
  }

  Status GiveOutput(Tensor& tensor, size_t bytes) override {
    if (tensor.output == nullptr) {
      GpuOutcome& outcome = OutcomeOf(*tensor.ticket, gpu_);
      TUTTI_ASSIGN(outcome.owned, gpu_->Allocate(bytes));
      tensor.output = outcome.owned;
    }
    tensor.ticket->output = tensor.output;
    return Status::Ok();
  }
  Result<std::byte*> Scratch(Buffer buffer, size_t bytes) override {
    Scratchpad& pad = scratch_[static_cast<size_t>(buffer)];
    if (WouldGrow(buffer, bytes)) {
      if (pad.memory != nullptr) gpu_->Free(std::exchange(pad.memory, nullptr), gpu_->stream());
      TUTTI_ASSIGN(pad.memory, gpu_->Allocate(bytes));
      pad.capacity = bytes;
    }
    return static_cast<std::byte*>(pad.memory);
  }
  bool WouldGrow(Buffer buffer, size_t bytes) const override {
    const Scratchpad& pad = scratch_[static_cast<size_t>(buffer)];
    return pad.memory == nullptr || pad.capacity < bytes;
  }
  size_t piece_bytes() const override { return kPieceBytes; }
  Place place() const override { return {gpu_->rank_device(), gpu_->stream()}; }
  Status Copy(void* to, const void* from, size_t bytes) override {
    return from == to ? Status::Ok() : gpu_->Copy(to, from, bytes);
  }
  Status In(const Request& request, const void* input, void* wire, size_t count) override {
    return Copy(wire, input, count * SizeOf(request.type));
  }
  Status Out(const Request& request, const void* wire, void* output, size_t count) override {
    return Copy(output, wire, count * SizeOf(request.type));
  }
  Status Neutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count) override {
    // Only ranks that have joined need neutral elements, which is rare enough for a copy from the
    // host.
    const OwnedBytes elements = AllocateBytes(count * WireSize(type));
    if (!elements) return SystemError("there is no memory for {} elements", count);
    FillNeutral(type, op, elements.get(), count);
    return Copy(wire, elements.get(), count * WireSize(type));
  }
  // The module has no kernels that scale; operations of the library do.
  bool leaves_scaling() const override { return true; }

 private:
  struct Scratchpad {
    void* memory = nullptr;
    size_t capacity = 0;
  };
  const std::shared_ptr<Gpu> gpu_;
  Scratchpad scratch_[kNumBuffers];
};

bool Scales(const Request& request) { return request.prescale != 1 || request.postscale != 1; }

// Returns the bytes of a result of this shape.
size_t BytesOf(const std::vector<int64_t>& shape, ElementType type) {
  size_t bytes = SizeOf(type);
  for (const int64_t dimension : shape) bytes *= static_cast<size_t>(dimension);
  return bytes;
}

}  // namespace

GpuPerformer::GpuPerformer(Performer& host, int rank, std::vector<int> members,
                           Performer::Activity activity, Hooks hooks, GpuTrace::Hooks trace)
    : host_(host),
      rank_(rank),
      members_(std::move(members)),
      activity_(std::move(activity)),
      hooks_(std::move(hooks)),
      trace_(std::move(trace)) {}

GpuPerformer::~GpuPerformer() { Settle(); }

void GpuPerformer::Settle() {
  std::shared_ptr<Gpu> gpu;
  {
    const MutexLock lock(mutex_);
    gpu = gpu_;
  }
  if (gpu) static_cast<void>(gpu->Synchronize());
}

// Opens the rank's GPU at the first call. A rank that only stands in for others calls with -1.
Result<std::shared_ptr<Gpu>> GpuPerformer::Find(int device) {
  const MutexLock lock(mutex_);
  if (!gpu_) {
    if (!hooks_.open) return InvalidUsage("there is no GPU here");
    TUTTI_ASSIGN(gpu_, hooks_.open(device));
  }
  if (device >= 0 && device != gpu_->device()) {
    return InvalidArgument(
        "this rank's tensors lie on GPU {} in this process set, and a rank has one GPU",
        gpu_->device());
  }
  return gpu_;
}

Result<std::shared_ptr<GpuMark>> GpuPerformer::Admit(int device, void* stream) {
  TUTTI_ASSIGN(const std::shared_ptr<Gpu> gpu, Find(device));
  return gpu->Mark(stream);
}

// Joins the GPUs of all ranks, once, in the first batch on GPUs. Where the GPUs cannot be joined,
// queue_ stays null on all ranks.
Status GpuPerformer::Join() {
  if (std::exchange(joined_, true)) return Status::Ok();
  TUTTI_ASSIGN(const std::shared_ptr<Gpu> gpu, Find(-1));
  TUTTI_ASSIGN(Joined joined, hooks_.join(gpu));
  if (joined.operations.empty()) return Status::Ok();
  combines_ = joined.combines;
  queue_ = std::make_unique<Performer>(std::move(joined.operations), rank_, members_, activity_,
                                       std::make_unique<GpuTensorMemory>(gpu));
  return Status::Ok();
}

// Returns the same on all ranks. (A communicator of one GPU has no scaled sum.)
bool GpuPerformer::Queues(const Response& response) const {
  const Request& request = response.agreement().request;
  if (!queue_ || !queue_->Takes(request, response.agreement().bytes())) return false;
  if (!request.reduces()) return true;
  if (request.op == ReduceOp::kAdasum) return combines_;
  if (!NeedsStaging(request)) return true;
  const bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  return Scales(request) && sums && Info(request.type).is_float && members_.size() > 1 &&
         WireType(request) == Info(request.type).wire;
}

Status GpuPerformer::Perform(std::vector<Response>& batch) {
  if (!joined_ && activity_) activity_(batch, "INIT_NCCL");
  TUTTI_TRY(Join());
  return Queues(batch.front()) ? Queue(batch) : GoThroughHost(batch);
}

// Queues the batch: the set's stream waits for the marks of all tensors, and a mark behind the work
// tells the users' streams when the results are ready.
Status GpuPerformer::Queue(std::vector<Response>& batch) {
  TUTTI_ASSIGN(const std::shared_ptr<Gpu> gpu, Find(-1));
  for (Response& response : batch) {
    Tensor* const tensor = response.pending.get();
    if (tensor == nullptr) continue;
    TUTTI_TRY(gpu->Await(gpu->stream(), *tensor->ready));
    if (tensor->request.kind == OpKind::kAlltoall) TUTTI_TRY(host_.ShareSplits(response));
  }
  TUTTI_TRY(queue_->Perform(batch));
  TUTTI_ASSIGN(const std::shared_ptr<GpuMark> done, gpu->Mark(gpu->stream()));
  if (trace_.wanted()) Trace(batch, gpu, done);
  for (Response& response : batch) {
    if (Tensor* const tensor = response.pending.get()) {
      OutcomeOf(*tensor->ticket, gpu).done = done;
      tensor->ready.reset();
    }
  }
  return Status::Ok();
}

void GpuPerformer::Trace(const std::vector<Response>& batch, const std::shared_ptr<Gpu>& gpu,
                         const std::shared_ptr<GpuMark>& done) {
  const Request& request = batch.front().agreement().request;
  GpuTrace::Batch queued;
  queued.gpu = gpu;
  queued.operation = UpperName(request.kind);
  queued.mover = queue_->MoverOf(request, batch.front().agreement().bytes());
  queued.done = done;
  for (const Response& response : batch) {
    const Tensor* const tensor = response.pending.get();
    if (tensor == nullptr) continue;
    queued.tensors.push_back(tensor->name);
    queued.ready.push_back(tensor->ready);
  }
  if (!queued.tensors.empty()) trace_.Add(std::move(queued));
}

// Copies of the inputs stand in for the inputs, unnoticed by the rest of the code.
Status GpuPerformer::GoThroughHost(std::vector<Response>& batch) {
  TUTTI_ASSIGN(const std::shared_ptr<Gpu> gpu, Find(-1));
  struct Place {
    OwnedBytes input;
    const void* from = nullptr;
    void* to = nullptr;
  };
  std::vector<Place> places(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    Tensor* const tensor = batch[i].pending.get();
    if (tensor == nullptr) continue;
    const auto bytes = static_cast<size_t>(tensor->request.bytes());
    Place& place = places[i];
    place.from = tensor->input;
    place.to = tensor->output;
    place.input = AllocateBytes(bytes);
    if (!place.input)
      return SystemError("there is no memory for {} bytes of \"{}\"", bytes, tensor->name);
    TUTTI_TRY(gpu->Await(gpu->stream(), *tensor->ready));
    if (tensor->input != nullptr) TUTTI_TRY(gpu->Copy(place.input.get(), tensor->input, bytes));
    tensor->input = place.input.get();
    tensor->output = nullptr;
  }
  // The host reads the copies, and must wait until the GPU has written them.
  TUTTI_TRY(gpu->Synchronize());
  TUTTI_TRY(host_.Perform(batch));
  for (size_t i = 0; i < batch.size(); ++i) {
    Tensor* const tensor = batch[i].pending.get();
    if (tensor == nullptr) continue;
    Ticket& ticket = *tensor->ticket;
    const size_t bytes = BytesOf(ticket.output_shape, tensor->request.type);
    GpuOutcome& outcome = OutcomeOf(ticket, gpu);
    if (places[i].to == nullptr) {
      TUTTI_ASSIGN(outcome.owned, gpu->Allocate(bytes));
      places[i].to = outcome.owned;
    }
    TUTTI_TRY(gpu->Copy(places[i].to, ticket.output, bytes));
    tensor->input = places[i].from;
    tensor->output = places[i].to;
    tensor->ready.reset();
    ticket.output = places[i].to;
  }
  TUTTI_ASSIGN(const std::shared_ptr<GpuMark> done, gpu->Mark(gpu->stream()));
  TUTTI_TRY(gpu->Synchronize());
  for (Response& response : batch) {
    Tensor* const tensor = response.pending.get();
    if (tensor == nullptr) continue;
    tensor->ticket->owned.reset();
    tensor->ticket->gpu->done = done;
  }
  return Status::Ok();
}

}  // namespace tutti::coordinator
