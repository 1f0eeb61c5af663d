#pragma once

// The library's kernels as the stand-in for a driver runs them: on the host, a thread for each
// block. They have a file of their own because they take long to compile and seldom change.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace fake {

struct FakeFunction {
  std::function<void(const void* args, uint32_t block)> run;
  size_t args_bytes = 0;
  // Memory that only one kernel at a time may use: the counters of its communicator on its rank.
  std::function<const void*(const void* args)> owns;
};

// All of them, by their names in the device code.
std::map<std::string, FakeFunction, std::less<>> MakeFunctions();

}  // namespace fake
