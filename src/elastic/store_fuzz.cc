// libFuzzer entry for the store's messages and for lists of hosts: make fuzz.

#include <cstdint>

#include "elastic/testing/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::elastic::fuzz::All(std::as_bytes(std::span(data, size)));
  return 0;
}
