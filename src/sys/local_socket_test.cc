#include "sys/local_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

namespace tutti {
namespace {

TEST(LocalSocketTest, CarriesConnectionsOfThisUser) {
  const std::string name = fmt::format("tutti-test-listen-{}", getpid());
  EXPECT_FALSE(ConnectLocal(name).ok());
  const Result<UniqueFd> listener = ListenLocal(name);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_FALSE(ListenLocal(name).ok());
  const Result<UniqueFd> connected = ConnectLocal(name);
  ASSERT_TRUE(connected.ok()) << connected.status().message();
  EXPECT_TRUE(CheckSameUser(connected->get()).ok());
  EXPECT_FALSE(ConnectLocal(std::string(200, 'x')).ok());
}

// Listens as another user. Only root can.
UniqueFd ListenAsNobody(const std::string& name) {
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(seteuid(kNobody), 0);
  Result<UniqueFd> fd = ListenLocal(name);
  EXPECT_EQ(seteuid(0), 0);
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(fd).value() : UniqueFd();
}

TEST(LocalSocketTest, OtherUsersSocketsArePassedOver) {
  if (getuid() != 0) GTEST_SKIP() << "needs two users";
  const std::string name = fmt::format("tutti-test-squat-{}", getpid());
  const UniqueFd first = ListenAsNobody(name);
  const UniqueFd second = ListenAsNobody(name + "-1");
  EXPECT_FALSE(ConnectLocal(name).ok());
  const Result<UniqueFd> listener = ListenLocal(name);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const Result<UniqueFd> connected = ConnectLocal(name);
  ASSERT_TRUE(connected.ok()) << connected.status().message();
  EXPECT_TRUE(CheckSameUser(connected->get()).ok());
}

TEST(LocalSocketTest, OtherUsersWhoHoldAllNamesAreNamed) {
  if (getuid() != 0) GTEST_SKIP() << "needs two users";
  const std::string name = fmt::format("tutti-test-all-{}", getpid());
  std::vector<UniqueFd> squatters;
  squatters.push_back(ListenAsNobody(name));
  for (int i = 1; i < kLocalNames; ++i)
    squatters.push_back(ListenAsNobody(fmt::format("{}-{}", name, i)));
  const Result<UniqueFd> listener = ListenLocal(name);
  ASSERT_FALSE(listener.ok());
  EXPECT_NE(listener.status().message().find("other users hold"), std::string_view::npos);
  EXPECT_NE(ConnectLocal(name).status().message().find("user 65534"), std::string_view::npos);
}

}  // namespace
}  // namespace tutti
