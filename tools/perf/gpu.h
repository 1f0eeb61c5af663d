#pragma once

// A rank's GPU, for `tutti perf --device gpu`: its context on the calling thread, a stream, memory,
// and graphs of operations. Through the driver that is looked up at run time, so that the program
// has no link to CUDA either. Used by the thread that opened it.

#include <cstddef>
#include <functional>
#include <memory>

#include "backend/cuda/driver.h"
#include "base/status.h"

namespace tutti::tools {

class Gpu {
 public:
  // The `index`-th GPU that this process sees, round and round.
  static Result<std::unique_ptr<Gpu>> Open(int index);
  ~Gpu();

  cuda::Stream stream() const { return stream_; }
  Status Synchronize();

  Result<char*> Allocate(size_t bytes);
  void Free(char* memory);
  Status Set(char* to, int byte, size_t bytes);
  Status Upload(char* to, const void* from, size_t bytes);
  Status Download(void* to, const char* from, size_t bytes);

  // Keeps what `issue` queues on the stream as a graph, in place of an earlier one.
  Status Capture(const std::function<Status()>& issue);
  Status LaunchGraph();
  // REQUIRES: before the communicators of its operations are destroyed.
  void DropGraph();

 private:
  explicit Gpu(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  int device_ = -1;
  cuda::Stream stream_ = nullptr;
  cuda::GraphExec graph_ = nullptr;
};

}  // namespace tutti::tools
