#include "ras/format.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <iterator>
#include <set>

#include "nccl.h"
#include "ras/order.h"

namespace tutti::ras {
namespace {

// Host names come from elsewhere. They are printable already (Decode, observe/reader.h).
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

using Out = std::back_insert_iterator<std::string>;

// `device` is the number of the GPU for CUDA and, as far as Tutti knows, for NVML.
void WriteIdentity(int rank, const ProcessName& process, int device, Out out) {
  fmt::format_to(
      out,
      "        {{\n          \"rank\": {},\n          \"host\": {},\n"
      "          \"pid\": {},\n          \"cuda_dev\": {},\n          \"nvml_dev\": {},\n"
      "          \"status\": {{\n",
      rank, Quoted(process.host), process.pid, device, device);
}

void WriteRank(int rank, const RankState& one, Out out) {
  WriteIdentity(rank, one.process, one.device, out);
  fmt::format_to(out,
                 "            \"init_state\": {},\n            \"async_error\": {},\n"
                 "            \"finalize_called\": false,\n            \"destroy_flag\": false,\n"
                 "            \"abort_flag\": false\n          }},\n"
                 "          \"collective_counts\": {{\n",
                 one.init_state, one.async_error);
  for (const Collective kind : kCounted)
    fmt::format_to(out, "            \"{}\": {}{}\n", Name(kind),
                   one.begun[static_cast<size_t>(kind)], kind == kCounted.back() ? "" : ",");
  fmt::format_to(out, "          }}\n        }}");
}

void WriteMissing(const MissingRank& one, Out out) {
  WriteIdentity(one.rank, one.process, -1, out);
  fmt::format_to(out,
                 "            \"unresponsive\": {},\n            \"considered_dead\": {}\n"
                 "          }}\n        }}",
                 !one.heard, one.dead);
}

void WriteCommunicator(const Report& report, uint64_t id, const CommunicatorState& state, Out out) {
  const std::vector<MissingRank> missing = report.MissingOf(state);
  // All parts of the id are in one number; NCCL's second hash is there for its users' keys.
  fmt::format_to(out,
                 "    {{\n      \"hash\": \"0x{:x}\",\n      \"secondary_hash\": \"0x0:0x0\",\n"
                 "      \"size\": {},\n      \"ranks_count\": {},\n"
                 "      \"missing_ranks_count\": {},\n      \"ranks\": [\n",
                 id, state.num_ranks, state.ranks.size(),
                 static_cast<size_t>(state.num_ranks) - state.ranks.size());
  bool first = true;
  for (const auto& [rank, one] : state.ranks) {
    fmt::format_to(out, "{}", first ? "" : ",\n");
    WriteRank(rank, one, out);
    first = false;
  }
  fmt::format_to(out, "\n      ],\n      \"missing_ranks\": [\n");
  first = true;
  for (const MissingRank& one : missing) {
    fmt::format_to(out, "{}", first ? "" : ",\n");
    WriteMissing(one, out);
    first = false;
  }
  fmt::format_to(out, "\n      ]\n    }}");
}

std::set<int> DevicesOf(const Report& report, const ProcessName& process) {
  std::set<int> devices;
  for (const auto& [id, state] : report.communicators)
    for (const auto& [rank, one] : state.ranks)
      if (one.process == process && one.device >= 0) devices.insert(one.device);
  return devices;
}

}  // namespace

std::string TimeNow() {
  const time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

std::string ToJson(const Report& report, const Frame& frame) {
  std::string text;
  const Out out(text);
  fmt::format_to(out,
                 "{{\n  \"nccl_version\": \"{}.{}.{}\",\n  \"cuda_runtime_version\": {},\n"
                 "  \"cuda_driver_version\": {},\n  \"timestamp\": \"{}\",\n"
                 "  \"communicators_count\": {},\n  \"communicators\": [\n",
                 NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, frame.cuda_driver_version,
                 frame.cuda_driver_version, frame.time, report.communicators.size());
  bool first = true;
  for (const auto& [id, state] : report.communicators) {
    fmt::format_to(out, "{}", first ? "" : ",\n");
    WriteCommunicator(report, id, state, out);
    first = false;
  }
  fmt::format_to(out,
                 "\n  ],\n  \"ras\": {{\n    \"collection_time_sec\": {:.3f},\n"
                 "    \"timeouts_count\": {}\n  }}\n}}\n",
                 frame.seconds, frame.num_timeouts);
  return text;
}

std::string EventText(const Report& report, const ProcessName& process, std::string_view event,
                      std::string_view time, bool as_json) {
  const std::set<int> devices = DevicesOf(report, process);
  if (!as_json)
    return fmt::format("[{}] {}: Process {} on node {} managing GPU{} {}\n", time, event,
                       process.pid, process.host, devices.size() > 1 ? "s" : "",
                       devices.empty() ? "none" : fmt::format("{}", fmt::join(devices, ",")));
  return fmt::format(
      "{{\n  \"timestamp\": \"{}\",\n  \"group\": \"LIFECYCLE\",\n  \"event\": \"{}\",\n"
      "  \"peer\": {{\n    \"host\": {},\n    \"pid\": {},\n    \"cuda_devs\": [{}],\n"
      "    \"nvml_devs\": [{}]\n  }},\n  \"details\": \"\"\n}}\n",
      time, event, Quoted(process.host), process.pid, fmt::join(devices, ","),
      fmt::join(devices, ","));
}

}  // namespace tutti::ras
