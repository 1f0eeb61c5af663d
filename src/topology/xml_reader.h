#pragma once

// Gives the readers of this module's two XML formats a bounded parse, places in lines and columns,
// and errors about attributes that say what was expected.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "topology/machine_xml.h"

namespace tutti::topology {

class XmlReader {
 public:
  // `text` must outlive the reader.
  explicit XmlReader(std::string_view text) : text_(text) {}

  // Parses the text and returns its root element, whose name must be `root`. Notes an error and
  // returns an empty node otherwise.
  pugi::xml_node Parse(const char* root);

  // Returns the attribute as a number. Notes an error when the attribute is not a number from `low`
  // to `high`. Returns `missing` when the attribute is absent or empty.
  int64_t Integer(pugi::xml_node element, const char* name, int64_t low, int64_t high,
                  int64_t missing);
  // Returns a number in hexadecimal with or without 0x.
  uint64_t Hex(pugi::xml_node element, const char* name, uint64_t high, uint64_t missing);
  double Number(pugi::xml_node element, const char* name, double low, double high, double missing);
  // Returns the attribute. Notes an error when the attribute is longer than kLongestText.
  std::string Text(pugi::xml_node element, const char* name);
  // Notes an error when the attribute is absent.
  bool Require(pugi::xml_node element, const char* name, std::string_view expected);

  // Notes a remark for each attribute whose name is none of `known`.
  void KnowAttributes(pugi::xml_node element, std::initializer_list<std::string_view> known);

  void Error(pugi::xml_node element, std::string sentence);
  void Remark(pugi::xml_node element, std::string sentence);
  bool full() const { return errors_.size() >= kMostErrors; }

  std::vector<XmlRemark>& errors() { return errors_; }
  std::vector<XmlRemark>& remarks() { return remarks_; }

 private:
  bool Bounded();
  XmlRemark At(ptrdiff_t offset, std::string sentence);

  std::string_view text_;
  pugi::xml_document document_;
  std::vector<size_t> line_starts_;  // filled when the first place is asked for
  std::vector<XmlRemark> errors_;
  std::vector<XmlRemark> remarks_;
};

}  // namespace tutti::topology
