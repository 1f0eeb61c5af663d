#include "ras/collector.h"

#include <algorithm>

namespace tutti::ras {

int64_t Collector::Advance(int64_t now_ns) {
  DropLate(now_ns);
  if (now_ns >= deadline_ns_) return 0;
  AskFurther(now_ns);
  int64_t next_ns = 0;
  for (const auto& [number, question] : open_)
    next_ns = next_ns == 0 ? question.until_ns : std::min(next_ns, question.until_ns);
  return std::min(next_ns, deadline_ns_);
}

bool Collector::OnAnswer(uint64_t question, const Report& told) {
  if (open_.erase(question) + late_.erase(question) == 0) return false;
  Merge(told, report_);
  return true;
}

// A process that was asked a moment before the deadline is not silent, and is waited for next time.
void Collector::DropLate(int64_t now_ns) {
  std::erase_if(open_, [&](const auto& entry) {
    const auto& [number, question] = entry;
    const bool is_silent = now_ns >= question.until_ns;
    if (!is_silent && now_ns < deadline_ns_) return false;
    ++num_timeouts_;
    if (is_silent) silent_.insert(question.seat);
    late_.insert(number);
    troubled_.insert(question.host);
    return true;
  });
}

// A rank whose host is not known is asked by itself.
void Collector::AskFurther(int64_t now_ns) {
  std::set<std::string> busy;
  for (const auto& [number, question] : open_) busy.insert(question.host);
  for (const auto& [id, state] : report_.communicators) {
    for (const MissingRank& one : report_.MissingOf(state)) {
      if (open_.size() >= kMostAsked) return;
      const Seat seat = {id, one.rank};
      const std::string host = one.process.known() ? one.process.host : std::string();
      const bool waits_for_host = !host.empty() && busy.contains(host) && !troubled_.contains(host);
      if (one.dead || one.heard || waits_for_host || asked_.contains(seat)) continue;
      asked_.insert(seat);
      const uint64_t number = next_question_++;
      if (!ask_(seat, number)) continue;
      if (silent_.contains(seat)) {
        late_.insert(number);
        ++num_timeouts_;
      } else {
        open_[number] = {seat, host, now_ns + patience_ns_};
        busy.insert(host);
      }
    }
  }
}

}  // namespace tutti::ras
