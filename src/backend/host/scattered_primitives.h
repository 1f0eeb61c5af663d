#pragma once

// DirectPrimitives over many buffers that count as one vector: an AllReduce of a thousand small
// vectors stages each from where it lies and writes its result where it belongs, with no copy
// between.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/host/stage_primitives.h"

namespace tutti {

// The buffers of one rank, laid end to end.
struct ScatteredBuffers {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;   // outputs[i] may be inputs[i]
  std::vector<size_t> starts = {0};  // elements before buffer i; one more than there are buffers

  size_t count() const { return starts.back(); }
  // Buffers that follow one another in memory, at both ends, become one.
  void Append(const std::byte* input, std::byte* output, size_t elements, size_t elem_bytes) {
    if (!inputs.empty()) {
      const size_t bytes = (starts.back() - starts[starts.size() - 2]) * elem_bytes;
      if (inputs.back() + bytes == input && outputs.back() + bytes == output) {
        starts.back() += elements;
        return;
      }
    }
    inputs.push_back(input);
    outputs.push_back(output);
    starts.push_back(starts.back() + elements);
  }

  // Calls f(buffer, at, elements, before) for each stretch of [from, from + n) that lies in one
  // buffer: `at` elements into it, after `before` elements of the range.
  template <class F>
  void ForEachStretch(size_t from, size_t n, F f) const {
    if (n == 0) return;
    auto i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), from) -
                                 starts.begin() - 1);
    for (size_t done = 0; done < n; ++i) {
      const size_t at = from + done - starts[i];
      const size_t size = std::min(starts[i + 1] - starts[i] - at, n - done);
      if (size > 0) f(i, at, size, done);
      done += size;
    }
  }
};

class HostScatteredPrimitives : public HostStagePrimitives {
 public:
  HostScatteredPrimitives(StageGroup& group, WaitContext& wait, const HostWork& work,
                          const ScatteredBuffers& buffers)
      : HostStagePrimitives(group, wait, work), buffers_(buffers) {}

  void Stage(uint64_t round, size_t at, size_t in, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t before) {
      StageFrom(round, at + before, Input(i, from), size);
    });
  }
  void StageOutput(uint64_t round, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      StageOutputFrom(round, at + before, Output(i, from), size);
    });
  }
  void ReduceSlots(uint64_t round, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      ReduceSlotsTo(round, at + before, Output(i, from), size);
    });
  }
  void ReducePart(uint64_t round, size_t at, size_t in, size_t, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t before) {
      ReducePartTo(round, at + before, Input(i, from), Output(i, from), size);
    });
  }
  void CopyFromSlot(uint64_t round, int peer, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      CopySlotTo(round, peer, at + before, Output(i, from), size);
    });
  }
  void CopyLocal(size_t in, size_t, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t) {
      if (Input(i, from) != Output(i, from))
        CopyBytes(Output(i, from), Input(i, from), size * elem_bytes());
    });
  }

 private:
  const std::byte* Input(size_t i, size_t at) const {
    return buffers_.inputs[i] + at * elem_bytes();
  }
  std::byte* Output(size_t i, size_t at) const { return buffers_.outputs[i] + at * elem_bytes(); }

  const ScatteredBuffers& buffers_;
};

}  // namespace tutti
