#pragma once

// Finds where rank 0 listens for the other ranks, and sockets of the machine. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "launch/environment.h"
#include "sys/tcp.h"

namespace tutti::launch {

// Returns a socket that listens on every interface, on the first of `ports` that is free (0: any);
// *port is what it got.
Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port);

// Returns a socket that listens at the first of `endpoints` that is free, so that connections to it
// arrive. It listens at that address alone where the address is this machine's own, and on every
// interface where it is not or is a name, which other machines may know by another address.
Result<UniqueFd> ListenAt(const std::vector<Endpoint>& endpoints);

// Returns whether other machines may reach a listening socket.
bool IsReachableFromOutside(int listen_fd);

// Connects to the abstract Unix socket `name`. `error` (when given) tells the errno of a failure.
Result<UniqueFd> ConnectLocal(const std::string& name, int* error = nullptr);

// Fails where `fd` is a Unix socket whose other end belongs to another user; root may be on it.
// Other sockets pass.
Status CheckSameUser(int fd);

// Keeps a free port for listeners that come later, as often as they like: nobody who asks for any
// port gets it, and none connects from it. They need SO_REUSEADDR, as most servers and Listen have
// it, and until one is there connections are refused.
Result<UniqueFd> HoldPort(uint16_t* port);

// Looks up all addresses of `host`, each with `port`.
Result<std::vector<SocketAddress>> LookUp(const std::string& host, uint16_t port);

// Returns this host's addresses that other hosts may reach, then loopback.
std::vector<std::string> OwnAddresses();

}  // namespace tutti::launch
