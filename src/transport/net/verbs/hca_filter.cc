#include "transport/net/verbs/hca_filter.h"

#include <algorithm>
#include <charconv>

namespace tutti {
namespace {

Result<uint8_t> ParsePort(std::string_view entry, std::string_view digits) {
  int port = 0;
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || rest != end || port < 1 || port > 255) {
    return InvalidUsage(
        "NCCL_IB_HCA has the entry \"{}\", but a port is a number from 1 to 255, as in mlx5_0:1",
        entry);
  }
  return static_cast<uint8_t>(port);
}

}  // namespace

Result<HcaFilter> HcaFilter::Parse(std::string_view text) {
  HcaFilter filter;
  if (text.starts_with('^')) {
    filter.exclude_ = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    filter.exact_ = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
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
