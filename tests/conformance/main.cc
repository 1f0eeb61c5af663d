// The tests of this program, on host ranks unless TUTTI_TEST_MEMORY asks for GPUs (place.h).

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "conformance/place.h"

namespace {

// Begins each test without a device, whatever the test before it has left to the thread: streams
// and communicators of a test that names no device are then on the same one.
class NoDeviceAtFirst : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { tutti::testing::UseNoDevice(); }
};

}  // namespace

// Tells the thread sanitizer that a new thread may take the stack of one that has ended, and with
// it the variables of libraries opened later: the C library orders the two without its knowledge.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls"; }

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new NoDeviceAtFirst);
  if (!tutti::testing::OnGpus()) {
    // A machine with GPUs would make ranks of them.
    setenv("TUTTI_BACKEND", "host", /*overwrite=*/0);
  } else if (tutti::testing::MostRanks() == 0) {
    std::printf("skipped: this machine shows no GPUs\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
