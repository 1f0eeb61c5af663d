#pragma once

// The oracle of Adasum, and helpers for its tests.

#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/adasum.h"

namespace tutti::coordinator {

// Tensors in the host's memory, with the memory for combining them. `vector` remains the caller's.
template <typename T>
class HostAdasum {
 public:
  HostAdasum(std::span<const size_t> counts, std::vector<T>& vector, int local_size = 1)
      : scratch_(vector.size()),
        dots_(AdasumDotsBytes(counts.size(), local_size) / sizeof(double)) {
    vectors_.type = sizeof(T) == sizeof(double) ? ncclFloat64 : ncclFloat32;
    vectors_.counts = counts;
    vectors_.vector = reinterpret_cast<std::byte*>(vector.data());
    vectors_.scratch = reinterpret_cast<std::byte*>(scratch_.data());
    vectors_.dots = dots_.data();
  }
  const AdasumVectors& vectors() const { return vectors_; }

 private:
  std::vector<T> scratch_;
  std::vector<double> dots_;
  AdasumVectors vectors_;
};

// Returns the result by the definition for the vectors of all ranks, over the whole vectors, in the
// order of the tree.
inline std::vector<double> AdasumOf(std::vector<std::vector<double>> v) {
  const auto pair = [](const std::vector<double>& a, const std::vector<double>& b) {
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      dot += a[i] * b[i];
      aa += a[i] * a[i];
      bb += b[i] * b[i];
    }
    std::vector<double> out;
    for (size_t i = 0; i < a.size(); ++i) {
      out.push_back((aa == 0 ? 1 : 1 - dot / (2 * aa)) * a[i] +
                    (bb == 0 ? 1 : 1 - dot / (2 * bb)) * b[i]);
    }
    return out;
  };
  size_t core = 1;
  while (core * 2 <= v.size()) core *= 2;
  for (size_t i = core; i < v.size(); ++i) v[i - core] = pair(v[i - core], v[i]);
  for (size_t distance = 1; distance < core; distance *= 2) {
    for (size_t i = 0; i + distance < core; i += 2 * distance) v[i] = pair(v[i], v[i + distance]);
  }
  return v[0];
}

// Returns the result of Adasum in two levels: of the averages of hosts, which have `local_size`
// ranks each.
inline std::vector<double> AdasumOfHosts(const std::vector<std::vector<double>>& v,
                                         size_t local_size) {
  std::vector<std::vector<double>> averages;
  for (size_t rank = 0; rank < v.size(); ++rank) {
    if (rank % local_size == 0) averages.emplace_back(v[rank].size(), 0.0);
    for (size_t i = 0; i < v[rank].size(); ++i) {
      averages.back()[i] += v[rank][i] / static_cast<double>(local_size);
    }
  }
  return AdasumOf(std::move(averages));
}

}  // namespace tutti::coordinator
