// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "checks.h"
#include "rendezvous.h"

namespace tutti_c10d {

using c10d::OpType;

namespace {

// An arranged meeting of live ranks takes some 10 ms on two busy cores.
constexpr std::chrono::milliseconds kLeastForArranged{500};

// Makes the communicator of a group. All ranks come at once, so that a rank that does not come is
// missing at the start of the job.
Met MeetAll(const Library& library, c10d::Store& store, int rank, int size,
            std::chrono::milliseconds timeout, std::vector<std::string> forget,
            const Arranged* arranged) {
  constexpr const char* kSetting = "TUTTI_INIT_TIMEOUT_S";
  Meeting meeting;
  meeting.key = "id";
  meeting.rank = meeting.shown_rank = rank;
  meeting.size = size;
  meeting.timeout = timeout;
  if (arranged != nullptr) {
    meeting.limit = arranged->limit;
    meeting.least_for_init = kLeastForArranged;
    meeting.check = arranged->check;
    meeting.fresh = true;
  } else {
    meeting.limit = {library.SecondsOf(kSetting), kSetting};
  }
  meeting.whom = "the other ranks";
  meeting.what = "the group";
  meeting.forget = std::move(forget);
  return NewCommunicator(library, store, meeting);
}

}  // namespace

TuttiBackend::TuttiBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           GroupOptions options, const Arranged* arranged)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      process_(getpid()),
      library_(Library::Open(options_.library)),
      met_(MeetAll(*library_, *store_, rank, size, WaitLimit(), options_.forget, arranged)),
      ordered_(std::make_shared<OrderedCommunicator>(library_, met_.comm)),
      reductions_(*ordered_, size) {}

TuttiBackend::~TuttiBackend() { Leave(); }

void TuttiBackend::Leave() {
  if (InChild()) return;
  for (const auto& queue : TakeQueues()) queue->Abandon();
  for (const auto& communicator : TakeDevices()) communicator->Abort();
  ordered_->Leave();
}

std::chrono::milliseconds TuttiBackend::WaitLimit() const {
  constexpr std::chrono::seconds kLongest{10'000'000};  // the longest of tuttiConfig_t
  return options_.timeout == kBackendDefaultTimeout
             ? std::chrono::milliseconds(0)
             : std::min<std::chrono::milliseconds>(options_.timeout, kLongest);
}

Limit TuttiBackend::FirstUseLimit() const {
  constexpr const char* kSetting = "TUTTI_TIMEOUT_S";
  const std::chrono::milliseconds own = WaitLimit();
  if (own.count() > 0) return {own, "the timeout of the group"};
  return {library_->SecondsOf(kSetting), kSetting};
}

void TuttiBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_.timeout = timeout;
  const std::chrono::milliseconds limit = FirstUseLimit().time;
  ordered_->SetTimeout(limit);
  const MutexLock lock(messages_mutex_);
  for (const auto& [key, queue] : messages_) queue->SetTimeout(limit);
}

bool TuttiBackend::InChild() const { return getpid() != process_; }

c10::intrusive_ptr<c10d::Backend::Options> TuttiBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("tutti", options_.timeout);
}

c10d::ErrorType TuttiBackend::getError() {
  const auto on_devices = Devices();
  const bool healthy =
      ordered_->healthy() && std::all_of(on_devices.begin(), on_devices.end(),
                                         [](const auto& each) { return each->healthy(); });
  return healthy ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

// Places

TuttiBackend::Place::Place(TuttiBackend& backend, const Tensors& tensors, bool waits_at_once)
    : backend_(backend),
      device(tensors.empty() || !tensors[0].is_cuda() ? nullptr
                                                      : &backend.DeviceFor(tensors[0].device())),
      waits(waits_at_once && !backend.coalesced_),
      scope_(device ? device->communicator.get() : nullptr, waits) {}

TuttiBackend::OnDevice& TuttiBackend::DeviceFor(at::Device device) {
  size_t made = 0;
  {
    const MutexLock lock(devices_mutex_);
    CheckDevicesOpen();
    const auto found = devices_.find(device.index());
    if (found != devices_.end()) return *found->second;
    made = devices_.size();
  }
  TORCH_CHECK_VALUE(device.is_cuda() && device.has_index(), "a GPU of CUDA is wanted, not ",
                    device);
  Meeting meeting;
  // Ranks that use several devices each bring them in the same order.
  meeting.key = c10::str("gpu/", made);
  meeting.rank = meeting.shown_rank = rank_;
  meeting.size = size_;
  meeting.timeout = WaitLimit();
  meeting.limit = FirstUseLimit();
  meeting.whom = "the other ranks";
  meeting.what = "the communicator of their GPUs";
  auto on_device = std::make_unique<OnDevice>(NewOnDevice(std::move(meeting), device), size_);
  const MutexLock lock(devices_mutex_);
  CheckDevicesOpen();
  return *(devices_[device.index()] = std::move(on_device));
}

// Ends early where the group is shut down or aborted meanwhile.
std::shared_ptr<DeviceCommunicator> TuttiBackend::NewOnDevice(Meeting meeting, at::Device device) {
  meeting.device = device.index();
  meeting.check = [this, peer = meeting.peer] {
    if (peer >= 0) ordered_->CheckPresent(peer);
    const MutexLock lock(devices_mutex_);
    CheckDevicesOpen();
  };
  return std::make_shared<DeviceCommunicator>(
      library_, NewCommunicator(*library_, *store_, meeting).comm, device);
}

void TuttiBackend::CheckDevicesOpen() const {
  if (devices_closed_) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
}

std::vector<std::shared_ptr<DeviceCommunicator>> TuttiBackend::Devices() {
  const MutexLock lock(devices_mutex_);
  std::vector<std::shared_ptr<DeviceCommunicator>> all;
  for (auto& [index, on_device] : devices_) all.push_back(on_device->communicator);
  return all;
}

std::vector<std::shared_ptr<DeviceCommunicator>> TuttiBackend::TakeDevices() {
  const MutexLock lock(devices_mutex_);
  devices_closed_ = true;
  std::vector<std::shared_ptr<DeviceCommunicator>> taken;
  for (auto& [key, pair] : pairs_) taken.push_back(pair);
  for (auto& [index, on_device] : devices_) taken.push_back(on_device->communicator);
  pairs_.clear();
  return taken;
}

c10::intrusive_ptr<DeviceWork> TuttiBackend::NewDeviceWork(
    const Asked& asked, std::shared_ptr<DeviceCommunicator> communicator) {
  for (const Tensors* tensors : {&asked.inputs, &asked.outputs})
    for (const at::Tensor& tensor : *tensors)
      TORCH_CHECK_VALUE(tensor.device() == communicator->device(), "the operation is on ",
                        communicator->device(), ", but a tensor is on ", tensor.device());
  auto work = c10::make_intrusive<DeviceWork>(asked.type, asked.title, asked.inputs, asked.outputs,
                                              ++sequence_, std::move(communicator));
  Note(work);
  return work;
}

c10::intrusive_ptr<TuttiWork> TuttiBackend::NewWork(const Asked& asked) {
  auto work = c10::make_intrusive<TuttiWork>(asked.type, asked.title, asked.inputs, asked.outputs,
                                             ++sequence_);
  Note(work);
  return work;
}

void TuttiBackend::Note(const c10::intrusive_ptr<TuttiWork>& work) {
  if (!coalesced_) return;
  coalesced_->push_back(work);
  work->JoinBatch(batch_);
}

WorkPtr TuttiBackend::Run(const Place& place, Operation operation, const Asked& asked) {
  const GroupEntry entry(*this, {asked.title, asked.inputs, asked.outputs, sequence_ + 1});
  if (place.device != nullptr) {
    const auto work = NewDeviceWork(asked, place.device->communicator);
    place.device->communicator->Run(operation);
    work->Queued();
    return work;
  }
  const c10::intrusive_ptr<TuttiWork> work = NewWork(asked);
  if (!place.waits) {
    operation.Keep(asked.inputs);
    operation.Keep(asked.outputs);
  }
  ordered_->Run(std::move(operation), work, place.waits, asked.title);
  return work;
}

void TuttiBackend::startCoalescing() {
  TORCH_CHECK(!coalesced_, "startCoalescing was called twice");
  coalesced_.emplace();
  if (at::hasCallbacks()) batch_ = std::make_shared<BatchEntry>();
}

WorkPtr TuttiBackend::endCoalescing() {
  TORCH_CHECK(coalesced_, "endCoalescing without startCoalescing");
  auto parts = std::move(*coalesced_);
  coalesced_.reset();
  RunCoalescedMessages();
  if (const auto batch = std::exchange(batch_, nullptr)) batch->Done();
  return c10::make_intrusive<JoinedWork>(std::move(parts));
}

// Reductions

WorkPtr TuttiBackend::AllReduceAll(const Tensors& tensors, const c10d::ReduceOp& op,
                                   const Asked& asked, bool waits) {
  const Place place(*this, tensors, waits);
  Operation operation;
  for (const at::Tensor& tensor : tensors)
    place.reductions().AllReduce(operation, Checked(tensor), tensor, op);
  return Run(place, std::move(operation), asked);
}

WorkPtr TuttiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (!tensors.empty() && tensors[0].is_sparse()) return allreduce_sparse(tensors, opts);
  return AllReduceAll(tensors, opts.reduceOp,
                      {OpType::ALLREDUCE, "tutti:all_reduce", tensors, tensors}, Waits(opts));
}

WorkPtr TuttiBackend::allreduce_coalesced(Tensors& tensors,
                                          const c10d::AllreduceCoalescedOptions& opts) {
  return AllReduceAll(tensors, opts.reduceOp,
                      {OpType::ALLREDUCE_COALESCED, "tutti:all_reduce_coalesced", tensors, tensors},
                      Waits(opts));
}

WorkPtr TuttiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = Only(tensors);
  const Place place(*this, tensors, Waits(opts));
  Operation operation;
  // Off the root the tensor must remain unchanged.
  const at::Tensor target = opts.rootRank == rank_ ? tensor : at::empty_like(tensor);
  operation.Keep({target});
  place.reductions().Reduce(operation, tensor, target, opts.reduceOp,
                            static_cast<int>(opts.rootRank));
  return Run(place, std::move(operation), {OpType::REDUCE, "tutti:reduce", tensors, tensors});
}

WorkPtr TuttiBackend::ReduceScatterAll(const Tensors& outputs, const Tensors& inputs,
                                       const c10d::ReduceScatterOptions& opts, OpType type) {
  CheckAsMany(outputs, inputs);
  const Place place(*this, inputs, Waits(opts));
  Operation operation;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = Checked(outputs[i], "output");
    const at::Tensor& input = Checked(inputs[i], "input");
    TORCH_CHECK_VALUE(output.numel() * size_ == input.numel(), "reduce_scatter of ", input.numel(),
                      " elements among ", size_, " ranks does not give ", output.numel());
    CheckSameType(output, input, "reduce_scatter");
    place.reductions().ReduceScatter(operation, input, output, opts.reduceOp);
  }
  return Run(place, std::move(operation), {type, "tutti:reduce_scatter_tensor", inputs, outputs});
}

WorkPtr TuttiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& opts) {
  return ReduceScatterAll({output}, {input}, opts, OpType::_REDUCE_SCATTER_BASE);
}

WorkPtr TuttiBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  return ReduceScatterAll(outputs, inputs, opts, OpType::COALESCED);
}

WorkPtr TuttiBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = Only(outputs, "output");
  const Tensors& blocks = ForEachRank(inputs, size_);
  std::vector<size_t> counts;
  int64_t total = 0;
  for (const at::Tensor& block : blocks) {
    CheckSameType(output, Checked(block, "input list's tensor"), "reduce_scatter");
    counts.push_back(block.numel());
    total += block.numel();
  }
  TORCH_CHECK_VALUE(counts[rank_] == static_cast<size_t>(output.numel()),
                    "reduce_scatter of a block of ", counts[rank_], " elements does not give ",
                    output.numel());
  if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) counts.clear();
  const Place place(*this, outputs, Waits(opts));
  Operation operation;
  const at::Tensor flat = at::empty({total}, output.options());
  operation.Keep({flat});
  operation.Then([flat, blocks] { Join(blocks, flat); });
  place.reductions().ReduceScatter(operation, flat, output, opts.reduceOp, counts);
  return Run(place, std::move(operation),
             {OpType::REDUCE_SCATTER, "tutti:reduce_scatter", blocks, outputs});
}

// Meeting

WorkPtr TuttiBackend::barrier(const c10d::BarrierOptions& opts) {
  // With GPUs, the present work of the current streams and all collectives are done before the
  // ranks meet.
  for (const auto& communicator : Devices()) communicator->AwaitStreams();
  const Place place(*this, {}, Waits(opts));
  Operation operation;
  operation.Add([call = library_->tuttiBarrier](ncclComm_t comm, cudaStream_t stream) {
    return call(comm, stream);
  });
  return Run(place, std::move(operation), {OpType::BARRIER, "tutti:barrier", {}, {}});
}

void TuttiBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const bool given = opts.timeout >= std::chrono::milliseconds::zero();
  c10d::PrefixStore store(c10::str("barrier/", ++barriers_), store_);
  MonitoredBarrier(store, rank_, size_, given ? opts.timeout : options_.timeout, wait_all_ranks);
}

// Groups

c10::intrusive_ptr<c10d::Backend> TuttiBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  return merge(store, opts, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()));
}

c10::intrusive_ptr<c10d::Backend> TuttiBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const c10::intrusive_ptr<Options>& opts,
                                                      const int& rank, const int& size) {
  GroupOptions options = options_;
  options.left = nullptr;
  options.forget.clear();
  options.timeout = opts->timeout;
  auto own = c10::make_intrusive<c10d::PrefixStore>(opts->group_name + "/", store);
  return c10::make_intrusive<TuttiBackend>(std::move(own), rank, size, std::move(options));
}

void TuttiBackend::shutdown() {
  if (InChild()) return;
  const auto queues = TakeQueues();
  const auto begun = std::chrono::steady_clock::now();
  for (const auto& queue : queues) queue->BeginToClose();
  for (const auto& queue : queues) queue->AwaitRequests(begun);
  // All threads together have kReturnTime, however many do not return.
  const auto until = std::chrono::steady_clock::now() + kReturnTime;
  for (const auto& queue : queues) queue->Close(until);
  for (const auto& communicator : TakeDevices()) communicator->End();
  if (ordered_->End()) NoteLeft(*store_, met_.note, rank_, size_);
  if (auto* left = std::exchange(options_.left, nullptr)) left(nullptr);
}

void TuttiBackend::abort() {
  if (InChild()) return;
  for (const auto& queue : TakeQueues()) queue->Abandon();
  for (const auto& communicator : TakeDevices()) communicator->Abort();
  ordered_->Abort();
}

// Makes a group's backend and stores the backend in `group`, as the backend of tensors in host
// memory. `group` brings the ranks and the store, from which the keys `forget` are taken. In this
// way the backend comes to Python without Python's headers.
void AddBackend(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& library,
                double timeout_s, int64_t left, std::vector<std::string> forget) {
  GroupOptions options;
  options.library = library;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
  options.forget = std::move(forget);
  options.left = reinterpret_cast<void (*)(void*)>(left);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<TuttiBackend>(group->getStore(), group->getRank(),
                                                      group->getSize(), std::move(options)));
}

}  // namespace tutti_c10d

TORCH_LIBRARY(tutti_c10d, library) { library.def("add_backend", &tutti_c10d::AddBackend); }
