// libFuzzer entry for launchers' variables and for messages between ranks: make fuzz.

#include <cstdint>

#include "launch/testing/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::launch::fuzz::All(std::as_bytes(std::span(data, size)));
  return 0;
}
