#pragma once

// Tests of device-initiated networking, whose ranks are threads.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "rank_threads.h"

namespace tutti::testing {

// How the ranks of a test reach one another.
enum class Way { kMemory, kSockets };

class GinTest : public ::testing::TestWithParam<Way> {
 protected:
  GinTest() {
    // No rank shares memory with another one then, not even in one process.
    setenv("NCCL_SHM_DISABLE", GetParam() == Way::kSockets ? "1" : "0", /*overwrite=*/1);
  }
  ~GinTest() override { unsetenv("NCCL_SHM_DISABLE"); }
};

inline std::string NameOf(const ::testing::TestParamInfo<Way>& instance) {
  return instance.param == Way::kMemory ? "Memory" : "Sockets";
}

}  // namespace tutti::testing
