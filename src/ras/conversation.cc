#include "ras/conversation.h"

#include <fmt/format.h>

#include <optional>

#include "base/text.h"

namespace tutti::ras {
namespace {

constexpr std::string_view kOk = "OK\n";

// Returns the rest of `line` where the line begins with `command`.
std::optional<std::string_view> After(std::string_view line, std::string_view command) {
  if (!EqualIgnoringCase(line.substr(0, command.size()), command)) return {};
  return line.substr(command.size());
}

}  // namespace

std::string Conversation::Take(std::string_view bytes) {
  std::string answers;
  while (!bytes.empty() && state_ == State::kTalking) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() >= kMostLineBytes) {
      state_ = State::kOver;
    } else if (end != std::string_view::npos) {
      if (line_.ends_with('\r')) line_.pop_back();
      answers += Answer(line_);
      line_.clear();
    }
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  }
  return answers;
}

// A client may show an answer on a terminal, so an answer repeats only printable bytes.
std::string Conversation::Answer(std::string_view line) {
  if (After(line, "client protocol ")) return "SERVER PROTOCOL 2\n";
  if (const auto seconds = After(line, "timeout ")) {
    const auto number = WholeNumber<int32_t>(*seconds);
    if (!number || *number < 0)
      return fmt::format("ERROR: Invalid timeout value {}\n", Printable(*seconds));
    timeout_s_ = *number;
    return std::string(kOk);
  }
  if (const auto format = After(line, "set format ")) {
    as_json_ = EqualIgnoringCase(*format, "json");
    if (!as_json_ && !EqualIgnoringCase(*format, "text"))
      return fmt::format("ERROR: Invalid format {}\n", Printable(*format));
    return std::string(kOk);
  }
  verbose_ = EqualIgnoringCase(line, "verbose status");
  if (verbose_ || EqualIgnoringCase(line, "status")) {
    state_ = State::kStatus;
    return {};
  }
  if (EqualIgnoringCase(line, "monitor")) return AnswerMonitor("");
  if (const auto groups = After(line, "monitor ")) return AnswerMonitor(*groups);
  return fmt::format("ERROR: Unknown command {}\n", Printable(line));
}

// All events that this server knows are of the group "lifecycle".
std::string Conversation::AnswerMonitor(std::string_view groups) {
  bool lifecycle = Trim(groups).empty();
  for (std::string_view rest = Trim(groups); !rest.empty();) {
    const std::string_view group = NextItem(rest, ',');
    const bool has_lifecycle =
        EqualIgnoringCase(group, "lifecycle") || EqualIgnoringCase(group, "all");
    if (!has_lifecycle && !EqualIgnoringCase(group, "trace"))
      return fmt::format("ERROR: Invalid event group '{}'\n", Printable(group));
    lifecycle |= has_lifecycle;
  }
  if (lifecycle && !monitors_ && !may_monitor_) return "ERROR: Too many monitors\n";
  monitors_ = lifecycle;
  return std::string(kOk);
}

}  // namespace tutti::ras
