#include "transport/net/verbs/hca_filter.h"

#include <algorithm>

#include "base/text.h"

namespace tutti {
namespace {

Result<uint8_t> ParsePort(std::string_view entry, std::string_view digits) {
  const uint8_t port = WholeNumber<uint8_t>(digits).value_or(0);
  if (port > 0) return port;
  return InvalidUsage(
      "NCCL_IB_HCA has the entry \"{}\", but a port is a number from 1 to 255, as in mlx5_0:1",
      entry);
}

}  // namespace

Result<HcaFilter> HcaFilter::Parse(std::string_view text) {
  HcaFilter filter;
  filter.exclude_ = text.starts_with('^');
  if (filter.exclude_) text.remove_prefix(1);
  filter.exact_ = text.starts_with('=');
  if (filter.exact_) text.remove_prefix(1);
  while (!text.empty()) {
    const std::string_view entry = NextItem(text, ',');
    if (entry.empty()) continue;
    const size_t colon = entry.rfind(':');
    Entry parsed{std::string(entry.substr(0, colon)), 0};
    if (parsed.name.empty()) {
      return InvalidUsage("NCCL_IB_HCA has the entry \"{}\", which names no device", entry);
    }
    if (colon != std::string_view::npos) {
      TUTTI_ASSIGN(parsed.port, ParsePort(entry, entry.substr(colon + 1)));
    }
    filter.entries_.push_back(std::move(parsed));
  }
  return filter;
}

bool HcaFilter::Admits(std::string_view device, uint8_t port) const {
  if (entries_.empty()) return true;
  const bool named = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const bool same = exact_ ? device == entry.name : device.starts_with(entry.name);
    return same && (entry.port == 0 || entry.port == port);
  });
  return named != exclude_;
}

}  // namespace tutti
