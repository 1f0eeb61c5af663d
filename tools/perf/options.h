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
  std::vector<CollectiveInfo> collectives;  // a table each, by the same communicator
  int num_ranks = 2;
  std::vector<size_t> sizes;  // in bytes, ascending
  std::vector<ncclDataType_t> types;
  std::vector<Reduction> reductions;  // for collectives that reduce
  std::vector<int> roots;             // for collectives that have a root
  int iterations = 0;                 // 0: as many as take about `kAutomaticSeconds`
  int warmup = 5;
  bool check = true;
  bool threads = false;  // ranks are threads of one process
  std::string net = "auto";
  std::string json_path;
  std::string library;
  std::string against;  // empty without a library to compare with
  int rotate = 0;       // 0: a number that is chosen by size
  bool host_stream = false;
  bool gpu = false;              // ranks are GPUs, and buffers lie in their memory
  int graph = 0;                 // number of operations in a CUDA graph; 0: each is launched alone
  int unaligned = 0;             // number of bytes from an aligned address to the buffers
  std::string alloc = "malloc";  // malloc, nccl or window
  bool blocking = false;
  bool median = false;
  bool bind = false;
  bool print_plan = false;
  bool predict = false;  // also show the time that the library expects
  double timeout_s = 300;
};

// Parses "8", "32K", "1.5M", "2GiB"; the units are powers of 1024.
Result<size_t> ParseBytes(std::string_view text);
// Formats a size in its shortest form: "512", "32K", "1M"; the units are powers of 1024.
std::string BytesText(size_t bytes);

// Returns the sizes from `first` to `last`, with a factor of `factor` or, unless `step` is 0, a
// difference of `step`.
Result<std::vector<size_t>> SizesBetween(size_t first, size_t last, double factor, size_t step);

// Parses a list, with commas, of collectives. A collective may come twice.
Result<std::vector<CollectiveInfo>> ParseCollectives(std::string_view text);

// Parses a list, with commas, of types in any usual spelling ("float", "f32", "half", "fp8_e4m3",
// …), or "all".
Result<std::vector<ncclDataType_t>> ParseTypes(std::string_view text);
std::string_view TypeName(ncclDataType_t type);

// Parses a list, with commas, of "sum", "avg", …, or "all".
Result<std::vector<Reduction>> ParseReductions(std::string_view text);

// Parses a rank, or "all".
Result<std::vector<int>> ParseRoots(std::string_view text, int num_ranks);

// Returns how many sets of buffers a rank uses in turn for operations of `bytes_per_set`: all sets
// together are larger than the last-level cache, within bounds of memory and count. `ranks_here`
// ranks share the cache.
int ChooseRotation(size_t bytes_per_set, size_t cache_bytes, size_t memory_bytes, int ranks_here);

}  // namespace tutti::tools
