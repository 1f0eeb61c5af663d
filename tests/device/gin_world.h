#pragma once

// Tests of device-initiated networking, whose ranks are threads.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "rank_threads.h"

namespace tutti::testing {

// How the ranks of a test reach one another: by the memory that they share, or by the network, as
// if each were on a host of its own. The network is the one that NCCL_NET names: sockets, where it
// names none.
enum class Way { kMemory, kNetwork };

inline const char* NameOf(Way way) { return way == Way::kMemory ? "Memory" : "Network"; }

// Has ranks that are made during its life reach one another in this way.
class WayInEnvironment {
 public:
  explicit WayInEnvironment(Way way) {
    // No rank shares memory with another one then, not even in one process.
    setenv("NCCL_SHM_DISABLE", way == Way::kNetwork ? "1" : "0", /*overwrite=*/1);
    // GPUs do not reach one another's either.
    if (RanksAreGpus())
      setenv("NCCL_P2P_DISABLE", way == Way::kNetwork ? "1" : "0", /*overwrite=*/1);
  }
  ~WayInEnvironment() {
    unsetenv("NCCL_SHM_DISABLE");
    unsetenv("NCCL_P2P_DISABLE");
  }
  WayInEnvironment(const WayInEnvironment&) = delete;
  WayInEnvironment& operator=(const WayInEnvironment&) = delete;
};

class GinTest : public ::testing::TestWithParam<Way> {
 private:
  const WayInEnvironment way_{GetParam()};
};

inline std::string NameOfInstance(const ::testing::TestParamInfo<Way>& instance) {
  return NameOf(instance.param);
}

}  // namespace tutti::testing
