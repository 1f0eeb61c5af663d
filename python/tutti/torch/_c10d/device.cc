// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

namespace tutti_c10d {
namespace {

using c10::impl::VirtualGuardImpl;

c10::Stream CurrentStream(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

// Returns CUDA's handle of a stream. Before version 2.11 only PyTorch's libraries for CUDA tell.
template <typename Guard>
cudaStream_t NativeStream(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return static_cast<cudaStream_t>(guard.getStreamNativeHandle(stream));
  } else {
    TORCH_CHECK(false, "the tutti backend takes tensors on GPUs with PyTorch 2.11 and later");
  }
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<const Library> library, ncclComm_t comm,
                                       c10::Device device)
    : library_(std::move(library)),
      comm_(comm),
      device_(device),
      side_stream_(VirtualGuardImpl(device.type())
                       .getStreamFromGlobalPool(device, /*isHighPriority=*/false)) {}

void DeviceCommunicator::CheckOpen() const {
  if (ended_) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
}

void DeviceCommunicator::Run(const Operation& operation) {
  const c10::DeviceGuard guard(device_);
  const c10::Stream current = CurrentStream(device_);
  const cudaStream_t stream = NativeStream(VirtualGuardImpl(device_.type()), current);
  const MutexLock lock(mutex_);
  CheckOpen();
  operation.RunHere(*library_, comm_, stream);
}

ncclRedOp_t DeviceCommunicator::MakePreMulSum(void* factor, ncclDataType_t type,
                                              std::shared_ptr<void>& keep) {
  CheckOpen();
  return MakeOperator(library_, comm_, factor, type, keep);
}

void DeviceCommunicator::AwaitStreams() const {
  const VirtualGuardImpl guard(device_.type());
  guard.synchronizeStream(CurrentStream(device_));
  guard.synchronizeStream(side_stream_);
}

void DeviceCommunicator::CheckHealthy() const {
  ncclResult_t state = ncclSuccess;
  if (aborted_) C10_THROW_ERROR(DistBackendError, "the group was aborted");
  if (ended_) return;
  library_->Check(library_->ncclCommGetAsyncError(comm_, &state), comm_);
  if (state != ncclInProgress) library_->Check(state, comm_);
}

bool DeviceCommunicator::healthy() const {
  try {
    CheckHealthy();
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

void DeviceCommunicator::End() {
  if (!ended_.exchange(true)) library_->ncclCommDestroy(comm_);
}

void DeviceCommunicator::Abort() {
  if (ended_.exchange(true)) return;
  aborted_ = true;
  library_->ncclCommAbort(comm_);
}

StreamScope::StreamScope(const DeviceCommunicator* communicator, bool waits) {
  if (communicator == nullptr) return;
  const c10::Stream current = CurrentStream(communicator->device());
  if (waits || current == communicator->side_stream()) return;
  c10::Event begun(communicator->device().type());
  begun.record(current);
  begun.block(communicator->side_stream());
  guard_.reset_stream(communicator->side_stream());
}

DeviceWork::DeviceWork(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                       std::vector<at::Tensor> outputs, uint64_t sequence,
                       std::shared_ptr<const DeviceCommunicator> communicator)
    : TuttiWork(type, title, inputs, std::move(outputs), sequence),
      communicator_(std::move(communicator)),
      inputs_(inputs),
      done_(communicator_->device().type()),
      stream_(CurrentStream(communicator_->device())) {}

void DeviceWork::Queued() {
  const VirtualGuardImpl guard(communicator_->device().type());
  stream_ = guard.getStream(communicator_->device());
  done_.record(stream_);
  // The caller's tensors belong to other streams, and their memory must not be given away before
  // this stream has used the memory.
  for (const std::vector<at::Tensor>& tensors : {inputs_, result()})
    for (const at::Tensor& tensor : tensors)
      if (tensor.numel() > 0) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
  finish();
  LeaveBatch();
}

bool DeviceWork::isCompleted() {
  if (exception()) return true;
  return done_.was_marked_for_recording() && done_.query();
}

bool DeviceWork::isSuccess() const {
  return !exception() && done_.was_marked_for_recording() && done_.query() &&
         communicator_->healthy();
}

void DeviceWork::synchronize() {
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  TORCH_CHECK(done_.was_marked_for_recording(),
              "the operation was not begun; end coalescing first");
  communicator_->CheckHealthy();
  done_.block(CurrentStream(communicator_->device()));
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (timeout <= std::chrono::milliseconds::zero()) return true;
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!done_.query()) {
    communicator_->CheckHealthy();
    if (std::chrono::steady_clock::now() >= until)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("the operation is not done after ", timeout.count(), " ms"));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  const MutexLock lock(device_mutex_);
  if (!device_future_) {
    device_future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                 std::vector<c10::Device>{communicator_->device()});
    // The future notes the ends of the current streams, for callers that take its value.
    const c10::StreamGuard guard(stream_);
    device_future_->markCompleted(c10::IValue(result()));
  }
  return device_future_;
}

}  // namespace tutti_c10d
