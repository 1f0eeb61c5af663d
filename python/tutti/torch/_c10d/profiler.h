// SPDX-License-Identifier: Apache-2.0
#pragma once

// The entries of the backend in PyTorch's profiler besides those of works (work.h).

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <vector>

#include "work.h"

namespace tutti_c10d {

// What an entry says of a call beside its group.
struct ProfiledCall {
  const char* title;  // the name of the work, such as "tutti:all_reduce"
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& outputs;
  uint64_t sequence;
};

// An entry of PyTorch's name for calls of groups (record_param_comms), with the group's name,
// description and size, the call and its elements. The entry lasts as long as the object, which
// belongs to one thread. Without a profiler the object does nothing.
class GroupEntry {
 public:
  GroupEntry(const c10d::Backend& backend, const ProfiledCall& call);

 private:
  std::optional<c10::DebugInfoGuard> group_;
  std::optional<at::RecordFunction> record_;
};

// An entry that spans all works of a batch, from startCoalescing to the end of the last work.
class BatchEntry {
 public:
  BatchEntry();
  // Says that another work belongs to the batch.
  void Add() { ++open_; }
  // Says that a work is done. The batch itself counts as a work until endCoalescing.
  void Done();

 private:
  std::atomic<int> open_{1};
  const c10::intrusive_ptr<TuttiWork> whole_;
};

}  // namespace tutti_c10d
