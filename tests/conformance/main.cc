// The tests of this program, on host ranks unless TUTTI_TEST_MEMORY asks for GPUs (place.h).

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "conformance/place.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!tutti::testing::OnGpus()) {
    // A machine with GPUs would make ranks of them.
    setenv("TUTTI_BACKEND", "host", /*overwrite=*/0);
  } else if (tutti::testing::MostRanks() == 0) {
    std::printf("skipped: this machine shows no GPUs\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
