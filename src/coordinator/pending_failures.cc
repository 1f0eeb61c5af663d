#include "coordinator/pending_failures.h"

#include <utility>

namespace tutti::coordinator {

void PendingFailures::Advance(Event event, size_t brought) {
  switch (event) {
    case Event::kAdd:
      if (state_ == State::kNone) state_ = State::kWaiting;
      break;
    case Event::kBegin:
      if (brought > 0) state_ = State::kInRound;
      break;
    case Event::kEnd:
      state_ = waiting_.empty() ? State::kNone : State::kWaiting;
      break;
  }
}

void PendingFailures::Add(const std::string& name, PendingFailure failure, uint64_t round) {
  waiting_[name] = {std::move(failure), round};
  Advance(Event::kAdd, 0);
}

void PendingFailures::BeginRound(uint64_t round, ByName& due) {
  // A failure for a later round stays: the other ranks may not know all pending tensors before.
  std::erase_if(waiting_, [&](auto& entry) {
    auto& [name, waiting] = entry;
    if (waiting.round > round) return false;
    due.emplace(name, std::move(waiting.failure));
    return true;
  });
  Advance(Event::kBegin, due.size());
}

void PendingFailures::Hold(Response response) { held_.push_back(std::move(response)); }

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
