#pragma once

// NCCL's topology XML, read and written. Files come from outside: from users, cloud vendors, other
// hosts of a job. A hostile one is refused with a sentence, in time and memory that its size
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

// An NVLink domain of 576 GPUs is described in 3 MB; nothing real comes near these.
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
  Machine machine;                 // what could be read; complete only without errors
  std::vector<XmlRemark> errors;   // There are at most kMostErrors.
  std::vector<XmlRemark> remarks;  // what is odd and was passed over or guessed; as many at most
};
inline constexpr size_t kMostErrors = 50;

// Reads everything and says all that is wrong: for `tutti topo check`.
MachineReading CheckMachineXml(std::string_view text);

// Returns the machine in `text`, or InvalidUsage with the first error as "name:line:column:
// sentence".
Result<Machine> ParseMachineXml(std::string_view text, std::string_view name);

// Returns the text of a file; InvalidUsage when it is larger than kLargestXml, SystemError when it
// cannot be read.
Result<std::string> ReadXmlText(const std::string& path);
Result<Machine> ReadMachineFile(const std::string& path);

// Returns the file of `machine`; reading it gives the same machine, without its guesses, which
// stand in it as comments.
std::string FormatMachineXml(const Machine& machine);

// Writes it, by way of a file beside it that takes its name when it is complete.
Status WriteMachineFile(const Machine& machine, const std::string& path);

}  // namespace tutti::topology
