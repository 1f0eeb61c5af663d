// libFuzzer entry: clang++ -fsanitize=fuzzer,address -std=c++20 -iquote src -Iinclude
// src/bootstrap/parsers_fuzz.cc … docs/bootstrap.md has the whole command.

#include "bootstrap/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::fuzz::All(std::as_bytes(std::span(data, size)));
  return 0;
}
