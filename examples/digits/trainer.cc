#include "trainer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

namespace digits {
namespace {

/// FNV-1a over the bytes: equal weights give equal hashes, and any differing bit shows (except for
/// a chance of 2^-64).
uint64_t Hash(std::span<const float> weights) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : std::as_bytes(weights)) {
    hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
  }
  return hash;
}

/// The sum of every rank's score.
Score SumScores(const Score& mine, Communicator* comm) {
  std::array<double, 1> loss = {mine.loss};
  std::array<int64_t, 2> counts = {mine.correct, mine.images};
  comm->Sum(std::span<double>(loss));
  comm->Sum(std::span<int64_t>(counts));
  return {.loss = loss[0], .correct = counts[0], .images = counts[1]};
}

void Add(const Score& other, Score* score) {
  score->loss += other.loss;
  score->correct += other.correct;
  score->images += other.images;
}

/// All of `images`, each evaluated by one rank.
Score EvaluateTogether(const Network& network, const std::vector<Image>& images,
                       Communicator* comm) {
  std::vector<size_t> all(images.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return SumScores(network.Evaluate(images, Share(all, comm->rank(), comm->size())), comm);
}

/// One pass over the training images; returns this rank's part of the score.
Score TrainEpoch(const Dataset& data, const Settings& settings, int epoch, Network* network,
                 Sgd* sgd, Communicator* comm) {
  const std::vector<size_t> order = EpochOrder(data.train.size(), settings.seed, epoch);
  std::vector<float> gradient(network->weights().size());
  Score mine;
  for (size_t begin = 0; begin < order.size(); begin += settings.batch) {
    const auto batch =
        std::span(order).subspan(begin, std::min(settings.batch, order.size() - begin));
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    Add(network->AddGradient(data.train, Share(batch, comm->rank(), comm->size()), gradient),
        &mine);

    // Sums and divides by the whole batch, rather than averaging over ranks, since shares may
    // differ by an image.
    comm->Sum(std::span<float>(gradient));
    const float scale = 1.0F / static_cast<float>(batch.size());
    for (float& g : gradient) g *= scale;
    sgd->Step(gradient, network->weights());
  }
  return mine;
}

}  // namespace

// Only rank 0 draws the weights, and the broadcast gives every rank the same start.
Outcome Train(const Dataset& data, const Settings& settings, Communicator* comm,
              const Progress& progress) {
  Network network;
  if (comm->rank() == 0) network.DrawWeights(settings.seed);
  comm->Broadcast(network.weights(), 0);

  Sgd sgd(network.weights().size(), settings.learning_rate, settings.momentum);
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    const Score mine = TrainEpoch(data, settings, epoch, &network, &sgd, comm);
    progress(epoch + 1, SumScores(mine, comm));
  }

  const Score train = EvaluateTogether(network, data.train, comm);
  return {.loss = train.loss / static_cast<double>(train.images),
          .test = EvaluateTogether(network, data.test, comm),
          .weight_hashes = comm->Gather(Hash(network.weights()))};
}

}  // namespace digits
