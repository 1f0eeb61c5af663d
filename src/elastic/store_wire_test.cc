#include "elastic/store_wire.h"

#include <gtest/gtest.h>

#include <random>

#include "elastic/testing/fuzz_targets.h"

namespace tutti::elastic {
namespace {

TEST(StoreWire, EveryCutIsRefusedOrRead) {
  const Bytes whole = EncodeRequest({Op::kSet, 7, 9, "key", "value"});
  const Result<Request> request = ParseRequest(whole);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->key + request->value, "keyvalue");
  for (size_t size = 0; size < 17; ++size) {
    EXPECT_FALSE(ParseRequest(std::span(whole).first(size)).ok()) << size;
  }
  EXPECT_FALSE(ParseAnswer({}).ok());
}

TEST(StoreWire, MutationsBreakNoPromise) {
  std::mt19937 random(20);
  const auto bytes_of = [](std::string_view text) {
    const auto span = std::as_bytes(std::span(text));
    return Bytes(span.begin(), span.end());
  };
  const std::vector<Bytes> seeds = {EncodeRequest({Op::kSet, 7, 9, "ready/3", "12"}),
                                    EncodeRequest({Op::kGet, 1, 500, "generation", ""}),
                                    EncodeAnswer({Outcome::kDone, 9, "3 1\n0 a\n1 b\n"}),
                                    bytes_of("a:4\nb-1.lan:2, c\n# d\n")};
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = seeds[random() % seeds.size()];
    for (unsigned edits = random() % 4; edits > 0 && !bytes.empty(); --edits) {
      bytes[random() % bytes.size()] = std::byte(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 20));
    fuzz::All(bytes);
  }
}

}  // namespace
}  // namespace tutti::elastic
