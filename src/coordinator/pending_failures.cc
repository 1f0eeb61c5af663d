#include "coordinator/pending_failures.h"

#include <utility>

namespace tutti::coordinator {

void PendingFailures::Add(const std::string& name, PendingFailure failure, uint64_t round) {
  waiting_[name] = {std::move(failure), round};
}

void PendingFailures::BeginRound(uint64_t round, ByName& due) {
  // A failure for a later round stays: the other ranks may not know all pending tensors before.
  std::erase_if(waiting_, [&](auto& entry) {
    auto& [name, waiting] = entry;
    if (waiting.round > round) return false;
    due.emplace(name, std::move(waiting.failure));
    return true;
  });
  if (!due.empty()) in_round_ = true;
}

// Responses of later checks stay, in the order in which they came.
std::vector<Response> PendingFailures::TakeDecided(bool all) {
  std::vector<Response> decided;
  std::erase_if(held_, [&](Response& response) {
    if (!all && !IsDecided(response.check)) return false;
    decided.push_back(std::move(response));
    return true;
  });
  return decided;
}

}  // namespace tutti::coordinator
