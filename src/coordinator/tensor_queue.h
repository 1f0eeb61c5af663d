#pragma once

// The queue of a process set: tensors that were asked for and that no round has taken yet.
//
// A tensor goes this way. It belongs to its home (name_table.h) while nothing of its name is
// pending, and to whoever has it in the meantime:
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

namespace tutti::coordinator {

class TensorQueue {
 public:
  // `members` are the ranks of the set, as those of the job. `gpu` admits tensors on GPUs.
  TensorQueue(const std::vector<int>& members, GpuPerformer& gpu) : members_(members), gpu_(gpu) {}

  // Enters all that is asked for, or nothing of it. InvalidArgument for what is wrong by itself,
  // InvalidUsage for a name that is still pending. Takes the tickets of what entered.
  Status Add(std::span<Ask> asks, int64_t now_ns);
  // Swaps what is queued for the empty vector `taken`.
  void Take(std::vector<std::unique_ptr<Pending>>& taken) { queued_.swap(taken); }
  // Gives a tensor back to its home, and returns its ticket.
  TicketHold Return(std::unique_ptr<Pending> tensor);

  bool empty() const { return queued_.empty(); }
  size_t size() const { return queued_.size(); }
  const Pending& at(size_t i) const { return *queued_[i]; }
  NameTable& names() { return names_; }
  const NameTable& names() const { return names_; }

 private:
  Status AddOne(Ask& ask, int64_t now_ns);
  Status Describe(const Ask& ask, Tensor& tensor) const;

  const std::vector<int>& members_;
  GpuPerformer& gpu_;
  NameTable names_;
  std::vector<std::unique_ptr<Pending>> queued_;
  uint64_t order_ = 0;  // counts tensors, by which ranks order what they agree on
};

}  // namespace tutti::coordinator
