#include "launch/listen.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

namespace tutti::launch {
namespace {

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

// Returns a socket whose port, where the kernel chooses one, is `port` or none. Returns nothing
// before Linux 6.3.
UniqueFd SocketForPort(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const uint32_t range = uint32_t{port} << 16 | port;
  if (setsockopt(fd.get(), IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range)) != 0) fd.Reset();
  return fd;
}

int ErrorOfBinding(const UniqueFd& fd) {
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0 ? 0 : errno;
}

int ErrorOfConnecting(const UniqueFd& fd, uint16_t port) {
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&there), sizeof(there)) == 0 ? 0 : errno;
}

TEST(HoldPortTest, ListenersHaveItOneAfterTheOther) {
  uint16_t port = 0;
  const Result<UniqueFd> held = HoldPort(&port);
  ASSERT_TRUE(held.ok()) << held.status().message();
  ASSERT_NE(port, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ErrorOfConnecting(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)), port), ECONNREFUSED);
    uint16_t got = 0;
    const Result<UniqueFd> listener = Listen({port}, &got);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    EXPECT_EQ(got, port);
    EXPECT_EQ(ErrorOfConnecting(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)), port), 0);
    EXPECT_FALSE(Listen({port}, &got).ok());
  }
}

TEST(HoldPortTest, NobodyGetsItWhoAsksForAnyPort) {
  uint16_t port = 0;
  Result<UniqueFd> held = HoldPort(&port);
  ASSERT_TRUE(held.ok()) << held.status().message();
  if (!SocketForPort(port).valid()) GTEST_SKIP() << "this kernel chooses among all ports";
  EXPECT_EQ(ErrorOfBinding(SocketForPort(port)), EADDRINUSE);
  uint16_t other = 0;
  const Result<UniqueFd> listener = Listen({0}, &other);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_EQ(ErrorOfConnecting(SocketForPort(port), other), EADDRNOTAVAIL);
  held->Reset();
  EXPECT_EQ(ErrorOfBinding(SocketForPort(port)), 0);
}

std::string PlaceOf(const Result<UniqueFd>& listener) {
  return listener.ok() ? LocalAddress(listener->get())->HostText()
                       : std::string(listener.status().message());
}

TEST(ListenAtTest, ListensWhereOthersLook) {
  uint16_t port = 0;
  const Result<UniqueFd> held = HoldPort(&port);
  ASSERT_TRUE(held.ok()) << held.status().message();
  EXPECT_EQ(PlaceOf(ListenAt({{"127.0.0.1", port, ""}})), "127.0.0.1");
  const std::string local = PlaceOf(ListenAt({{"localhost", port, ""}}));
  EXPECT_TRUE(local == "127.0.0.1" || local == "::1") << local;
  // A foreign address, as behind the name of a service; and a name, which may have several
  // addresses.
  for (const char* host : {"192.0.2.1", "no-such-host.invalid"}) {
    const Result<UniqueFd> listener = ListenAt({{host, port, ""}});
    const std::string place = PlaceOf(listener);
    EXPECT_TRUE(place == "::" || place == "0.0.0.0") << place;
  }
}

TEST(ListenAtTest, SaysWhyItCannot) {
  uint16_t port = 0;
  const Result<UniqueFd> taken = Listen({0}, &port);
  ASSERT_TRUE(taken.ok());
  const Result<UniqueFd> listener = ListenAt({{"127.0.0.1", port, ""}, {"localhost", port, ""}});
  ASSERT_FALSE(listener.ok());
  EXPECT_NE(listener.status().message().find(fmt::format("127.0.0.1 port {}: ", port)),
            std::string_view::npos)
      << listener.status().message();
}

}  // namespace
}  // namespace tutti::launch
