#include "bootstrap/job_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <string>

#include "bootstrap/auth.h"

namespace tutti {
namespace {

using testing::HasSubstr;

const std::string kLong(32, 's');
const std::string kShort = "seven words that are kept quiet";  // 31 bytes

int64_t ThreadNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

int64_t CostNs(std::string_view secret) {
  const int64_t began = ThreadNs();
  [[maybe_unused]] const Key key = WithSecret(Key{}, secret, "test");
  return ThreadNs() - began;
}

TEST(WithSecret, DependsOnAllArguments) {
  const Key key = KeyFromText("a"), other = KeyFromText("b");
  for (const std::string& secret : {kLong, kShort}) {
    const Key made = WithSecret(key, secret, "one");
    EXPECT_EQ(made, WithSecret(key, secret, "one"));
    EXPECT_NE(made, WithSecret(other, secret, "one"));
    EXPECT_NE(made, WithSecret(key, secret, "two"));
    EXPECT_NE(made, WithSecret(key, secret + "x", "one"));
    EXPECT_NE(made, key);
  }
  EXPECT_EQ(WithSecret(key, "", "one"), key);
}

// Other builds and hosts must come to the same keys.
TEST(WithSecret, HasFixedValues) {
  const auto begin_of = [](const Key& key) {
    return fmt::format("{:02x}{:02x}{:02x}{:02x}", key[0], key[1], key[2], key[3]);
  };
  EXPECT_EQ(begin_of(WithSecret(Key{}, kLong, "test")), "114ce72f");
  EXPECT_EQ(begin_of(WithSecret(Key{}, kShort, "test")), "497915b8");
}

TEST(WithSecret, OnlyShortSecretsCostAndOnlyOnce) {
  const int64_t first = CostNs("a short secret");
  const int64_t again = CostNs("a short secret");
  EXPECT_GT(first, 5'000'000);  // 32 MiB cannot be filled twice in less
  EXPECT_LT(again, first / 10);
  EXPECT_LT(CostNs(std::string(32, 'n')), first / 10);
}

TEST(RandomSecret, IsNeverTheSame) {
  const ErasedText secret = RandomSecret();
  EXPECT_THAT(secret, testing::MatchesRegex("[0-9a-f]{64}"));
  EXPECT_NE(secret, RandomSecret());
}

TEST(DescribeRejected, NamesTheSourceOfTheSecret) {
  EXPECT_EQ(DescribeRejected(0, "/key"), "");
  EXPECT_EQ(DescribeRejected(1, ""),
            "1 connection did not hold the job's key (no secret here; compare `tutti key "
            "--fingerprint` on all hosts)");
  EXPECT_EQ(DescribeRejected(2, "/key"),
            "2 connections did not hold the job's secret (/key here; compare `tutti key "
            "--fingerprint` on all hosts)");
}

TEST(CheckMeetingOverTcp, WantsASecretOrConsent) {
  EXPECT_TRUE(CheckMeetingOverTcp(kShort, false, "node7 port 5").ok());
  EXPECT_TRUE(CheckMeetingOverTcp("", true, "node7 port 5").ok());
  const Status refused = CheckMeetingOverTcp("", false, "node7 port 5");
  EXPECT_EQ(refused.code(), Code::kInvalidUsage);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("node7 port 5"));
}

}  // namespace
}  // namespace tutti
