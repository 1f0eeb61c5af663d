// A network of two layers: 64 pixels, 64 hidden units (ReLU), 10 classes (softmax, cross entropy).
//
// All weights lie in one array, and so do all gradients; ranks therefore exchange one buffer. This
// file does no communication: averaging over ranks is the trainer's work.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dataset.h"

namespace digits {

inline constexpr int kHidden = 64;

/// The counts of a pass over some images.
struct Score {
  double loss = 0;  // cross entropy, summed over the images
  int64_t correct = 0;
  int64_t images = 0;
};

class Network {
 public:
  /// All weights zero, from which no training can start: the weights must be drawn, or received
  /// from another rank.
  Network();

  /// Draws all weights from `seed` (He's initialisation: variance 2 / inputs; biases zero).
  void DrawWeights(uint64_t seed);

  /// Runs the images `which` of `images` forward.
  [[nodiscard]] Score Evaluate(const std::vector<Image>& images,
                               std::span<const size_t> which) const;

  /// As Evaluate, and adds the gradient of the summed loss to `gradient`, laid out like weights().
  /// REQUIRES: gradient.size() == weights().size().
  [[nodiscard]] Score AddGradient(const std::vector<Image>& images, std::span<const size_t> which,
                                  std::span<float> gradient) const;

  std::span<float> weights() { return weights_; }
  std::span<const float> weights() const { return weights_; }

 private:
  std::vector<float> weights_;
};

/// Gradient descent with momentum: velocity = momentum * velocity + gradient; weights -=
/// learning_rate * velocity.
class Sgd {
 public:
  Sgd(size_t size, float learning_rate, float momentum)
      : velocity_(size, 0.0F), learning_rate_(learning_rate), momentum_(momentum) {}

  /// REQUIRES: both spans have the size given at construction.
  void Step(std::span<const float> gradient, std::span<float> weights);

 private:
  std::vector<float> velocity_;
  float learning_rate_;
  float momentum_;
};

}  // namespace digits
