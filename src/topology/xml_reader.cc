#include "topology/xml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/text.h"

namespace tutti::topology {
namespace {

constexpr size_t kLongestText = 1024;  // an affinity mask of 2048 cores takes 576 characters

// Removes control characters and foreign bytes, which would garble a terminal.
std::string Shown(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string shown(text.substr(0, kLongest));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > kLongest) shown += "…";
  return shown;
}

}  // namespace

XmlRemark XmlReader::At(ptrdiff_t offset, std::string sentence) {
  if (line_starts_.empty()) {
    line_starts_.push_back(0);
    for (size_t end = text_.find('\n'); end != std::string_view::npos;
         end = text_.find('\n', end + 1)) {
      line_starts_.push_back(end + 1);
    }
  }
  const size_t place = std::min(text_.size(), static_cast<size_t>(std::max<ptrdiff_t>(0, offset)));
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), place);
  const size_t line = static_cast<size_t>(after - line_starts_.begin());
  return {line, place - *std::prev(after) + 1, std::move(sentence)};
}

void XmlReader::Error(pugi::xml_node element, std::string sentence) {
  // The offset is the name's; the element begins at the bracket before its name.
  if (!full()) errors_.push_back(At(element.offset_debug() - 1, std::move(sentence)));
}

void XmlReader::Remark(pugi::xml_node element, std::string sentence) {
  if (remarks_.size() >= kMostErrors) return;
  remarks_.push_back(At(element.offset_debug() - 1, std::move(sentence)));
}

// Counts before anything is built, lest a small text become a large tree. Brackets and equal signs
// in comments and texts are counted too; the bounds are far enough.
bool XmlReader::Bounded() {
  if (text_.size() > kLargestXml) {
    errors_.push_back({1, 1,
                       fmt::format("the file has {} bytes; at most {} were expected", text_.size(),
                                   kLargestXml)});
    return false;
  }
  size_t elements = 0;
  size_t attributes = 0;
  for (size_t i = 0; i < text_.size(); ++i) {
    const char c = text_[i];
    if (c == '=' && ++attributes > kMostAttributes) {
      errors_.push_back(At(static_cast<ptrdiff_t>(i),
                           fmt::format("the file has more than {} attributes", kMostAttributes)));
      return false;
    }
    if (c != '<' || i + 1 == text_.size()) continue;
    const char next = text_[i + 1];
    if (next == '!' || next == '?' || next == '/') continue;
    if (++elements > kMostElements) {
      errors_.push_back(At(static_cast<ptrdiff_t>(i),
                           fmt::format("the file has more than {} elements", kMostElements)));
      return false;
    }
  }
  return true;
}

pugi::xml_node XmlReader::Parse(const char* root) {
  if (!Bounded()) return {};
  const pugi::xml_parse_result result =
      document_.load_buffer(text_.data(), text_.size(), pugi::parse_escapes, pugi::encoding_utf8);
  if (!result) {
    std::string what = result.description();
    if (!what.empty()) what[0] = static_cast<char>(what[0] | 0x20);
    errors_.push_back(
        At(result.offset, fmt::format("this is no XML: {}; a <{}> was expected", what, root)));
    return {};
  }
  pugi::xml_node found;
  for (const pugi::xml_node child : document_.children()) {
    if (child.type() != pugi::node_element) continue;
    if (std::string_view(child.name()) != root) {
      Error(child, fmt::format("<{}> at the top; a <{}> was expected", Shown(child.name()), root));
      return {};
    }
    if (found) {
      Error(child, fmt::format("a second <{}>; one was expected", root));
      return {};
    }
    found = child;
  }
  if (!found) errors_.push_back(At(0, fmt::format("there is no <{}>, which was expected", root)));
  return found;
}

int64_t XmlReader::Integer(pugi::xml_node element, const char* name, int64_t low, int64_t high,
                           int64_t missing) {
  const std::string_view text = element.attribute(name).value();
  if (text.empty()) return missing;
  const std::optional<int64_t> value = WholeNumber<int64_t>(text);
  if (value && *value >= low && *value <= high) return *value;
  Error(element, fmt::format("{}=\"{}\" of <{}>: a number from {} to {} was expected", name,
                             Shown(text), element.name(), low, high));
  return missing;
}

uint64_t XmlReader::Hex(pugi::xml_node element, const char* name, uint64_t high, uint64_t missing) {
  const std::string_view text = element.attribute(name).value();
  if (text.empty()) return missing;
  const bool prefixed = text.starts_with("0x") || text.starts_with("0X");
  const std::optional<uint64_t> value = WholeNumber<uint64_t>(text.substr(prefixed ? 2 : 0), 16);
  if (value && *value <= high) return *value;
  Error(element, fmt::format("{}=\"{}\" of <{}>: a hexadecimal number up to {:#x} was expected",
                             name, Shown(text), element.name(), high));
  return missing;
}

double XmlReader::Number(pugi::xml_node element, const char* name, double low, double high,
                         double missing) {
  const std::string_view text = element.attribute(name).value();
  if (text.empty()) return missing;
  const std::optional<double> value = WholeNumber<double>(text);
  if (value && *value >= low && *value <= high) return *value;
  Error(element, fmt::format("{}=\"{}\" of <{}>: a number from {:g} to {:g} was expected", name,
                             Shown(text), element.name(), low, high));
  return missing;
}

std::string XmlReader::Text(pugi::xml_node element, const char* name) {
  const std::string_view text = element.attribute(name).value();
  if (text.size() <= kLongestText) return std::string(text);
  Error(element, fmt::format("{} of <{}> has {} characters; at most {} were expected", name,
                             element.name(), text.size(), kLongestText));
  return {};
}

bool XmlReader::Require(pugi::xml_node element, const char* name, std::string_view expected) {
  if (element.attribute(name)) return true;
  Error(element, fmt::format("<{}> lacks {}, {}", element.name(), name, expected));
  return false;
}

void XmlReader::KnowAttributes(pugi::xml_node element,
                               std::initializer_list<std::string_view> known) {
  for (const pugi::xml_attribute attribute : element.attributes()) {
    const std::string_view name = attribute.name();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (remarks_.size() >= kMostErrors) return;
    Remark(element, fmt::format("{} of <{}> means nothing here", Shown(name), element.name()));
  }
}

Result<std::string> ReadXmlText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return ErrnoError(errno, fmt::format("cannot read {}", path));
  std::string text;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof buffer) || stream.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(stream.gcount()));
    if (text.size() > kLargestXml) {
      return InvalidUsage("{} has more than {} bytes; no topology is that large", path,
                          kLargestXml);
    }
  }
  if (stream.bad()) return ErrnoError(errno, fmt::format("cannot read {}", path));
  return text;
}

}  // namespace tutti::topology
