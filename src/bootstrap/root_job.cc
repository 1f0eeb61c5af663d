#include "bootstrap/root_job.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

std::string WhoIs(const RootRequest& request) {
  return fmt::format("pid {} on host {}", request.pid, request.host);
}

bool IsSameProcess(const RootRequest& one, const RootRequest& other) {
  return one.pid == other.pid && one.host == other.host &&
         one.contact.address == other.contact.address;
}

double RoundedSeconds(uint32_t ms) {
  const uint32_t step_ms = ms < 10'000 ? 100 : 1000;
  const uint32_t rounded_ms = (ms + step_ms / 2) / step_ms * step_ms;
  return rounded_ms / 1000.0;
}

std::string RangesText(const std::vector<uint32_t>& ranks) {
  constexpr size_t kMaxNamed = 16;
  std::string text;
  size_t named = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (named++ == kMaxNamed) return fmt::format("{} and {} more", text, ranks.size() - i);
    if (!text.empty()) text += ", ";
    text +=
        end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

uint32_t RegistrationsDue(const RootRequest& request) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < request.num_ranks; ++rank) {
    count += RootInCharge(rank, request.num_ranks, request.num_roots) == request.root_index;
  }
  return count;
}

uint32_t LookUpsDue(const RootRequest& request) {
  if (request.num_roots == 1) return 0;
  uint32_t count = 0;
  const auto in_charge = [&](uint32_t rank) {
    return RootInCharge(rank, request.num_ranks, request.num_roots) == request.root_index;
  };
  for (uint32_t rank = 0; rank < request.num_ranks; ++rank) {
    if (in_charge(rank)) continue;
    const auto targets = LinkTargets(static_cast<int>(rank), static_cast<int>(request.num_ranks));
    count += std::any_of(targets.begin(), targets.end(),
                         [&](int target) { return in_charge(static_cast<uint32_t>(target)); });
  }
  return count;
}

}  // namespace tutti
