// Measures the speed of the reduction kernels and of CopyBytes, by size of array (which decides the
// level of the memory that feeds them), type, operator and target. GB/s count every byte read or
// written once.
//
// "limit/add" is the least that a two-source reduction can do: a loop of two loads, an add and a
// store. The loop runs in the same process, for comparison with a kernel.
//
//   reduce_bench                                            the summary: the machine's best target
//   reduce_bench --benchmark_filter='AVX2/'                 another target; '.' runs everything

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/copy.h"
#include "base/reduce_targets.h"

namespace tutti {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Memory as large as asked for, in huge pages where the system gives them, each byte written.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : mapped_((bytes + 2 * kHugePage) / kHugePage * kHugePage + kHugePage) {
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    madvise(memory_, mapped_, MADV_HUGEPAGE);
    std::memset(memory_, 0x3c, mapped_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(memory_, mapped_); }

  // `shift` bytes past a huge page's start.
  uint8_t* At(size_t shift) const {
    const uintptr_t start =
        (reinterpret_cast<uintptr_t>(memory_) + kHugePage - 1) / kHugePage * kHugePage;
    return reinterpret_cast<uint8_t*>(start + shift);
  }

 private:
  size_t mapped_;
  void* memory_;
};

struct Case {
  ReduceFn reduce;
  DataType type;
  int num_sources;
  bool in_place;
  size_t shift;
  ReduceArgs args;
};

void RunReduce(benchmark::State& state, const Case& test) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<const void*> sources;
  for (int s = 0; s < test.num_sources; ++s) {
    buffers.push_back(std::make_unique<Buffer>(bytes));
    // A cache line more for each array: arrays at equal offsets in their pages would fight for the
    // same sets.
    sources.push_back(buffers.back()->At(test.shift + static_cast<size_t>(s) * 1088));
  }
  buffers.push_back(std::make_unique<Buffer>(bytes));
  void* dst = buffers.back()->At(test.shift + static_cast<size_t>(test.num_sources) * 1088);
  if (test.in_place) dst = const_cast<void*>(sources[0]);
  const size_t count = bytes / SizeOf(test.type);
  for (auto _ : state) {
    test.reduce(dst, sources.data(), test.num_sources, count, test.args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * (test.num_sources + 1) *
                          static_cast<int64_t>(bytes));
}

#if defined(__x86_64__)
typedef float Floats __attribute__((vector_size(64)));
[[gnu::target("avx512f")]]
#else
typedef float Floats __attribute__((vector_size(16)));
#endif
void AddFloats(void* dst, const void* const* sources, int, size_t count, const ReduceArgs&) {
  const char* a = static_cast<const char*>(sources[0]);
  const char* b = static_cast<const char*>(sources[1]);
  for (size_t offset = 0; offset < count * sizeof(float); offset += sizeof(Floats)) {
    Floats x, y;
    std::memcpy(&x, a + offset, sizeof(x));
    std::memcpy(&y, b + offset, sizeof(y));
    x += y;
    std::memcpy(static_cast<char*>(dst) + offset, &x, sizeof(x));
  }
}

using CopyFn = void (*)(void* dst, const void* src, size_t bytes);

void RunCopy(benchmark::State& state, CopyFn copy, size_t shift) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const Buffer from(bytes), to(bytes);
  for (auto _ : state) {
    copy(to.At(shift), from.At(shift + 1088), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * 2 *
                          static_cast<int64_t>(bytes));
}

void LibraryCopy(void* dst, const void* src, size_t bytes) { std::memcpy(dst, src, bytes); }

constexpr int64_t kSizes[] = {8 << 10, 256 << 10, 4 << 20, 256 << 20};

benchmark::internal::Benchmark* WithSizes(benchmark::internal::Benchmark* bench) {
  for (int64_t bytes : kSizes) bench->Arg(bytes);
  return bench;
}

void RegisterReduce(const ReduceTarget& target) {
  static constexpr const char* kKinds[] = {"sum", "prod", "max", "min"};
  for (int t = 0; t < kNumDataTypes; ++t) {
    for (int k = 0; k < kNumReduceKinds; ++k) {
      const auto type = static_cast<DataType>(t);
      const std::string name =
          std::string(target.name) + "/" + std::string(Name(type)) + "/" + kKinds[k];
      const ReduceFn reduce = target.find(type, static_cast<ReduceKind>(k));
      const auto add = [&](const std::string& variant, Case test) {
        WithSizes(benchmark::RegisterBenchmark((name + variant).c_str(), RunReduce, test));
      };
      add("/n2", {reduce, type, 2, false, 0, {}});
      if (static_cast<ReduceKind>(k) != ReduceKind::kSum) continue;
      add("/n2_in_place", {reduce, type, 2, true, 0, {}});
      add("/n2_unaligned", {reduce, type, 2, false, 16, {}});
      add("/n3", {reduce, type, 3, false, 0, {}});
      add("/n4", {reduce, type, 4, false, 0, {}});
      add("/n8", {reduce, type, 8, false, 0, {}});
      add("/n2_scaled", {reduce, type, 2, false, 0, {ScalarBits(type, 0.5), 3, 0}});
      add("/n2_divided", {reduce, type, 2, false, 0, {0, 0, 3}});
    }
  }
}

void RegisterAll() {
#if defined(__x86_64__)
  const bool has_limit = __builtin_cpu_supports("avx512f");
#else
  const bool has_limit = true;
#endif
  if (has_limit) {
    WithSizes(benchmark::RegisterBenchmark("limit/add/n2", RunReduce,
                                           Case{AddFloats, DataType::kFloat32, 2, false, 0, {}}));
    WithSizes(benchmark::RegisterBenchmark("limit/add/n2_in_place", RunReduce,
                                           Case{AddFloats, DataType::kFloat32, 2, true, 0, {}}));
    WithSizes(benchmark::RegisterBenchmark("limit/add/n2_unaligned", RunReduce,
                                           Case{AddFloats, DataType::kFloat32, 2, false, 16, {}}));
  }
  for (size_t shift : {0, 16}) {
    const std::string suffix = shift == 0 ? "" : "_unaligned";
    for (int64_t bytes : {8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20,
                          4 << 20, 16 << 20, 64 << 20, 256 << 20}) {
      benchmark::RegisterBenchmark(("copy/CopyBytes" + suffix).c_str(), RunCopy, CopyBytes, shift)
          ->Arg(bytes);
      benchmark::RegisterBenchmark(("copy/memcpy" + suffix).c_str(), RunCopy, LibraryCopy, shift)
          ->Arg(bytes);
    }
  }
  for (const ReduceTarget& target : ReduceTargets()) RegisterReduce(target);
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  tutti::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("best target", tutti::ReduceTargets()[0].name);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
