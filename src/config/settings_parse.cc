#include "config/settings_parse.h"

#include <array>
#include <limits>
#include <optional>

#include "base/text.h"

namespace tutti::config {
namespace {

Status Refuse(std::string_view variable, std::string_view text, std::string_view allowed) {
  return InvalidUsage("{} is \"{}\", but must be {}", variable, text, allowed);
}

std::string WithUnit(std::string_view unit) {
  return unit.empty() ? std::string() : fmt::format(" {}", unit);
}

// The limit is checked before the shift, which must not overflow.
std::optional<int64_t> ReadInteger(std::string_view text, bool may_have_suffix) {
  int shift = 0;
  if (may_have_suffix && !text.empty()) {
    constexpr std::string_view kSuffixes = "KMG";
    const size_t index = kSuffixes.find(static_cast<char>(text.back() & ~0x20));
    if (index != std::string_view::npos) {
      shift = 10 * (static_cast<int>(index) + 1);
      text.remove_suffix(1);
    }
  }
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  const std::optional<int64_t> value =
      hexadecimal ? WholeNumber<int64_t>(text.substr(2), 16) : WholeNumber<int64_t>(text, 10);
  if (!value || shift == 0) return value;
  const int64_t limit = std::numeric_limits<int64_t>::max() >> shift;
  if (*value > limit || *value < -limit) return std::nullopt;
  return *value * (int64_t{1} << shift);
}

}  // namespace

Status ParseFlag(std::string_view variable, std::string_view text, bool& value) {
  for (const std::string_view word : {"1", "true", "yes", "on"}) {
    if (!EqualIgnoringCase(text, word)) continue;
    value = true;
    return Status::Ok();
  }
  for (const std::string_view word : {"0", "false", "no", "off"}) {
    if (!EqualIgnoringCase(text, word)) continue;
    value = false;
    return Status::Ok();
  }
  return Refuse(variable, text, "0 or 1");
}

Status ParseInteger(std::string_view variable, std::string_view text, int64_t low, int64_t high,
                    std::string_view unit, int64_t& value) {
  const std::optional<int64_t> number = ReadInteger(text, unit == "bytes");
  if (!number || *number < low || *number > high) {
    return Refuse(variable, text,
                  fmt::format("a whole number from {} to {}{}", low, high, WithUnit(unit)));
  }
  value = *number;
  return Status::Ok();
}

Status ParseNumber(std::string_view variable, std::string_view text, double low, double high,
                   std::string_view unit, double& value) {
  const std::optional<double> number = WholeNumber<double>(text);
  // In this form the test also refuses NaN, which compares with nothing.
  if (!number || !(*number >= low && *number <= high)) {
    return Refuse(variable, text,
                  fmt::format("a number from {:.10g} to {:.10g}{}", low, high, WithUnit(unit)));
  }
  value = *number;
  return Status::Ok();
}

// Builds the list of allowed words while searching, for the sentence of a refusal.
Status ParseChoice(std::string_view variable, std::string_view text, std::string_view choices,
                   std::string& value) {
  std::string sentence;
  for (std::string_view rest = choices; !rest.empty();) {
    const size_t bar = rest.find('|');
    const std::string_view word = rest.substr(0, bar);
    rest.remove_prefix(bar == std::string_view::npos ? rest.size() : bar + 1);
    if (EqualIgnoringCase(text, word)) {
      value = word;
      return Status::Ok();
    }
    if (!sentence.empty()) sentence += rest.empty() ? " or " : ", ";
    sentence += word;
  }
  return Refuse(variable, text, sentence);
}

Status ParsePorts(std::string_view variable, std::string_view text, PortRange& value) {
  const size_t dash = text.find('-');
  const auto low = WholeNumber<uint16_t>(text.substr(0, dash), 10);
  const auto high =
      dash == std::string_view::npos ? low : WholeNumber<uint16_t>(text.substr(dash + 1), 10);
  if (!low || !high || *low == 0 || *low > *high) {
    return Refuse(variable, text, "low-high with ports from 1 to 65535, such as 50000-50099");
  }
  value = {.low = *low, .high = *high};
  return Status::Ok();
}

}  // namespace tutti::config
