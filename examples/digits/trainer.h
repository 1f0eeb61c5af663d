// Data-parallel training: every rank holds the same weights, works on its share of each batch, and
// AllReduce adds up the gradients, hence every rank takes the same step.
//
// The batch is the global batch and the gradient is divided by its length, with any number of
// ranks. The mathematics is therefore the same with one rank or with many, and only the order of
// floating-point additions differs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "communicator.h"
#include "dataset.h"
#include "network.h"

namespace digits {

struct Settings {
  int epochs = 20;
  size_t batch = 32;  // images per step, all ranks together
  float learning_rate = 0.05F;
  float momentum = 0.9F;
  uint64_t seed = 1;
};

/// Identical on every rank.
struct Outcome {
  double loss = 0;                      // mean over the training images with the final weights
  Score test;                           // over the test images
  std::vector<uint64_t> weight_hashes;  // one a rank, in rank order
};

/// Called after each epoch with its number from 1 and the epoch's score over all ranks.
using Progress = std::function<void(int epoch, const Score& train)>;

/// Draws the weights on rank 0, gives them to all ranks, trains, and evaluates. Collective: every
/// rank of `comm` must call it with the same data and settings. Throws std::runtime_error if the
/// communicator fails.
Outcome Train(const Dataset& data, const Settings& settings, Communicator* comm,
              const Progress& progress);

}  // namespace digits
