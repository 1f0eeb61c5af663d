#pragma once

// Holds a rank's GPU for `tutti perf --device gpu`: its context on the calling thread, a stream,
// memory, and graphs of operations. CUDA's driver is looked up at run time, hence the program has
// no link to CUDA. Only the thread that opened the GPU may use the object.

#include <cstddef>
#include <functional>
#include <memory>

#include "backend/cuda/driver.h"
#include "base/status.h"

namespace tutti::tools {

class Gpu {
 public:
  // Opens GPU number `index` modulo the number of GPUs that this process sees.
  static Result<std::unique_ptr<Gpu>> Open(int index);
  ~Gpu();

  cuda::Stream stream() const { return stream_; }
  Status Synchronize();

  Result<char*> Allocate(size_t bytes);
  void Free(char* memory);
  // Allocates pinned memory of the host, which the GPU reaches at the same address.
  Result<char*> AllocatePinned(size_t bytes);
  void FreePinned(char* memory);
  Status Set(char* to, int byte, size_t bytes);
  Status Upload(char* to, const void* from, size_t bytes);
  Status Download(void* to, const char* from, size_t bytes);

  // Captures the operations of `issue` on the stream as a graph, and replaces an earlier graph.
  Status Capture(const std::function<Status()>& issue);
  Status LaunchGraph();
  // REQUIRES: the communicators of the graph's operations still exist.
  void DropGraph();

 private:
  explicit Gpu(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  int device_ = -1;
  cuda::Stream stream_ = nullptr;
  cuda::GraphExec graph_ = nullptr;
};

}  // namespace tutti::tools
