#pragma once

// The options of `tutti perf`, and the functions that parse their values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "perf/collectives.h"
#include "perf/pattern.h"

namespace tutti::tools {

struct PerfOptions {
  std::vector<CollectiveInfo> collectives;  // A table each, by the same communicator.
  int num_ranks = 2;
  std::vector<size_t> sizes;  // In bytes, ascending.
  std::vector<ncclDataType_t> types;
  std::vector<Reduction> reductions;  // for collectives that reduce
  std::vector<int> roots;             // for those that have one
  int iterations = 0;                 // 0 stands for as many as take about `kAutomaticSeconds`.
  int warmup = 5;
  bool check = true;
  bool threads = false;  // Ranks are threads of one process.
  std::string net = "auto";
  std::string json_path;
  std::string library;
  std::string against;  // Empty where there is nothing to compare with.
  int rotate = 0;       // 0 stands for a number that is chosen by size.
  bool host_stream = false;
  bool gpu = false;              // Ranks are GPUs, and buffers lie in their memory.
  int graph = 0;                 // How many operations a CUDA graph has; 0 where each is launched.
  int unaligned = 0;             // How many bytes buffers begin past an aligned address.
  std::string alloc = "malloc";  // One of malloc, nccl, window.
  bool blocking = false;
  bool median = false;
  bool bind = false;
  bool print_plan = false;
  bool predict = false;  // Show the time that the library expects, too.
  double timeout_s = 300;
};

// Parses "8", "32K", "1.5M", "2GiB"; the units are powers of 1024.
Result<size_t> ParseBytes(std::string_view text);
// Formats a size in its shortest form: "512", "32K", "1M"; the units are powers of 1024.
std::string BytesText(size_t bytes);

// Returns the sizes from `first` to `last`, multiplying by `factor`, or adding `step` where that is
// not 0.
Result<std::vector<size_t>> SizesBetween(size_t first, size_t last, double factor, size_t step);

// Parses a list, with commas, of collectives. The same one may come twice.
Result<std::vector<CollectiveInfo>> ParseCollectives(std::string_view text);

// Parses a list, with commas, of types in any usual spelling ("float", "f32", "half", "fp8_e4m3",
// …), or "all".
Result<std::vector<ncclDataType_t>> ParseTypes(std::string_view text);
std::string_view TypeName(ncclDataType_t type);

// Parses a list, with commas, of "sum", "avg", …, or "all".
Result<std::vector<Reduction>> ParseReductions(std::string_view text);

// Parses a rank, or "all".
Result<std::vector<int>> ParseRoots(std::string_view text, int num_ranks);

// Returns how many sets of buffers a rank uses in turn for operations of `bytes_per_set`, so that
// all sets together are larger than the last-level cache, within bounds of memory and count. The
// cache is shared by `ranks_here` ranks.
int ChooseRotation(size_t bytes_per_set, size_t cache_bytes, size_t memory_bytes, int ranks_here);

}  // namespace tutti::tools
