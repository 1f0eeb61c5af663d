#include "launch/pmi1.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "launch/testing/pmi1_launcher.h"

namespace tutti::launch {
namespace {

using testing::HasSubstr;

TEST(Pmi1, RefusalIsASentence) {
  FakePmiServer server(1, 1024);
  auto client = Pmi1Client::Start(UniqueFd(server.Connect()), Deadline::AfterSeconds(10));
  ASSERT_TRUE(client.ok()) << client.status().message();
  const auto value = client->Get("absent", Deadline::AfterSeconds(10));
  ASSERT_FALSE(value.ok());
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("key_not_found"));
}

TEST(Pmi1, SilentLauncherEndsAtTheDeadline) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd launcher(ends[0]);
  const auto client = Pmi1Client::Start(UniqueFd(ends[1]), Deadline::AfterSeconds(0.2));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), Code::kTimeout);
}

TEST(Pmi1, EndlessLineIsRefused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread launcher([fd = UniqueFd(ends[0])] {
    const std::string noise(1000, 'x');
    for (int i = 0; i < 100; ++i) send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  });
  const auto client = Pmi1Client::Start(UniqueFd(ends[1]), Deadline::AfterSeconds(10));
  launcher.join();
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("without end"));
}

}  // namespace
}  // namespace tutti::launch
