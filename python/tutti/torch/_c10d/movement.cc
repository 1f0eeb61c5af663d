// SPDX-License-Identifier: Apache-2.0
// The functions of the backend that move data without reducing it.

#include <algorithm>

#include "backend.h"
#include "checks.h"
#include "rendezvous.h"

namespace tutti_c10d {
namespace {

using c10d::OpType;

// Lists of all ranks below this size in total are gathered into one buffer and copied, which takes
// a single collective instead of a message to every rank.
constexpr int64_t kGatherAndCopyBytes = 1 << 20;

Tensors Flattened(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

bool AllOfSize(const Tensors& tensors, size_t bytes) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [bytes](const at::Tensor& tensor) { return tensor.nbytes() == bytes; });
}

// Returns whether the tensors lie one after another in memory, like the parts of a split tensor.
bool AreNeighbours(const Tensors& tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    const auto* end = static_cast<const char*>(tensors[i - 1].data_ptr()) + tensors[i - 1].nbytes();
    if (tensors[i].data_ptr() != end) return false;
  }
  return true;
}

// Returns the tensor's rows for each rank: the numbers of `splits`, or equally many for each rank.
Tensors Split(const at::Tensor& tensor, std::vector<int64_t> splits, int size) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, rows, " rows cannot be divided among ", size, " ranks");
    splits.assign(size, rows / size);
  }
  int64_t total = 0;
  for (const int64_t split : splits) total += split;
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size) && total == rows, "the splits ",
                    splits, " do not share out ", rows, " rows among ", size, " ranks");
  return tensor.split_with_sizes(splits);
}

}  // namespace

WorkPtr TuttiBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const Place place(*this, tensors, Waits(opts));
  Operation operation;
  for (const at::Tensor& tensor : tensors) {
    operation.Add([data = Checked(tensor).data_ptr(), bytes = tensor.nbytes(),
                   root = static_cast<int>(opts.rootRank),
                   call = library_->ncclBroadcast](ncclComm_t comm, cudaStream_t stream) {
      return call(data, data, bytes, ncclUint8, root, comm, stream);
    });
  }
  return Run(place, std::move(operation), {OpType::BROADCAST, "tutti:broadcast", tensors, tensors});
}

void TuttiBackend::AddAllGather(Operation& operation, const at::Tensor& input, void* output) const {
  operation.Add([send = input.data_ptr(), output, bytes = input.nbytes(),
                 call = library_->ncclAllGather](ncclComm_t comm, cudaStream_t stream) {
    return call(send, output, bytes, ncclUint8, comm, stream);
  });
}

WorkPtr TuttiBackend::AllGatherAll(const Tensors& outputs, const Tensors& inputs,
                                   const c10d::AllgatherOptions& opts, OpType type) {
  CheckAsMany(outputs, inputs);
  const Place place(*this, inputs, Waits(opts));
  Operation operation;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = Checked(outputs[i], "output");
    const at::Tensor& input = Checked(inputs[i], "input");
    TORCH_CHECK_VALUE(output.nbytes() == input.nbytes() * size_, "all_gather of ", input.numel(),
                      " elements from ", size_, " ranks does not give ", output.numel());
    AddAllGather(operation, input, output.data_ptr());
  }
  return Run(place, std::move(operation), {type, "tutti:all_gather_into_tensor", inputs, outputs});
}

WorkPtr TuttiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& opts) {
  return AllGatherAll({output}, {input}, opts, OpType::_ALLGATHER_BASE);
}

WorkPtr TuttiBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return AllGatherAll(outputs, inputs, opts, OpType::COALESCED);
}

WorkPtr TuttiBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = Only(inputs, "input");
  const Tensors& targets = ForEachRank(outputs, size_);
  for (const at::Tensor& target : targets) Checked(target, "output list's tensor");
  const Place place(*this, inputs, Waits(opts));
  Operation operation;
  // Every rank sees the sizes of all, and all therefore choose alike; the places of the targets
  // matter to the rank itself only.
  if (AllOfSize(targets, input.nbytes()) &&
      static_cast<int64_t>(input.nbytes()) * size_ <= kGatherAndCopyBytes) {
    if (AreNeighbours(targets)) {
      AddAllGather(operation, input, targets[0].data_ptr());
    } else {
      const at::Tensor whole = at::empty({static_cast<int64_t>(input.nbytes()) * size_},
                                         input.options().dtype(at::kByte));
      AddAllGather(operation, input, whole.data_ptr());
      operation.Then([whole, targets] { Share(whole, targets); });
    }
  } else {
    std::vector<Message> sends, receives;
    for (int rank = 0; rank < size_; ++rank) {
      sends.emplace_back(input, rank);
      receives.emplace_back(targets[rank], rank);
    }
    AddExchange(operation, sends, receives);
  }
  return Run(place, std::move(operation), {OpType::ALLGATHER, "tutti:all_gather", inputs, targets});
}

WorkPtr TuttiBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "there are ", outputs.size(),
                    " lists of outputs for ", size_, " ranks");
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int rank = 0; rank < size_; ++rank) {
      CheckAsMany(outputs[rank], inputs);
      sends.emplace_back(inputs[i], rank);
      receives.emplace_back(outputs[rank][i], rank);
    }
  }
  const Place place(*this, inputs, Waits(opts));
  Operation operation;
  AddExchange(operation, sends, receives);
  return Run(
      place, std::move(operation),
      {OpType::ALLGATHER_COALESCED, "tutti:all_gather_coalesced", inputs, Flattened(outputs)});
}

WorkPtr TuttiBackend::GatherTo(const Tensors& targets, const c10d::GatherOptions& opts,
                               const Asked& asked) {
  std::vector<Message> receives;
  for (size_t i = 0; i < targets.size(); ++i) receives.emplace_back(targets[i], i);
  const Place place(*this, asked.inputs, Waits(opts));
  Operation operation;
  AddExchange(operation, {{Only(asked.inputs, "input"), static_cast<int>(opts.rootRank)}},
              receives);
  return Run(place, std::move(operation), asked);
}

WorkPtr TuttiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                             const c10d::GatherOptions& opts) {
  return GatherTo(rank_ == opts.rootRank ? ForEachRank(outputs, size_) : Tensors(), opts,
                  {OpType::GATHER, "tutti:gather", inputs, Flattened(outputs)});
}

WorkPtr TuttiBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                    const c10d::GatherOptions& opts) {
  Tensors targets;
  if (rank_ == opts.rootRank) {
    const int64_t count = Checked(input, "input").numel();
    TORCH_CHECK_VALUE(Checked(output, "output").numel() == count * size_, "gather of ", count,
                      " elements from ", size_, " ranks does not give ", output.numel());
    CheckSameType(output, input, "gather");
    const at::Tensor flat = output.view({-1});
    for (int rank = 0; rank < size_; ++rank) targets.push_back(flat.narrow(0, rank * count, count));
  }
  return GatherTo(targets, opts, {OpType::GATHER, "tutti:gather_single", {input}, {output}});
}

WorkPtr TuttiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                              const c10d::ScatterOptions& opts) {
  const int root = static_cast<int>(opts.rootRank);
  std::vector<Message> sends;
  if (rank_ == root) {
    const Tensors& sources = ForEachRank(inputs, size_);
    for (int rank = 0; rank < size_; ++rank) sends.emplace_back(sources[rank], rank);
  }
  const Place place(*this, outputs, Waits(opts));
  Operation operation;
  AddExchange(operation, sends, {{Only(outputs, "output"), root}});
  return Run(place, std::move(operation),
             {OpType::SCATTER, "tutti:scatter", Flattened(inputs), outputs});
}

WorkPtr TuttiBackend::alltoall(Tensors& outputs, Tensors& inputs,
                               const c10d::AllToAllOptions& opts) {
  ForEachRank({outputs}, size_);
  ForEachRank({inputs}, size_);
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < size_; ++rank) {
    sends.emplace_back(inputs[rank], rank);
    receives.emplace_back(outputs[rank], rank);
  }
  const Place place(*this, inputs, Waits(opts));
  Operation operation;
  AddExchange(operation, sends, receives);
  return Run(place, std::move(operation), {OpType::ALLTOALL, "tutti:all_to_all", inputs, outputs});
}

WorkPtr TuttiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const c10d::AllToAllOptions& opts) {
  // Whether another rank's splits are even is not known here, and messages serve both cases.
  const Tensors sources = Split(Checked(input, "input"), input_splits, size_);
  const Tensors targets = Split(Checked(output, "output"), output_splits, size_);
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < size_; ++rank) {
    sends.emplace_back(sources[rank], rank);
    receives.emplace_back(targets[rank], rank);
  }
  const Place place(*this, {input}, Waits(opts));
  Operation operation;
  AddExchange(operation, sends, receives);
  return Run(place, std::move(operation),
             {OpType::ALLTOALL_BASE, "tutti:all_to_all_single", {input}, {output}});
}

void TuttiBackend::AddExchange(Operation& operation, const std::vector<Message>& sends,
                               const std::vector<Message>& receives) const {
  Tensors mine, kept;
  for (const auto& [tensor, rank] : sends)
    if (rank == rank_) mine.push_back(Checked(tensor, "input"));
  for (const auto& [tensor, rank] : receives)
    if (rank == rank_) kept.push_back(Checked(tensor, "output"));
  for (size_t i = 0; i < std::min(mine.size(), kept.size()); ++i) {
    TORCH_CHECK_VALUE(mine[i].nbytes() == kept[i].nbytes(), "this rank's own ", mine[i].nbytes(),
                      " bytes are for a tensor of ", kept[i].nbytes());
    if (mine[i].nbytes() == 0 || mine[i].data_ptr() == kept[i].data_ptr()) continue;
    operation.Then([from = mine[i], to = kept[i]] { CopyBytes(to, 0, from, 0, from.nbytes()); });
  }
  for (const auto& [tensor, rank] : sends) {
    if (rank == rank_ || Checked(tensor, "input").nbytes() == 0) continue;
    operation.Add([data = tensor.data_ptr(), bytes = tensor.nbytes(), to = rank,
                   call = library_->ncclSend](ncclComm_t comm, cudaStream_t stream) {
      return call(data, bytes, ncclUint8, to, comm, stream);
    });
  }
  for (const auto& [tensor, rank] : receives) {
    if (rank == rank_ || Checked(tensor, "output").nbytes() == 0) continue;
    operation.Add([data = tensor.data_ptr(), bytes = tensor.nbytes(), source = rank,
                   call = library_->ncclRecv](ncclComm_t comm, cudaStream_t stream) {
      return call(data, bytes, ncclUint8, source, comm, stream);
    });
  }
}

// Between two ranks

std::shared_ptr<MessageQueue> TuttiBackend::QueueOf(int source, int target, int tag) {
  const MutexLock lock(messages_mutex_);
  if (closed_) C10_THROW_ERROR(DistBackendError, "the group was destroyed or aborted");
  std::shared_ptr<MessageQueue>& queue = messages_[{source, target, tag}];
  if (!queue) {
    const bool receives = rank_ == target;
    // The queue's thread may outlive this object.
    auto connect = [library = library_, store = store_,
                    meeting = MeetingWith(receives ? source : target,
                                          c10::str("pipe/", source, "/", target, "/", tag)),
                    receives,
                    group = ordered_](bool any_source, const std::function<void()>& check) {
      Meeting one = meeting;
      one.rank = receives ? 1 : 0;
      one.warns = !any_source;
      one.check = [&] {
        check();
        group->CheckPresent(one.peer);
      };
      return NewCommunicator(*library, *store, one).comm;
    };
    queue = MessageQueue::Start(library_, connect, receives ? source : target, receives);
  }
  return queue;
}

Meeting TuttiBackend::MeetingWith(int peer, const std::string& key) const {
  Meeting meeting;
  meeting.key = key;
  meeting.size = 2;
  meeting.timeout = WaitLimit();
  meeting.limit = FirstUseLimit();
  meeting.shown_rank = rank_;
  meeting.peer = peer;
  meeting.note = met_.note;
  meeting.whom = c10::str("rank ", peer);
  meeting.what = "the connection of their first message";
  return meeting;
}

std::vector<std::shared_ptr<MessageQueue>> TuttiBackend::TakeQueues() {
  const MutexLock lock(messages_mutex_);
  closed_ = true;
  std::vector<std::shared_ptr<MessageQueue>> taken;
  for (auto& [key, queue] : messages_) taken.push_back(std::move(queue));
  messages_.clear();
  return taken;
}

WorkPtr TuttiBackend::PutMessage(const Tensors& tensors, int source, int target, int tag) {
  const at::Tensor& tensor = Only(tensors);
  const int other = source == rank_ ? target : source;
  TORCH_CHECK_VALUE(other >= 0 && other < size_ && other != rank_, "rank ", rank_, " of ", size_,
                    " has no message to or from rank ", other);
  const bool sends = source == rank_;
  const char* const title = sends ? "tutti:send" : "tutti:recv";
  const GroupEntry entry(*this, {title, tensors, tensors, sequence_ + 1});
  if (tensor.is_cuda()) return PutDeviceMessage(tensors, source, target, tag);
  const auto work = NewWork({sends ? OpType::SEND : OpType::RECV, title, tensors, tensors});
  QueueOf(source, target, tag)->Put(std::make_shared<MessageRequest>(tensor, work, 0));
  return work;
}

WorkPtr TuttiBackend::send(Tensors& tensors, int target, int tag) {
  return PutMessage(tensors, rank_, target, tag);
}

WorkPtr TuttiBackend::recv(Tensors& tensors, int source, int tag) {
  return PutMessage(tensors, source, rank_, tag);
}

WorkPtr TuttiBackend::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK_VALUE(size_ > 1, "there is no other rank to receive from");
  TORCH_CHECK_VALUE(Only(tensors).is_cpu(),
                    "a tensor on a GPU is received from a rank that is named");
  constexpr const char* kTitle = "tutti:recvAnySource";
  const GroupEntry entry(*this, {kTitle, tensors, tensors, sequence_ + 1});
  const auto work = NewWork({OpType::RECVANYSOURCE, kTitle, tensors, tensors});
  const auto request = std::make_shared<MessageRequest>(tensors[0], work, size_ - 1);
  for (int source = 0; source < size_; ++source)
    if (source != rank_) QueueOf(source, rank_, tag)->Put(request);
  return work;
}

}  // namespace tutti_c10d
