// Trains a small network on handwritten digits, data-parallel: ranks that communicate only through
// NCCL's C API.
//
//   digits --ranks 4                       four processes of this program's own
//   tutti run -n 4 digits                  the processes of a launcher (RANK, WORLD_SIZE,
//   TUTTI_ID_FILE)
//
// Prints the falling loss, the test accuracy, each rank's hash of its weights, and the result of
// one rank alone. Exits with 0 only if the accuracy is high enough, all weights are identical and
// one rank alone reaches the same loss. A program for users: it includes only <nccl.h> and the
// standard library.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "communicator.h"
#include "dataset.h"
#include "launch.h"
#include "trainer.h"

#ifndef DIGITS_DATA_FILE
#define DIGITS_DATA_FILE "examples/data/digits.csv"
#endif

namespace digits {
namespace {

// The tolerance of the loss. One rank adds up the gradients of a batch in another order than four
// ranks do, and the rounding (1e-7 a step) grows over the steps of training. Measured: below 1e-6
// of the loss after 20 epochs, for 2 to 16 ranks and five seeds, and 4e-5 after 400. A wrong share
// or a wrong scale of the gradients exceeds this by far.
constexpr double kLossTolerance = 1e-3;

constexpr const char* kUsage = R"(usage: digits [options]
  --ranks N           start N ranks here (default 4; under a launcher its number counts)
  --epochs N          passes over the training images (default 20)
  --batch N           images per step, all ranks together (default 32)
  --seed N            of the weights, the split and the order (default 1)
  --min-accuracy P    percent of the test images that must be right (default 95)
  --data FILE         the images (default: those of examples/data)
  --id-file FILE      under a launcher: where rank 0 leaves the id (default: $TUTTI_ID_FILE)
  --help              this text
)";

struct Options {
  Settings training;
  int ranks = 4;
  double min_accuracy_percent = 95;
  std::string data = DIGITS_DATA_FILE;
  std::string id_file;
  bool help = false;
};

template <typename T>
T Number(std::string_view option, std::string_view text, T least, T most) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() ||
      !(value >= least && value <= most)) {
    throw std::runtime_error(std::string(option) + " needs a number from " + std::to_string(least) +
                             " to " + std::to_string(most) + ", not \"" + std::string(text) + "\"");
  }
  return value;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") {
      options.help = true;
      return options;
    }
    if (!name.starts_with("--"))
      throw std::runtime_error("what is \"" + std::string(name) + "\"? Try --help");
    if (i + 1 == argc)
      throw std::runtime_error(std::string(name) + " is unknown or lacks its value. Try --help");
    const std::string_view value = argv[++i];
    if (name == "--ranks") {
      options.ranks = Number(name, value, 1, 1024);
    } else if (name == "--epochs") {
      options.training.epochs = Number(name, value, 1, 100000);
    } else if (name == "--batch") {
      options.training.batch = Number<size_t>(name, value, 1, 1000000);
    } else if (name == "--seed") {
      options.training.seed = Number<uint64_t>(name, value, 0, UINT32_MAX);
    } else if (name == "--min-accuracy") {
      options.min_accuracy_percent = Number(name, value, 0.0, 100.0);
    } else if (name == "--data") {
      options.data = value;
    } else if (name == "--id-file") {
      options.id_file = value;
    } else {
      throw std::runtime_error("there is no option " + std::string(name) + ". Try --help");
    }
  }
  return options;
}

Progress PrintLoss(int epochs) {
  return [epochs](int epoch, const Score& score) {
    // The loss falls fastest at first: every epoch up to five, then every fifth, then the last.
    if (epoch > 5 && epoch % 5 != 0 && epoch != epochs) return;
    std::printf("  epoch %3d   loss %.4f   training accuracy %5.1f %%\n", epoch,
                score.loss / static_cast<double>(score.images),
                100.0 * static_cast<double>(score.correct) / static_cast<double>(score.images));
    std::fflush(stdout);
  };
}

double Percent(const Score& score) {
  return 100.0 * static_cast<double>(score.correct) / static_cast<double>(score.images);
}

bool ReportAccuracy(const Outcome& outcome, double least_percent) {
  const bool enough = Percent(outcome.test) >= least_percent;
  std::printf("Test accuracy: %.1f %% (%lld of %lld images), at least %.1f %% was asked for: %s\n",
              Percent(outcome.test), static_cast<long long>(outcome.test.correct),
              static_cast<long long>(outcome.test.images), least_percent,
              enough ? "ok" : "TOO LOW");
  return enough;
}

bool ReportWeights(const Outcome& outcome) {
  const auto& hashes = outcome.weight_hashes;
  const bool identical =
      std::all_of(hashes.begin(), hashes.end(), [&](uint64_t h) { return h == hashes[0]; });
  std::printf("Hash of each rank's weights:\n");
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    std::printf("  rank %2zu   %016llx\n", rank, static_cast<unsigned long long>(hashes[rank]));
  }
  std::printf("The weights of all %zu ranks are %s\n", hashes.size(),
              identical ? "identical: ok" : "NOT IDENTICAL");
  return identical;
}

bool ReportAlone(const Outcome& together, const Outcome& alone) {
  const double difference = std::abs(together.loss - alone.loss) / alone.loss;
  const bool same = difference <= kLossTolerance;
  std::printf(
      "Final loss: %.6f together, %.6f by one rank alone; apart by %.1e of it, %.0e is allowed: "
      "%s\n",
      together.loss, alone.loss, difference, kLossTolerance, same ? "ok" : "NOT THE SAME");
  return same;
}

Outcome TrainAsRank(const Place& place, const Dataset& data, const Settings& settings,
                    const Progress& progress) {
  const ncclUniqueId id = ShareId(place);
  Communicator comm(id, place.rank, place.size);
  RemoveIdFile(place);
  Outcome outcome = Train(data, settings, &comm, progress);
  comm.Close();
  return outcome;
}

/// The work of every rank. Rank 0 also prints, and afterwards trains alone for comparison. Returns
/// the exit status.
int RunRank(const Place& place, const Options& options) {
  const Dataset data = Split(ReadImages(options.data), options.training.seed);
  const auto silent = [](int, const Score&) {};
  if (place.rank != 0) {
    TrainAsRank(place, data, options.training, silent);
    return 0;
  }
  std::printf("%zu images to train on, %zu to test on; %d ranks, %zu images a step\n",
              data.train.size(), data.test.size(), place.size, options.training.batch);
  const Outcome together =
      TrainAsRank(place, data, options.training, PrintLoss(options.training.epochs));
  bool good = ReportAccuracy(together, options.min_accuracy_percent);
  good = ReportWeights(together) && good;

  Communicator alone;
  good = ReportAlone(together, Train(data, options.training, &alone, silent)) && good;
  alone.Close();
  return good ? 0 : 1;
}

int RunRankGuarded(const Place& place, const Options& options) {
  try {
    return RunRank(place, options);
  } catch (const std::exception& error) {
    std::cerr << "digits, rank " << place.rank << ": " << error.what() << '\n';
    return 1;
  }
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.help) {
    std::cout << kUsage;
    return 0;
  }
  // The data are read once before any rank starts, hence bad data are reported once and not by
  // every rank.
  Split(ReadImages(options.data), options.training.seed);
  if (const auto place = PlaceFromEnvironment(options.id_file))
    return RunRankGuarded(*place, options);
  return ForkRanks(options.ranks,
                   [&](const Place& place) { return RunRankGuarded(place, options); });
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  try {
    return digits::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "digits: " << error.what() << '\n';
    return 2;
  }
}
