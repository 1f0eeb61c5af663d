// libFuzzer entry for the parsers of ids, requests, answers and frames: make fuzz.

#include "bootstrap/testing/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::fuzz::All(std::as_bytes(std::span(data, size)));
  return 0;
}
