// SPDX-License-Identifier: Apache-2.0
#include "profiler.h"

namespace tutti_c10d {
namespace {

int64_t Elements(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.is_sparse() ? 0 : tensor.numel();
  return count;
}

std::string NameOf(const char* title) {
  const std::string name(title);
  return name.substr(name.find(':') + 1);
}

// Versions before 2.13 have no place for the number of a call.
template <typename Info>
void SetSequence(Info& info, uint64_t sequence) {
  if constexpr (requires { info.setSequenceInfo(int64_t{}, false); })
    info.setSequenceInfo(static_cast<int64_t>(sequence), false);
}

}  // namespace

GroupEntry::GroupEntry(const c10d::Backend& backend, const ProfiledCall& call) {
  if (!at::hasCallbacks()) return;
  const std::tuple<std::string, std::string> group(backend.getGroupUid(), backend.getGroupDesc());
  const std::vector<at::Tensor>& typed = call.inputs.empty() ? call.outputs : call.inputs;
  auto info = std::make_shared<torch::ParamCommsDebugInfo>(
      group, backend.getRank(), NameOf(call.title), Elements(call.inputs), Elements(call.outputs),
      typed.empty() ? at::kByte : typed[0].scalar_type(), std::vector<int64_t>(),
      std::vector<int64_t>(), /*globalRankStart=*/-1, /*globalRankStride=*/-1, backend.getSize());
  SetSequence(*info, call.sequence);
  group_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
  record_.emplace(at::RecordScope::FUNCTION);
  if (!record_->isActive()) return;
  // The profiler finds the group in `info`; observers of PyTorch read the inputs by their places.
  const std::vector<c10::IValue> inputs = {c10::IValue(call.inputs),
                                           static_cast<int64_t>(call.sequence),
                                           group,
                                           backend.getRank(),
                                           NameOf(call.title),
                                           std::vector<int64_t>(),
                                           std::vector<int64_t>(),
                                           -1,
                                           -1,
                                           backend.getSize()};
  record_->before(at::kParamCommsCallName,
                  c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
}

BatchEntry::BatchEntry()
    : whole_(c10::make_intrusive<TuttiWork>(c10d::OpType::COALESCED, "tutti:coalesced",
                                            std::vector<at::Tensor>(), std::vector<at::Tensor>(),
                                            0)) {}

void BatchEntry::Done() {
  if (--open_ == 0) whole_->End();
}

}  // namespace tutti_c10d
