#pragma once

// Small functions on texts.

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace tutti {

// Returns whether two texts are equal, where the case of ASCII letters does not count.
inline bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// Returns `text` without the blanks, tabs and carriage returns at both ends.
inline std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Returns `text` with '?' in place of every byte outside printable ASCII. Texts of other ranks pass
// this function where their messages are parsed. Line ends and escape sequences of a terminal
// therefore reach no log and no exception.
inline std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable)
    if (c < ' ' || c > '~') c = '?';
  return printable;
}

// Removes and returns the part of `rest` before the first `mark`, and removes the mark.
inline std::string_view NextItem(std::string_view& rest, char mark) {
  const std::string_view item = rest.substr(0, rest.find(mark));
  rest.remove_prefix(std::min(item.size() + 1, rest.size()));
  return item;
}

// Reads all of `text` as a number. Returns nothing when a part of the text is left over or the
// number does not fit into T. `base` is for integers only.
template <typename T, typename... Base>
std::optional<T> WholeNumber(std::string_view text, Base... base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace tutti
