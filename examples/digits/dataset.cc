#include "dataset.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "random.h"

namespace digits {
namespace {

constexpr int kMaxPixel = 16;
constexpr size_t kTestPart = 5;  // a fifth of the images is kept for the test

/// Takes the next integer off `text`, together with a following comma. Returns false without an
/// integer in 0..max.
bool TakeNumber(std::string_view* text, int max, int* value) {
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, *value);
  if (error != std::errc() || *value < 0 || *value > max) return false;
  if (stop != end && *stop != ',') return false;
  text->remove_prefix(static_cast<size_t>(stop - text->data()) + (stop == end ? 0 : 1));
  return true;
}

Image ParseLine(std::string_view line, const std::string& where) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  Image image{};
  for (int i = 0; i < kPixels; ++i) {
    int value = 0;
    if (!TakeNumber(&line, kMaxPixel, &value)) {
      throw std::runtime_error(where + ": field " + std::to_string(i + 1) +
                               " is not a pixel, a whole number from 0 to 16");
    }
    image.pixels[static_cast<size_t>(i)] = static_cast<float>(value) / kMaxPixel;
  }
  if (!TakeNumber(&line, kClasses - 1, &image.label) || !line.empty()) {
    throw std::runtime_error(
        where + ": after 64 pixels must come one label from 0 to 9 and the end of the line");
  }
  return image;
}

// Fisher and Yates' method, with random numbers that are equal on every machine.
template <typename T>
void Shuffle(std::vector<T>* items, Random* random) {
  for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[random->Below(i)]);
}

}  // namespace

std::vector<Image> ReadImages(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw std::runtime_error("cannot open the images in " + path + ": " + std::strerror(errno));
  std::vector<Image> images;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    images.push_back(ParseLine(line, path + ", line " + std::to_string(number)));
  }
  if (file.bad()) throw std::runtime_error("reading " + path + " failed: " + std::strerror(errno));
  if (images.empty()) throw std::runtime_error(path + " holds no image");
  return images;
}

Dataset Split(std::vector<Image> images, uint64_t seed) {
  if (images.size() < kTestPart) {
    throw std::runtime_error(
        "at least 5 images are needed, to keep one in five for the test; there are " +
        std::to_string(images.size()));
  }
  Random random(seed);
  Shuffle(&images, &random);
  const auto test_begin = images.end() - static_cast<ptrdiff_t>(images.size() / kTestPart);
  return {.train = {images.begin(), test_begin}, .test = {test_begin, images.end()}};
}

std::vector<size_t> EpochOrder(size_t count, uint64_t seed, int epoch) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  Random random(seed + 1 + static_cast<uint64_t>(epoch));
  Shuffle(&order, &random);
  return order;
}

std::span<const size_t> Share(std::span<const size_t> batch, int rank, int size) {
  const size_t begin = batch.size() * static_cast<size_t>(rank) / static_cast<size_t>(size);
  const size_t end = batch.size() * (static_cast<size_t>(rank) + 1) / static_cast<size_t>(size);
  return batch.subspan(begin, end - begin);
}

}  // namespace digits
