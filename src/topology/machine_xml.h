#pragma once

// Reads and writes NCCL's topology XML. Files come from outside: from users, cloud vendors, other
// hosts of a job. A hostile file is refused with a sentence, in time and memory that its size
// bounds; size, elements, attributes and depth are bounded themselves (the constants below). Names
// of elements and attributes that mean nothing here are passed over, as NCCL does.
//
// Pure functions; docs/topology.md describes the format.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/machine.h"

namespace tutti::topology {

// An NVLink domain of 576 GPUs is described in 3 MB; no real machine comes near these bounds.
inline constexpr size_t kLargestXml = 32u << 20;
inline constexpr size_t kMostElements = 300'000;
inline constexpr size_t kMostAttributes = 4'000'000;
inline constexpr int kDeepestElement = 64;

// A sentence about a place in a file; lines and columns count from 1.
struct XmlRemark {
  size_t line = 0;
  size_t column = 0;
  std::string sentence;  // what is wrong, and what was expected
};

struct MachineReading {
  Machine machine;                 // everything that could be read; complete only without errors
  std::vector<XmlRemark> errors;   // at most kMostErrors
  std::vector<XmlRemark> remarks;  // oddities that were passed over or guessed; at most as many
};
inline constexpr size_t kMostErrors = 50;

// Reads the whole text and reports everything that is wrong: for `tutti topo check`.
MachineReading CheckMachineXml(std::string_view text);

// Returns the machine in `text`, or InvalidUsage with the first error as "name:line:column:
// sentence".
Result<Machine> ParseMachineXml(std::string_view text, std::string_view name);

// Returns the text of a file; InvalidUsage when it is larger than kLargestXml, SystemError when it
// cannot be read.
Result<std::string> ReadXmlText(const std::string& path);
Result<Machine> ReadMachineFile(const std::string& path);

// Returns the file of `machine`. Reading the file gives the same machine, without its guesses,
// which the file has as comments.
std::string FormatMachineXml(const Machine& machine);

// Writes the text to a file beside `path` and gives the complete file the name `path`.
Status WriteXmlText(const std::string& text, const std::string& path);

}  // namespace tutti::topology
