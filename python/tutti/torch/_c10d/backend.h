// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backend `tutti` of torch.distributed in C++, for tensors in host memory and on GPUs of CUDA.
// init_process_group("tutti") makes this backend where it can be compiled; elsewhere
// python/tutti/torch/distributed.py stands in, for host memory.
//
// The backend uses nccl.h and tutti/tutti.h alone of the library, and the C++ headers of PyTorch,
// not those of Python. All files of this folder are compiled as one
// (python/tutti/torch/_native.py).
//
//   backend.h       the functions that PyTorch calls: checks tensors, plans operations
//   movement.cc     the functions that only move data
//   sparse.cc       the sum of sparse tensors
//   reductions.h    operators and types that the library lacks
//   ordered.h       the communicator of the host, whose operations run one after another
//   device.h        the communicator of GPUs, on the streams of PyTorch
//   messages.h      send and recv, each pair of ranks and each tag for itself
//   reconfigure.h   a group whose members change
//   agreement.h     how the members of a changed group decide together
//   rendezvous.h    how ranks meet through the store
//   work.h          the objects for which PyTorch waits
//   profiler.h      entries in PyTorch's profiler
//   library.h       libtutti's functions
//   mutex.h         a mutex and its guarded members

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "device.h"
#include "messages.h"
#include "mutex.h"
#include "ordered.h"
#include "profiler.h"
#include "reductions.h"
#include "rendezvous.h"

namespace tutti_c10d {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The parameters of a new group.
struct GroupOptions {
  std::string library;  // the name under which libtutti was loaded
  std::chrono::milliseconds timeout{};
  std::vector<std::string> forget;  // as in Meeting
  // Called once, with null, when shutdown has ended the group. Null stands for no call.
  void (*left)(void*) = nullptr;
};

// The meeting of ranks that have agreed to meet, with a store that has served no other meeting.
struct Arranged {
  Limit limit;
  std::function<void()> check;  // as in Meeting
};

// One group of ranks. Collectives run in the order in which they are asked for; sends and receives
// between two ranks in one direction and with one tag keep their order, too, and wait for nothing
// else. ValueError for a wrong call. Errors of the library are a DistBackendError, thrown by the
// call where its caller waits, else by the Work. Collectives are asked for by one thread at a time,
// as everywhere in torch.distributed.
//
// The tensors of an operation lie on one device. Operations on GPUs have a communicator of their
// own for each device of a rank. The communicator is made at the first such operation: by all ranks
// of the group together, and by the two ranks of a message.
class TuttiBackend : public c10d::Backend {
 public:
  // Blocks until all ranks of the group have come. Ranks whose meeting is not arranged wait for
  // TUTTI_INIT_TIMEOUT_S.
  TuttiBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, GroupOptions options,
               const Arranged* arranged = nullptr);
  // Gives up work under way; a program that wants the work done calls shutdown.
  ~TuttiBackend() override;

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  // Sets the time-out of operations in host memory that begin from now on.
  void setTimeout(std::chrono::milliseconds timeout) override;
  void eagerConnectSingleDevice(at::Device device) override { DeviceFor(device); }
  void setSequenceNumberForGroup() override {}  // The number begins with 0 on all ranks.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  // Throws the error of the communicator of the host, if any.
  void CheckHealthy() const { ordered_->CheckHealthy(); }

  // Operations between the two calls are begun as ever, but in the background, and messages between
  // GPUs together at the end. The Work that endCoalescing returns ends with the last operation.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Reductions
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // Waits until all ranks have called; the rest may go on in the background. SUM only.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  // The tensors of the list may be of several sizes, on all ranks alike.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  // Moving data
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  // Ranks may bring tensors of several sizes.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  // Overrides PyTorch's function of 2.14 and later. `output` counts on the root only.
  virtual WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                                const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;

  // Meeting
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Between two ranks
  WorkPtr send(Tensors& tensors, int target, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Returns a new group of the given ranks of this group, null on all further ranks. Its ranks meet
  // through the store.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override;

  // Ends the group's connections once its messages are done; collectives that nobody waited for are
  // given up. Does nothing in a child of fork.
  void shutdown() override;
  // Gives up work under way, from any thread, and ends the connections. Does not use the store,
  // which may be what hangs.
  void abort() override;
  // Ends the connections, from any thread, and gives up what is not done. Where nothing is under
  // way, the group ends in good order.
  void Leave();

 private:
  // A call of PyTorch: its name, and the results of its Work.
  struct Asked {
    c10d::OpType type;
    const char* title;  // for the profiler
    const Tensors& inputs;
    const Tensors& outputs;
  };
  using Message = std::pair<at::Tensor, int>;  // a tensor and the other rank
  // The objects of a rank for one of its devices.
  struct OnDevice {
    OnDevice(std::shared_ptr<DeviceCommunicator> its_communicator, int size)
        : communicator(std::move(its_communicator)), reductions(*communicator, size) {}
    const std::shared_ptr<DeviceCommunicator> communicator;
    Reductions reductions;
  };
  // The place where an operation runs. During its life PyTorch's work on the device is part of the
  // operation.
  class Place {
   public:
    // The place of the tensors; the list may be empty. `waits`: the caller waits at once.
    Place(TuttiBackend& backend, const Tensors& tensors, bool waits);
    Reductions& reductions() const { return device ? device->reductions : backend_.reductions_; }

   private:
    TuttiBackend& backend_;

   public:
    OnDevice* const device;  // null: the host
    const bool waits;

   private:
    const StreamScope scope_;
  };
  // The messages between GPUs that were asked for since startCoalescing.
  struct CoalescedMessages {
    Operation operation;
    std::vector<c10::intrusive_ptr<DeviceWork>> works;
    Tensors tensors;
  };

  OnDevice& DeviceFor(at::Device device);
  std::shared_ptr<DeviceCommunicator> PairFor(int source, int target, int tag, at::Device device);
  std::shared_ptr<DeviceCommunicator> NewOnDevice(Meeting meeting, at::Device device);
  void CheckDevicesOpen() const TUTTI_REQUIRES(devices_mutex_);
  // Returns the group's communicators on GPUs, without the communicators of pairs of ranks.
  std::vector<std::shared_ptr<DeviceCommunicator>> Devices();
  // Returns all communicators on GPUs, including pairs of ranks, to end them. None is made from now
  // on.
  std::vector<std::shared_ptr<DeviceCommunicator>> TakeDevices();
  WorkPtr Run(const Place& place, Operation operation, const Asked& asked);
  c10::intrusive_ptr<TuttiWork> NewWork(const Asked& asked);
  // Adds a work of the next number to the operations since startCoalescing, if there are any.
  void Note(const c10::intrusive_ptr<TuttiWork>& work);
  c10::intrusive_ptr<DeviceWork> NewDeviceWork(const Asked& asked,
                                               std::shared_ptr<DeviceCommunicator> communicator);
  WorkPtr PutDeviceMessage(const Tensors& tensors, int source, int target, int tag);
  void RunCoalescedMessages();
  WorkPtr AllReduceAll(const Tensors& tensors, const c10d::ReduceOp& op, const Asked& asked,
                       bool waits);
  // Returns the numbers that all ranks bring, by rank. Waits for the ranks.
  std::vector<int64_t> GatherNumbers(int64_t number);
  WorkPtr ReduceScatterAll(const Tensors& outputs, const Tensors& inputs,
                           const c10d::ReduceScatterOptions& opts, c10d::OpType type);
  WorkPtr AllGatherAll(const Tensors& outputs, const Tensors& inputs,
                       const c10d::AllgatherOptions& opts, c10d::OpType type);
  // `targets` has a tensor for each rank on the root, and is empty elsewhere.
  WorkPtr GatherTo(const Tensors& targets, const c10d::GatherOptions& opts, const Asked& asked);
  void AddAllGather(Operation& operation, const at::Tensor& input, void* output) const;
  // Adds messages between many ranks at once; a rank's messages to itself are copied.
  void AddExchange(Operation& operation, const std::vector<Message>& sends,
                   const std::vector<Message>& receives) const;
  WorkPtr PutMessage(const Tensors& tensors, int source, int target, int tag);
  std::shared_ptr<MessageQueue> QueueOf(int source, int target, int tag);
  // Describes the first use of a connection with a rank of the group.
  Meeting MeetingWith(int peer, const std::string& key) const;
  std::vector<std::shared_ptr<MessageQueue>> TakeQueues();
  bool InChild() const;
  // Returns how long operations may wait without progress: the group's time-out. For the time-out
  // that all groups have by default, returns 0, and TUTTI_TIMEOUT_S decides.
  std::chrono::milliseconds WaitLimit() const;
  // Returns how long the first use of a connection waits for the other ranks: as operations do.
  Limit FirstUseLimit() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  GroupOptions options_;
  const int process_;  // A child of fork is no rank.
  const std::shared_ptr<const Library> library_;
  const Met met_;  // The communicator belongs to ordered_.
  // Shared with the threads of messages, which may outlive this object.
  const std::shared_ptr<OrderedCommunicator> ordered_;
  Reductions reductions_;
  uint64_t sequence_ = 0;
  int barriers_ = 0;
  // The works that were begun since startCoalescing.
  std::optional<std::vector<c10::intrusive_ptr<TuttiWork>>> coalesced_;
  std::shared_ptr<BatchEntry> batch_;  // null: nothing is profiled
  CoalescedMessages coalesced_messages_;

  mutable Mutex devices_mutex_;
  bool devices_closed_ TUTTI_GUARDED_BY(devices_mutex_) = false;
  std::map<int, std::unique_ptr<OnDevice>> devices_ TUTTI_GUARDED_BY(devices_mutex_);
  // By the lower rank, the higher rank, the tag and this rank's device.
  std::map<std::tuple<int, int, int, int>, std::shared_ptr<DeviceCommunicator>> pairs_
      TUTTI_GUARDED_BY(devices_mutex_);

  Mutex messages_mutex_;
  bool closed_ TUTTI_GUARDED_BY(messages_mutex_) = false;
  // By the sending rank, the receiving rank, and the tag.
  std::map<std::tuple<int, int, int>, std::shared_ptr<MessageQueue>> messages_
      TUTTI_GUARDED_BY(messages_mutex_);
};

}  // namespace tutti_c10d
