#include "sys/network_interface.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

NetworkInterface Make(const char* name, const char* address, const char* mask) {
  NetworkInterface interface;
  interface.name = name;
  interface.address = *ParseSocketAddress(fmt::format("{}:0", address));
  interface.netmask = *ParseSocketAddress(fmt::format("{}:0", mask));
  return interface;
}

std::vector<NetworkInterface> Host() {
  return {Make("lo", "127.0.0.1", "255.0.0.0"),
          Make("docker0", "172.17.0.1", "255.255.0.0"),
          Make("eth0", "10.0.0.5", "255.255.255.0"),
          Make("eth1", "192.168.7.5", "255.255.255.0"),
          Make("eth0", "[fe80::5%lo]", "[ffff:ffff:ffff:ffff::]"),
          Make("eth0", "[fd00::5]", "[ffff:ffff:ffff:ffff::]")};
}

std::string Chosen(const std::vector<NetworkInterface>& interfaces, const InterfaceWish& wish) {
  const auto chosen = ChooseInterface(interfaces, wish);
  return chosen.ok() ? chosen->address.HostText() : std::string(chosen.status().message());
}

TEST(InterfaceFilter, FollowsTheGrammar) {
  const InterfaceFilter prefixes("eth,ib");
  EXPECT_TRUE(prefixes.Admits("eth0") && prefixes.Admits("ib3"));
  EXPECT_FALSE(prefixes.Admits("lo") || prefixes.Admits("veth1"));
  const InterfaceFilter exact("=eth1");
  EXPECT_TRUE(exact.Admits("eth1"));
  EXPECT_FALSE(exact.Admits("eth10"));
  const InterfaceFilter excluded("^docker,lo");
  EXPECT_TRUE(excluded.Admits("eth0"));
  EXPECT_FALSE(excluded.Admits("docker0") || excluded.Admits("lo"));
  const InterfaceFilter excluded_exactly("^=eth1");
  EXPECT_TRUE(excluded_exactly.Admits("eth10"));
  EXPECT_FALSE(excluded_exactly.Admits("eth1"));
  EXPECT_TRUE(InterfaceFilter("").Admits("anything"));
  EXPECT_TRUE(InterfaceFilter(",,").empty());
}

TEST(ChooseInterface, PrefersRealInterfacesAndIpv4) {
  EXPECT_EQ(Chosen(Host(), {}), "10.0.0.5");
  auto with_ib = Host();
  with_ib.push_back(Make("ib0", "10.9.0.5", "255.255.255.0"));
  EXPECT_EQ(Chosen(with_ib, {}), "10.9.0.5");
  const auto host = Host();
  EXPECT_EQ(Chosen({host[0], host[1]}, {}), "172.17.0.1");
  EXPECT_EQ(Chosen({host[0]}, {}), "127.0.0.1");
}

TEST(ChooseInterface, FollowsNamesInTheirOrder) {
  EXPECT_EQ(Chosen(Host(), {.names = "eth1,eth0", .family = 0, .peer = {}}), "192.168.7.5");
  EXPECT_EQ(Chosen(Host(), {.names = "lo", .family = 0, .peer = {}}), "127.0.0.1");
  EXPECT_EQ(Chosen(Host(), {.names = "^eth0", .family = 0, .peer = {}}), "192.168.7.5");
}

TEST(ChooseInterface, FollowsTheFamily) {
  EXPECT_EQ(Chosen(Host(), {.names = "", .family = 6, .peer = {}}), "fd00::5");
  EXPECT_EQ(FamilyNumber("AF_INET"), 4);
  EXPECT_EQ(FamilyNumber("AF_INET6"), 6);
  EXPECT_EQ(FamilyNumber(""), 0);
}

TEST(ChooseInterface, PrefersThePeersSubnet) {
  const InterfaceWish wish = {
      .names = "", .family = 0, .peer = *ParseSocketAddress("192.168.7.99:1")};
  EXPECT_EQ(Chosen(Host(), wish), "192.168.7.5");
  const InterfaceWish v6 = {.names = "", .family = 0, .peer = *ParseSocketAddress("[fd00::99]:1")};
  EXPECT_EQ(Chosen(Host(), v6), "fd00::5");
}

// A further interface may lead nowhere, and the interface by which ranks have met does not.
TEST(ChooseInterface, PrefersTheInterfaceByWhichRanksMet) {
  const auto near = [](const char* address) {
    return InterfaceWish{.names = "",
                         .family = 0,
                         .peer = {},
                         .near = *ParseSocketAddress(fmt::format("{}:0", address))};
  };
  EXPECT_EQ(Chosen(Host(), near("192.168.7.5")), "192.168.7.5");
  EXPECT_EQ(Chosen(Host(), near("172.17.0.1")), "172.17.0.1");
  EXPECT_EQ(Chosen(Host(), near("10.9.9.9")), "10.0.0.5");
  InterfaceWish named = near("192.168.7.5");
  named.names = "eth0";
  EXPECT_EQ(Chosen(Host(), named), "10.0.0.5");
  std::vector<NetworkInterface> with_ib = Host();
  with_ib.push_back(Make("ib0", "10.1.0.5", "255.255.255.0"));
  EXPECT_EQ(Chosen(with_ib, near("192.168.7.5")), "10.1.0.5");
}

TEST(ChooseInterface, NamesWhatThereIsWhenNothingFits) {
  const std::string why = Chosen(Host(), {.names = "wlan", .family = 0, .peer = {}});
  EXPECT_NE(why.find("\"wlan\""), std::string::npos) << why;
  EXPECT_NE(why.find("eth1 (192.168.7.5)"), std::string::npos) << why;
}

TEST(ListNetworkInterfaces, FindsLoopback) {
  const auto interfaces = ListNetworkInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status().message();
  EXPECT_TRUE(std::any_of(interfaces->begin(), interfaces->end(), [](const NetworkInterface& it) {
    return it.address.IsLoopback() && it.netmask.valid();
  }));
}

TEST(ChooseListenAddress, UsesTheRouteToThePeer) {
  const auto address =
      ChooseListenAddress({.names = "", .family = 0, .peer = *ParseSocketAddress("127.0.0.1:80")});
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_TRUE(address->IsLoopback());
}

TEST(WithLocalScope, ReplacesTheNumberThatAnotherHostGaveItsInterface) {
  std::vector<NetworkInterface> host = Host();
  const auto add = [&](const char* name, const char* address, uint32_t scope) {
    NetworkInterface interface = Make(name, "[::]", "[ffff:ffff:ffff:ffff::]");
    interface.address = *ParseSocketAddress(fmt::format("[{}]:0", address));
    interface.address.scope_id = scope;
    host.push_back(interface);
  };
  host.erase(host.begin() + 4);
  add("veth1", "fe80::a", 7);
  add("eth0", "fe80::b", 8);
  add("eth1", "fe80::c", 9);
  SocketAddress far = *ParseSocketAddress("[fe80::99]:5");
  far.scope_id = 2;
  EXPECT_EQ(WithLocalScope(far, host, "").scope_id, 8u);  // a virtual interface comes last
  EXPECT_EQ(WithLocalScope(far, host, "eth1").scope_id, 9u);
  EXPECT_EQ(WithLocalScope(far, host, "").port, 5);
  SocketAddress own = *ParseSocketAddress("[fe80::a]:5");
  own.scope_id = 2;
  EXPECT_EQ(WithLocalScope(own, host, "").scope_id, 7u);
  const SocketAddress global = *ParseSocketAddress("[fd00::1]:5");
  EXPECT_EQ(WithLocalScope(global, host, ""), global);
}

}  // namespace
}  // namespace tutti
