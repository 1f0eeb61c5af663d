// libFuzzer entry for the parsers of reports and of clients' lines: make fuzz.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "ras/conversation.h"
#include "ras/format.h"
#include "ras/report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::ras;
  const auto bytes = std::as_bytes(std::span(data, size));
  Conversation().Take({reinterpret_cast<const char*>(data), size});
  std::optional<Report> report = Decode(bytes);
  if (!report) return 0;
  if (!Decode(Encode(*report))) std::abort();
  // The report has a text. (The lists of missing ranks may be long.)
  for (auto& [id, state] : report->communicators) state.num_ranks = std::min(state.num_ranks, 64);
  ToText(*report, {}, true);
  ToJson(*report, {});
  return 0;
}
