#include "elastic/hosts.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace tutti::elastic {
namespace {

// More slots than any host has: a mistyped number must not start a million processes.
constexpr int kMaxSlots = 4096;

Result<HostSlots> ParseHost(std::string_view text, int default_slots) {
  HostSlots host{std::string(text), default_slots};
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    host.slots = WholeNumber<int>(Trim(text.substr(colon + 1))).value_or(-1);
    if (host.slots < 0 || host.slots > kMaxSlots) {
      return InvalidArgument("\"{}\" is not host:slots with 0 to {} slots", text, kMaxSlots);
    }
    host.host = std::string(Trim(text.substr(0, colon)));
  }
  // The name becomes an argument of ssh, and must not look like an option, or like two words.
  const bool plain = std::all_of(host.host.begin(), host.host.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ||
           c == '@';
  });
  if (host.host.empty() || host.host.front() == '-' || !plain) {
    return InvalidArgument("\"{}\" does not begin with the name of a host", text);
  }
  return host;
}

}  // namespace

Result<std::vector<HostSlots>> ParseHosts(std::string_view text, int default_slots) {
  std::vector<HostSlots> hosts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n,"), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    TUTTI_ASSIGN(HostSlots host, ParseHost(line, default_slots));
    for (const HostSlots& known : hosts) {
      if (known.host == host.host) return InvalidArgument("host {} is named twice", host.host);
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

}  // namespace tutti::elastic
