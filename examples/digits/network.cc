#include "network.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "random.h"

namespace digits {
namespace {

// The layout of the array of weights: hidden weights (a row per unit), hidden biases, output
// weights (a row per class), output biases.
constexpr size_t kHiddenBias = size_t{kHidden} * kPixels;
constexpr size_t kOutput = kHiddenBias + kHidden;
constexpr size_t kOutputBias = kOutput + size_t{kClasses} * kHidden;
constexpr size_t kSize = kOutputBias + kClasses;

/// y = bias + matrix * x, for a matrix of Rows rows.
template <size_t Rows, size_t Columns>
void Affine(const float* matrix, const float* bias, const std::array<float, Columns>& x,
            std::array<float, Rows>* y) {
  for (size_t r = 0; r < Rows; ++r) {
    float sum = bias[r];
    for (size_t c = 0; c < Columns; ++c) sum += matrix[r * Columns + c] * x[c];
    (*y)[r] = sum;
  }
}

/// Adds the outer product delta * x to the matrix's gradient and delta to the bias's.
template <size_t Rows, size_t Columns>
void AddOuter(const std::array<float, Rows>& delta, const std::array<float, Columns>& x,
              float* matrix, float* bias) {
  for (size_t r = 0; r < Rows; ++r) {
    for (size_t c = 0; c < Columns; ++c) matrix[r * Columns + c] += delta[r] * x[c];
    bias[r] += delta[r];
  }
}

struct Activations {
  std::array<float, kHidden> hidden;
  std::array<float, kClasses> probability;
};

/// Runs one image forward, and adds its score to `score`.
Activations Forward(const float* weights, const Image& image, Score* score) {
  Activations a;
  Affine(weights, weights + kHiddenBias, image.pixels, &a.hidden);
  for (float& h : a.hidden) h = std::max(h, 0.0F);
  Affine(weights + kOutput, weights + kOutputBias, a.hidden, &a.probability);

  // Softmax. The largest logit is taken off first, in order that no exponential overflows.
  const auto largest = std::max_element(a.probability.begin(), a.probability.end());
  const float shift = *largest;
  const auto guess = largest - a.probability.begin();
  const float true_logit = a.probability[static_cast<size_t>(image.label)];
  float sum = 0;
  for (float& p : a.probability) sum += p = std::exp(p - shift);
  for (float& p : a.probability) p /= sum;

  score->loss += static_cast<double>(std::log(sum) - (true_logit - shift));
  score->correct += guess == image.label ? 1 : 0;
  score->images += 1;
  return a;
}

}  // namespace

Network::Network() : weights_(kSize, 0.0F) {}

void Network::DrawWeights(uint64_t seed) {
  Random random(seed);
  std::fill(weights_.begin(), weights_.end(), 0.0F);
  const double hidden_scale = std::sqrt(2.0 / kPixels);
  const double output_scale = std::sqrt(2.0 / kHidden);
  for (size_t i = 0; i < kHiddenBias; ++i)
    weights_[i] = static_cast<float>(hidden_scale * random.Normal());
  for (size_t i = kOutput; i < kOutputBias; ++i)
    weights_[i] = static_cast<float>(output_scale * random.Normal());
}

Score Network::Evaluate(const std::vector<Image>& images, std::span<const size_t> which) const {
  Score score;
  for (const size_t i : which) Forward(weights_.data(), images[i], &score);
  return score;
}

Score Network::AddGradient(const std::vector<Image>& images, std::span<const size_t> which,
                           std::span<float> gradient) const {
  Score score;
  for (const size_t i : which) {
    const Image& image = images[i];
    const Activations a = Forward(weights_.data(), image, &score);

    // For softmax with cross entropy the logits' gradient is the probabilities less the one-hot
    // label.
    std::array<float, kClasses> output_delta = a.probability;
    output_delta[static_cast<size_t>(image.label)] -= 1.0F;

    std::array<float, kHidden> hidden_delta{};
    for (size_t c = 0; c < kClasses; ++c) {
      for (size_t h = 0; h < kHidden; ++h)
        hidden_delta[h] += output_delta[c] * weights_[kOutput + c * kHidden + h];
    }
    for (size_t h = 0; h < kHidden; ++h) {
      if (a.hidden[h] <= 0) hidden_delta[h] = 0;
    }
    AddOuter(output_delta, a.hidden, &gradient[kOutput], &gradient[kOutputBias]);
    AddOuter(hidden_delta, image.pixels, gradient.data(), &gradient[kHiddenBias]);
  }
  return score;
}

void Sgd::Step(std::span<const float> gradient, std::span<float> weights) {
  for (size_t i = 0; i < velocity_.size(); ++i) {
    velocity_[i] = momentum_ * velocity_[i] + gradient[i];
    weights[i] -= learning_rate_ * velocity_[i];
  }
}

}  // namespace digits
