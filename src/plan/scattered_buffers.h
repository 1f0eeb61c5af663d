#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tutti {

// The buffers of one rank in an operation on many buffers, which counts them as one vector: laid
// end to end.
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

  // Returns the elements before the end of the buffer that holds element `at`.
  size_t EndOfBufferAt(size_t at) const {
    return *std::upper_bound(starts.begin(), starts.end(), at);
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

}  // namespace tutti
