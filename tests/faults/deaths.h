#pragma once

// Jobs whose ranks kill themselves at seeded moments of the calls that ranks make together. Every
// survivor checks that it hears of each death, names the same lost ranks as the others and none
// that lives, and goes on with a smaller communicator.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nccl.h"

namespace tutti::testing {

enum class Call { kSteady, kSplit, kGrow, kWindow, kDevComm, kSuspend };
inline constexpr std::array<const char*, 6> kCallNames = {
    "AllReduce", "Split", "Grow", "WindowRegister", "DevCommCreate", "Suspend or Resume"};

// Says what the ranks call, who dies in it and when; and perhaps who dies in the shrink that
// follows. Ranks are those of the communicator of the moment.
struct Moment {
  Call call = Call::kSteady;
  int victim = 0;
  int delay_us = 0;
  // The victim makes the call itself, and does not only keep the others waiting.
  bool enters = true;
  int second_victim = -1;
  int second_delay_us = 0;
};

// A job: moments, each with the communicator that was left of the one before, until one rank is
// left or the moments are over.
struct Plan {
  int num_ranks = 2;
  bool by_sockets = false;
  std::vector<Moment> moments;
};

// Returns a job that ends with one rank. Equal seeds make equal jobs.
Plan MakePlan(int num_ranks, uint32_t seed);

// How long one survivor waited, from a death to the error of its call, or for the shrink after it.
struct Waited {
  Call call = Call::kSteady;
  bool shrink = false;
  int64_t us = 0;
};

struct Outcome {
  int deaths = 0;
  std::vector<Waited> waits;
};

// Runs the job, a process for each rank, and notes failures of the test in its survivors.
Outcome RunPlan(const Plan& plan);

// Adds up a value of each rank, also where ranks are GPUs: returns when the sum is there or the
// operation has failed.
ncclResult_t Reduce(ncclComm_t comm);

// Has the process kill itself after a time, in the midst of whatever the calling thread does by
// then. Calls `before` with the time of the death just before.
void DieAfter(int delay_us, std::function<void(int64_t now_us)> before);

// Prints how long the survivors waited: the middle, the tail and the longest, for each call.
void PrintWaits(std::vector<Waited> waits);

// Returns the seed of a run: that of the environment (TUTTI_TEST_SEED), so that a failure can be
// seen again, or 1.
uint32_t TestSeed();

// Returns the time in microseconds on a clock that all processes share.
int64_t NowUs();

// A survivor that is stranded waits for TUTTI_INIT_TIMEOUT_S, which these tests set to
// kInitTimeoutS, or for TUTTI_TIMEOUT_S, which is longer. One that is not stranded hears of a death
// within a second on a machine that has a moment for it; kNotStrandedUs leaves room for a machine
// that has not.
inline constexpr const char* kInitTimeoutS = "60";
inline constexpr int64_t kNotStrandedUs = 10'000'000;

}  // namespace tutti::testing
