// libFuzzer entry for the reader of machine files; `make fuzz` builds and runs it.

#include <cstddef>
#include <cstdint>

#include "topology/testing/machine_fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::topology::fuzz::ReadMachine({reinterpret_cast<const char*>(data), size});
  return 0;
}
