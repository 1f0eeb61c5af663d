// libFuzzer entry for the input of a connection (make fuzz). The first byte chooses the end under
// test and the size of the pieces.

#include "transport/testing/socket_fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const size_t piece = size_t{1} << (data[0] & 7) << (data[0] & 4);
  switch (data[0] >> 6) {
    case 0:
      tutti::fuzz::FeedReceiver(bytes, piece, data[0] >> 4 & 3);
      break;
    case 1:
      tutti::fuzz::FeedReceiver(bytes, piece, data[0] >> 4 & 3, 1 + (data[0] >> 2 & 3));
      break;
    case 2:
      tutti::fuzz::FeedSender(bytes, piece);
      break;
    default:
      tutti::fuzz::FeedTaggedSender(bytes, piece);
      break;
  }
  return 0;
}
