#pragma once

// Network interfaces of this host, and the choice among them.
//
// The choice is a pure function of a list of interfaces and the user's wish, so tests need no
// network.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sys/tcp.h"

namespace tutti {

struct Settings;

struct NetworkInterface {
  std::string name;
  SocketAddress address;  // port 0
  SocketAddress netmask;  // of the same family
};

// Returns the interfaces that are up and have an address; an entry for each address. IPv6
// link-local addresses carry their scope.
Result<std::vector<NetworkInterface>> ListNetworkInterfaces();

// NCCL_SOCKET_IFNAME: names or prefixes of names, with commas. "eth,ib" takes interfaces whose name
// begins with either, "=eth0" only the exact name, "^docker,lo" all but these two, "^=eth0" all but
// the exact name.
class InterfaceFilter {
 public:
  explicit InterfaceFilter(std::string_view text);

  bool empty() const { return names_.empty(); }
  bool Admits(std::string_view name) const;
  // Returns the place in the user's list of the entry that `name` matches: the list is an order of
  // preference.
  size_t Preference(std::string_view name) const;

 private:
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

// The user's wishes for the choice, and the situation.
struct InterfaceWish {
  std::string names;        // the value of `variable`
  int family = 0;           // 4, 6, or 0: any, IPv4 first
  SocketAddress peer;       // where valid, the address is for this peer
  SocketAddress near = {};  // where valid, an address of this host by which ranks have met
  // the setting to blame in an error
  const char* variable = "NCCL_SOCKET_IFNAME";
};

// Returns the wish for where the bootstrap listens, with `peer` as above: NCCL_OOB_NET_IFNAME, else
// NCCL_SOCKET_IFNAME.
InterfaceWish BootstrapWish(const Settings& settings, const SocketAddress& peer);

// Returns the interface to listen on, by these rules:
//   1. only interfaces that `wish.names` admits (in the order of its list) and of the wanted family
//   for;
//   2. with a peer: the interface whose subnet holds the peer's address;
//   3. InfiniBand (ib…) before others, then the interface of `wish.near`, because a further
//   interface may lead nowhere; virtual ones (docker, virbr, veth, br-, cni, flannel) after others,
//   then loopback;
//   4. addresses without a scope before IPv6 link-local addresses.
// InvalidUsage, naming the existing interfaces, when none is left.
Result<NetworkInterface> ChooseInterface(const std::vector<NetworkInterface>& interfaces,
                                         const InterfaceWish& wish);

// Returns the address to listen on: the user's interface when `wish.names` is set, else the source
// address of the route to `wish.peer`, else ChooseInterface's. Port 0.
Result<SocketAddress> ChooseListenAddress(const InterfaceWish& wish);

// Returns `address`, an address named by another host, as seen from here. An IPv6 link-local
// address comes with the other host's number of its interface. The result has the number of the
// interface here on the same network, or else of the interface that `names` (NCCL_SOCKET_IFNAME)
// and ChooseInterface's rules pick among the interfaces with a link-local address. Other addresses
// stay as they are.
SocketAddress WithLocalScope(SocketAddress address, const std::vector<NetworkInterface>& interfaces,
                             const std::string& names);

// Returns 4, 6 or 0 for the text of NCCL_SOCKET_FAMILY.
int FamilyNumber(std::string_view af_name);

}  // namespace tutti
