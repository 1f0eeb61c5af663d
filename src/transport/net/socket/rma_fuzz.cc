// libFuzzer entry for the input of a connection for one-sided operations (make fuzz). The first
// byte chooses the size of the pieces.

#include "transport/testing/rma_fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  tutti::fuzz::FeedRma(bytes, size_t{1} << (data[0] & 7) << (data[0] & 4));
  return 0;
}
