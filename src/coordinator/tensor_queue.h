#pragma once

// The queue of a process set: requested tensors that no round has taken yet.
//
// A tensor belongs to its home (name_table.h) while nothing of its name is pending. Otherwise a
// tensor goes this way:
//
//   from      when                            to          who has it
//   idle      Add: a caller asks for it       queued      the queue
//   queued    Take: a round begins            negotiated  the controller
//   negotiated  the round's result names it   dispatched  the driver, or the mover
//   any       Return: it is done or failed    idle        its home
//
// One thread at a time: the process set guards it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/gpu_performer.h"
#include "coordinator/name_table.h"
#include "coordinator/tensor.h"
#include "tutti/coordinator_c.h"

namespace tutti::coordinator {

// Returns an operation on a float32 tensor in host memory, without scale factors; a reduction is a
// sum. The caller adds shape, memory, and further fields of the operation.
tuttiTensor_t MakeTensor(const char* name, OpKind kind);

class TensorQueue {
 public:
  // `members` are the ranks of the set, as those of the job. `gpu` admits tensors on GPUs.
  TensorQueue(const std::vector<int>& members, GpuPerformer& gpu) : members_(members), gpu_(gpu) {}

  // Enters all tensors, or none of them. `group` names the group that they form, or is null; each
  // tensor has a ticket. InvalidArgument for a tensor that is wrong by itself, InvalidUsage for a
  // name that is still pending. Takes the tickets of the tensors that entered. Reads what the
  // caller points to before it returns.
  Status Add(std::span<const tuttiTensor_t> tensors, const char* group,
             std::span<TicketHold> tickets, int64_t now_ns);
  // Swaps the queued tensors for the empty vector `taken`.
  void Take(std::vector<std::unique_ptr<Tensor>>& taken) { queued_.swap(taken); }
  // Gives a tensor back to its home, and returns its ticket.
  TicketHold Return(std::unique_ptr<Tensor> tensor);

  bool empty() const { return queued_.empty(); }
  size_t size() const { return queued_.size(); }
  const Tensor& at(size_t i) const { return *queued_[i]; }
  NameTable& names() { return names_; }
  const NameTable& names() const { return names_; }

 private:
  Status AddOne(const tuttiTensor_t& asked, const RequestFields& fields, std::string_view group,
                int64_t now_ns);
  Status Describe(const tuttiTensor_t& asked, const RequestFields& fields, std::string_view group,
                  Tensor& tensor) const;

  const std::vector<int>& members_;
  GpuPerformer& gpu_;
  NameTable names_;
  std::vector<std::unique_ptr<Tensor>> queued_;
  uint64_t order_ = 0;  // counts tensors; ranks order agreed tensors by this number
};

}  // namespace tutti::coordinator
