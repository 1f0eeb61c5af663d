#pragma once

// What a person may ask of `tutti perf`, and the words for it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "perf/collectives.h"
#include "perf/pattern.h"

namespace tutti::tools {

struct PerfOptions {
  CollectiveInfo collective{};
  int num_ranks = 2;
  std::vector<size_t> sizes;  // In bytes, ascending.
  std::vector<ncclDataType_t> types;
  std::vector<Reduction> reductions;
  std::vector<int> roots;
  int iterations = 0;  // 0: as many as take about `kAutomaticSeconds`.
  int warmup = 5;
  bool check = true;
  bool threads = false;  // Ranks are threads of one process.
  std::string net = "auto";
  std::string json_path;
  std::string library;
  std::string against;  // Empty: nothing to compare with.
  int rotate = 0;       // 0: chosen by size.
  bool host_stream = false;
  bool gpu = false;              // Ranks are GPUs, buffers their memory.
  int graph = 0;                 // Operations in a CUDA graph; 0: each is launched.
  int unaligned = 0;             // Bytes by which buffers miss their alignment.
  std::string alloc = "malloc";  // or nccl, or window
  bool blocking = false;
  bool median = false;
  bool bind = false;
  bool print_plan = false;
  bool predict = false;  // Show the time that the library expects, too.
  double timeout_s = 300;
};

// "8", "32K", "1.5M", "2GiB": powers of 1024.
Result<size_t> ParseBytes(std::string_view text);
// "512", "32K", "1M": powers of 1024, shortest form.
std::string BytesText(size_t bytes);

// From `first` to `last`, multiplying by `factor`, or adding `step` where that is not 0.
Result<std::vector<size_t>> SizesBetween(size_t first, size_t last, double factor, size_t step);

// Any usual spelling of a type ("float", "f32", "half", "fp8_e4m3", …) or "all"; lists with commas.
Result<std::vector<ncclDataType_t>> ParseTypes(std::string_view text);
std::string_view TypeName(ncclDataType_t type);

// "sum", "avg", …, "all"; lists with commas.
Result<std::vector<Reduction>> ParseReductions(std::string_view text);

// A rank, or "all".
Result<std::vector<int>> ParseRoots(std::string_view text, int num_ranks);

// How many sets of buffers a rank goes round for operations of `bytes_per_set`, so that all sets
// together are larger than the last-level cache, within bounds of memory and count. `ranks_here`
// share the cache.
int ChooseRotation(size_t bytes_per_set, size_t cache_bytes, size_t memory_bytes, int ranks_here);

}  // namespace tutti::tools
