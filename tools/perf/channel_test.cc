#include "perf/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "bootstrap/auth.h"

namespace tutti::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::array<UniqueFd, 2> Pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST(Channel, CarriesMessagesToTheEnd) {
  auto [one, other] = Pair();
  Channel driver(std::move(one)), rank(std::move(other));
  Json message;
  EXPECT_FALSE(rank.TryReceive(&message).value());
  ASSERT_TRUE(driver.Send({{"command", "hello"}}).ok());
  ASSERT_TRUE(driver.Send({{"command", "quit"}}).ok());
  driver.Close();
  EXPECT_EQ(rank.Receive(Deadline::AfterSeconds(5))->value("command", ""), "hello");
  EXPECT_EQ(rank.Receive(Deadline::AfterSeconds(5))->value("command", ""), "quit");
  EXPECT_FALSE(rank.TryReceive(&message).ok());
}

// The unique id must not be read from the wire, and a command must not be put into the stream.
TEST(Channel, SealedMessagesAreNeitherReadNorForged) {
  const SecretKey key(RandomKey());
  auto [one, wire] = Pair();
  Channel driver(SealedSocket(std::move(one), key, key));
  ASSERT_TRUE(driver.Send({{"command", "hello"}, {"library", "/a/library"}}).ok());
  std::array<char, 4096> seen;
  const ssize_t got = recv(wire.get(), seen.data(), seen.size(), 0);
  ASSERT_GT(got, 0);
  const std::string bytes(seen.data(), static_cast<size_t>(got));
  EXPECT_THAT(bytes, Not(HasSubstr("library")));

  auto [forger, other] = Pair();
  Channel rank(SealedSocket(std::move(other), key, key));
  ASSERT_EQ(send(forger.get(), bytes.data(), bytes.size(), 0), got);
  EXPECT_EQ(rank.Receive(Deadline::AfterSeconds(5))->value("library", ""), "/a/library");
  Channel plain(std::move(forger));
  ASSERT_TRUE(plain.Send({{"command", "hello"}, {"library", "/another"}}).ok());
  EXPECT_FALSE(rank.Receive(Deadline::AfterSeconds(5)).ok());
}

}  // namespace
}  // namespace tutti::tools
