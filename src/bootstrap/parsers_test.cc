// Every parser of outside bytes: accepted input, refused input, and 100,000 mutations of valid
// messages.

#include <gtest/gtest.h>

#include <random>

#include "bootstrap/auth.h"
#include "bootstrap/testing/fuzz_targets.h"
#include "bootstrap/testing/sealed_pair.h"
#include "bootstrap/testing/thread_ranks.h"

namespace tutti {
namespace {

UniqueId SomeId() {
  UniqueId id;
  for (size_t i = 0; i < id.key.size(); ++i) id.key[i] = static_cast<uint8_t>(i * 7 + 1);
  id.root = *ParseSocketAddress("10.1.2.3:4567");
  id.flags = UniqueId::kKeyFromSetting;
  id.id = 0x0123456789abcdef;
  return id;
}

RootRequest SomeRegistration() {
  RootRequest request;
  request.rank = 5;
  request.num_ranks = 9;
  request.num_roots = 2;
  request.root_index = 1;
  request.timeout_ms = 1000;
  request.pid = 77;
  request.host = "node5";
  request.contact = {*ParseSocketAddress("[::1]:9"), Key{42}};
  return request;
}

RootRequest SomeLookUp() {
  RootRequest request = SomeRegistration();
  request.kind = RootRequest::Kind::kLookUp;
  request.rank = 1;
  request.wanted = {5, 6, 8};
  return request;
}

RootRequest SomeRefusal() {
  RootRequest request = SomeRegistration();
  request.kind = RootRequest::Kind::kDecline;
  request.why = "no port is free";
  return request;
}

TEST(UniqueIdBytes, SurviveEncodingAndDecoding) {
  char bytes[128];
  SomeId().Encode(bytes);
  const auto back = UniqueId::Decode(bytes);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->key, SomeId().key);
  EXPECT_EQ(back->root, SomeId().root);
  EXPECT_EQ(back->flags, SomeId().flags);
  EXPECT_EQ(back->id, SomeId().id);
}

TEST(UniqueIdBytes, SayWhatIsWrongWithThem) {
  char zeros[128] = {};
  EXPECT_NE(UniqueId::Decode(zeros).status().message().find("all zeros"), std::string_view::npos);
  char foreign[128] = {2, 0, 17, 17};
  EXPECT_NE(UniqueId::Decode(foreign).status().message().find("not made by this library"),
            std::string_view::npos);
  char bytes[128];
  SomeId().Encode(bytes);
  bytes[127] = 1;
  EXPECT_NE(UniqueId::Decode(bytes).status().message().find("damaged"), std::string_view::npos);
  EXPECT_EQ(UniqueId::Decode(bytes).status().code(), Code::kInvalidArgument);
}

TEST(RootMessages, RequestsSurviveEncodingAndParsing) {
  const auto registration = ParseRootRequest(EncodeRootRequest(SomeRegistration()));
  ASSERT_TRUE(registration.ok()) << registration.status().message();
  EXPECT_EQ(registration->host, "node5");
  EXPECT_EQ(registration->contact.address, SomeRegistration().contact.address);
  EXPECT_EQ(registration->contact.key.get(), Key{});  // not in the request
  const auto look_up = ParseRootRequest(EncodeRootRequest(SomeLookUp()));
  ASSERT_TRUE(look_up.ok()) << look_up.status().message();
  EXPECT_EQ(look_up->wanted, SomeLookUp().wanted);
  const auto refusal = ParseRootRequest(EncodeRootRequest(SomeRefusal()));
  ASSERT_TRUE(refusal.ok()) << refusal.status().message();
  EXPECT_EQ(refusal->why, "no port is free");
  RootRequest wordy = SomeRefusal();
  wordy.host = std::string(1000, 'h');
  wordy.why = std::string(1000, 'w');
  const Bytes cut = EncodeRootRequest(wordy);
  EXPECT_LE(cut.size(), kMaxHelloBytes);
  EXPECT_TRUE(ParseRootRequest(cut).ok());
}

TEST(RootMessages, RequestsThatContradictThemselvesAreRefused) {
  const auto refused = [](auto&& change) {
    RootRequest request = SomeRegistration();
    change(request);
    return !ParseRootRequest(EncodeRootRequest(request)).ok();
  };
  EXPECT_FALSE(refused([](RootRequest&) {}));
  EXPECT_TRUE(refused([](RootRequest& r) { r.rank = 9; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.rank = 4; }));  // in charge of the other root
  EXPECT_TRUE(refused([](RootRequest& r) { r.num_ranks = 0; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.num_ranks = kMaxRanks + 1; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.num_roots = 10; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.root_index = 2; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.contact.address.port = 0; }));
  EXPECT_TRUE(refused([](RootRequest& r) { r.contact.address.family = 5; }));
}

TEST(RootMessages, AnswersSurviveEncodingAndParsing) {
  RootAnswer answer;
  answer.contacts = {{3, {*ParseSocketAddress("10.0.0.1:2"), Key{5}}},
                     {7, {*ParseSocketAddress("[::2]:3"), Key{6}}}};
  const Bytes bytes = EncodeRootAnswer(answer);
  uint32_t type = 0;
  const auto size = ParseRootAnswerHeader(std::span(bytes).first(8), &type);
  ASSERT_TRUE(size.ok());
  ASSERT_EQ(*size, bytes.size() - 8);
  const auto back = ParseRootAnswer(type, std::span(bytes).subspan(8));
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back->contacts.size(), 2u);
  EXPECT_EQ(back->contacts[1].second.address, answer.contacts[1].second.address);

  answer.failure = InvalidUsage("two of a kind");
  const Bytes failure = EncodeRootAnswer(answer);
  ASSERT_TRUE(ParseRootAnswerHeader(std::span(failure).first(8), &type).ok());
  const auto told = ParseRootAnswer(type, std::span(failure).subspan(8));
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->failure.code(), Code::kInvalidUsage);
  EXPECT_EQ(told->failure.message(), "two of a kind");
  // The sentence ends up on a terminal.
  answer.failure = InvalidUsage("one\nTutti: two\x1b[2J");
  const Bytes rude = EncodeRootAnswer(answer);
  ASSERT_TRUE(ParseRootAnswerHeader(std::span(rude).first(8), &type).ok());
  EXPECT_EQ(ParseRootAnswer(type, std::span(rude).subspan(8))->failure.message(),
            "one?Tutti: two?[2J");

  answer.notice = "2 of 3 ranks have arrived";
  const Bytes notice = EncodeRootAnswer(answer);
  ASSERT_TRUE(ParseRootAnswerHeader(std::span(notice).first(8), &type).ok());
  EXPECT_EQ(ParseRootAnswer(type, std::span(notice).subspan(8))->notice, answer.notice);
}

TEST(RootMessages, EveryRankHasOneRootAndLinkTargetsDiffer) {
  for (const int n : {1, 2, 3, 7, 8, 100}) {
    for (int rank = 0; rank < n; ++rank) {
      std::vector<int> targets = LinkTargets(rank, n);
      for (size_t i = 0; i < targets.size(); ++i) {
        EXPECT_EQ((targets[i] - rank + n) % n, 1 << i);
      }
      EXPECT_EQ(
          targets.size(),
          n == 1 ? 0u : static_cast<size_t>(32 - __builtin_clz(static_cast<unsigned>(n - 1))));
    }
  }
  EXPECT_EQ(RootInCharge(0, 7, 3), 0u);
  EXPECT_EQ(RootInCharge(6, 7, 3), 2u);
}

TEST(Frames, AnnouncedSizesAreBounded) {
  Bytes frame = EncodeFrame({.type = LinkFrameType::kMessage, .tag = 1, .communicator = 2}, {});
  frame[19] = std::byte{0x10};  // 256 MiB
  FrameReader reader;
  const auto sink = [](const FrameHeader&, const Bytes&) { return Status::Ok(); };
  EXPECT_FALSE(reader.Feed(frame, sink).ok());
}

Bytes Concatenated(std::initializer_list<Bytes> all) {
  Bytes result;
  for (const Bytes& bytes : all) result.insert(result.end(), bytes.begin(), bytes.end());
  return result;
}

// Returns two records whose headers are right for every receiver, and whose key no receiver has.
Bytes SomeRecords() {
  auto [sender, receiver] = testing::SealedPair();
  for (const size_t size : {1u, 50u}) EXPECT_EQ(*sender.TrySend(Bytes(size)), size);
  Bytes bytes(1000);
  bytes.resize(static_cast<size_t>(*TryRecv(receiver.fd(), bytes)));
  return bytes;
}

// A failure prints the seed; the n-th mutation of a seed is always the same.
TEST(Parsers, SurviveSeededMutations) {
  char id_text[128];
  SomeId().Encode(id_text);
  const auto id_bytes = std::as_bytes(std::span(id_text));
  const Bytes text(100, std::byte{'t'});
  RootAnswer contacts;
  contacts.contacts = {{3, SomeRegistration().contact}, {4, SomeRegistration().contact}};
  RootAnswer failure;
  failure.failure = Timeout("too late");
  RootAnswer notice;
  notice.notice = "ranks are missing";
  const std::vector<Bytes> seeds = {
      Bytes(id_bytes.begin(), id_bytes.end()),
      EncodeRootRequest(SomeRegistration()),
      EncodeRootRequest(SomeLookUp()),
      EncodeRootRequest(SomeRefusal()),
      EncodeRootAnswer(contacts),
      EncodeRootAnswer(failure),
      EncodeRootAnswer(notice),
      Concatenated(
          {EncodeFrame({.type = LinkFrameType::kMessage, .tag = 3, .communicator = 9}, text),
           EncodeFrame({.type = LinkFrameType::kEnd}, {}),
           EncodeFrame({.type = LinkFrameType::kControl, .communicator = 1}, text)}),
      Concatenated({Bytes{std::byte{2}}, WriteParts(std::vector<Bytes>{text, Bytes()})}),
      Concatenated({testing::ToBytes("TUTTIHS2"), Bytes(64, std::byte{9})}),
      SomeRecords(),
  };
  for (size_t s = 0; s < seeds.size(); ++s) {
    SCOPED_TRACE(fmt::format("seed {}", s));
    std::mt19937_64 random(s);
    fuzz::All(seeds[s]);
    for (int i = 0; i < 100'000 / static_cast<int>(seeds.size()); ++i) {
      Bytes mutated = seeds[s];
      for (uint64_t changes = 1 + random() % 4; changes > 0 && !mutated.empty(); --changes) {
        const size_t at = random() % mutated.size();
        switch (random() % 4) {
          case 0:
            mutated[at] = std::byte(random());
            break;
          case 1:
            mutated[at] ^= std::byte(1u << (random() % 8));
            break;
          case 2:
            mutated.resize(at);
            break;
          default:
            mutated.insert(mutated.begin() + static_cast<ptrdiff_t>(at), random() % 9,
                           std::byte(random() % 2 == 0 ? 0 : 255));
        }
      }
      fuzz::All(mutated);
    }
  }
}

}  // namespace
}  // namespace tutti
