#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tutti {

// Holds the buffers of one rank in an operation on many buffers. The operation counts the buffers
// as one vector, laid end to end.
struct ScatteredBuffers {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;  // outputs[i] may be inputs[i]
  // The number of elements before buffer i; the last entry is the number of all elements.
  std::vector<size_t> starts = {0};

  size_t count() const { return starts.back(); }
  // Appends a buffer. A buffer that directly follows the previous one in memory, both as input and
  // as output, is merged into it.
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

  // Returns how many elements lie before the end of the buffer that holds element `at`.
  size_t EndOfBufferAt(size_t at) const {
    return *std::upper_bound(starts.begin(), starts.end(), at);
  }

  // Calls f(buffer, at, elements, before) for each stretch of the elements from `from` to from + n
  // inside a single buffer. The stretch begins `at` elements into the buffer, after `before`
  // elements of the range.
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
