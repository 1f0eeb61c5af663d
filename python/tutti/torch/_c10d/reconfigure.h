// SPDX-License-Identifier: Apache-2.0
#pragma once

// A group whose members change while their processes live on: PyTorch's contract of
// enable_reconfigure (docs/elastic.md). Older versions of PyTorch have no such contract, and then
// there is nothing here.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "backend.h"

namespace tutti_c10d {

struct Attempt;

// Passes every call on to the present group of this rank. There is no present group before the
// first reconfigure and after abort, and operations then throw a DistBackendError. Any thread may
// use the object, as far as threads may share a group.
class ReconfigurableBackend : public c10d::Backend {
 public:
  // Waits for nobody. `store` is the store of all members. Of the options, `left` and `forget` must
  // be empty.
  ReconfigurableBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                        GroupOptions options);

  bool supportsReconfigure() const override { return true; }

  // Returns the name of this rank among all ranks of the store, until the group changes.
  c10d::ReconfigureHandle get_reconfigure_handle() const override;

  // Makes the group of the given members. Blocks until all of them have called. All members get the
  // new group, or the present group remains on all of them, and they throw a DistBackendError with
  // the same reason. RuntimeError for a wrong list of handles, for a uuid that is used again, and
  // where another thread is inside of the call. The work is done at the return.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void eagerConnectSingleDevice(at::Device device) override;
  void setSequenceNumberForGroup() override {}  // The number begins with 0 in each group.
  uint64_t getSequenceNumberForGroup() override;
  // A group that the program has aborted is no error.
  c10d::ErrorType getError() override;
  void startCoalescing() override { Group()->startCoalescing(); }
  WorkPtr endCoalescing() override { return Group()->endCoalescing(); }
  void shutdown() override;
  void abort() override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return Group()->allreduce(tensors, opts);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return Group()->allreduce_sparse(tensors, opts);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override {
    return Group()->allreduce_coalesced(tensors, opts);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return Group()->reduce(tensors, opts);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override {
    return Group()->reduce_scatter(outputs, inputs, opts);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override {
    return Group()->_reduce_scatter_base(output, input, opts);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    return Group()->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return Group()->broadcast(tensors, opts);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override {
    return Group()->allgather(outputs, inputs, opts);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override {
    return Group()->allgather_coalesced(outputs, inputs, opts);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    return Group()->_allgather_base(output, input, opts);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override {
    return Group()->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override {
    return Group()->gather(outputs, inputs, opts);
  }
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& opts) override {
    return Group()->gather_single(output, input, opts);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override {
    return Group()->scatter(outputs, inputs, opts);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return Group()->alltoall(outputs, inputs, opts);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override {
    return Group()->alltoall_base(output, input, output_splits, input_splits, opts);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override { return Group()->barrier(opts); }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    Group()->monitoredBarrier(opts, wait_all_ranks);
  }
  WorkPtr send(Tensors& tensors, int target, int tag) override {
    return Group()->send(tensors, target, tag);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return Group()->recv(tensors, source, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return Group()->recvAnysource(tensors, tag);
  }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override {
    return Group()->split(store, ranks, opts);
  }
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override {
    return Group()->merge(store, opts, rank, size);
  }

 private:
  using GroupPtr = c10::intrusive_ptr<TuttiBackend>;

  // Returns the present group. Throws where there is none.
  GroupPtr Group() const;
  // Returns the present group, or null.
  GroupPtr Present() const;
  GroupPtr Exchange(GroupPtr group);
  Attempt AttemptOf(const c10d::ReconfigureOptions& opts);
  Limit LimitOf(const c10d::ReconfigureOptions& opts) const;
  GroupPtr Made(const Attempt& attempt);
  void Take(GroupPtr group, const Attempt& attempt);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<const Library> library_;
  std::atomic<bool> reconfiguring_{false};
  // Those with which this rank has called reconfigure. Belongs to the thread inside of the call.
  std::set<int64_t> uuids_;

  mutable Mutex mutex_;
  GroupOptions options_ TUTTI_GUARDED_BY(mutex_);
  GroupPtr group_ TUTTI_GUARDED_BY(mutex_);
  std::string handle_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti_c10d

#endif  // C10D_BACKEND_HAS_RECONFIGURE
