// The handwritten digits for the trainer: pixels scaled to 0..1, labels, a fixed split into
// training and test images, and the rule by which ranks share a batch.
//
// Plain values without any network: every rank reads the whole file (265 kB) and keeps only the
// indices of its share of each batch. All failures are std::runtime_error with a message that names
// the file and the line.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digits {

inline constexpr int kPixels = 64;  // 8 rows of 8
inline constexpr int kClasses = 10;

struct Image {
  std::array<float, kPixels> pixels;  // 0..1
  int label;                          // 0..9
};

struct Dataset {
  std::vector<Image> train;
  std::vector<Image> test;
};

/// Reads a file of lines "pixel,...,pixel,label" (64 pixels of 0..16, a label of 0..9).
/// Throws std::runtime_error if the file cannot be read, holds no image, or has a line of another
/// form.
std::vector<Image> ReadImages(const std::string& path);

/// Shuffles `images` by `seed` and keeps the last fifth for the test. The file is sorted by writer,
/// hence an unshuffled split would train on some hands and test on others. Throws
/// std::runtime_error if there are fewer than five images, too few to leave one for the test.
Dataset Split(std::vector<Image> images, uint64_t seed);

/// The numbers 0..count-1 in an order drawn from (seed, epoch): the same on every rank and on every
/// run.
std::vector<size_t> EpochOrder(size_t count, uint64_t seed, int epoch);

/// The contiguous part of `batch` for `rank` of `size` ranks. The parts of all ranks are disjoint
/// and cover the batch. Their lengths differ by one at most, and may be 0 when there are more ranks
/// than items.
std::span<const size_t> Share(std::span<const size_t> batch, int rank, int size);

}  // namespace digits
