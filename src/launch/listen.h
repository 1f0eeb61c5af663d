#pragma once

// Finds addresses at which rank 0 listens for the other ranks.
// Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "launch/environment.h"
#include "sys/tcp.h"

namespace tutti::launch {

// Returns a socket that listens on every interface, on the first free port of `ports` (0: any);
// stores the port in *port.
Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port);

// Returns a socket that listens at the first free endpoint of `endpoints`. Where the address is
// this machine's own, the socket listens at the address alone. For a name or a foreign address, by
// which other machines may know this machine, the socket listens on every interface.
Result<UniqueFd> ListenAt(const std::vector<Endpoint>& endpoints);

// Keeps a free port for later listeners, any number of times. A program that asks for any port
// never gets the kept port, and no connection leaves from the port. Listeners must set
// SO_REUSEADDR, as Listen and most servers do. Connections are refused until a listener exists.
Result<UniqueFd> HoldPort(uint16_t* port);

// Looks up all addresses of `host`, each with `port`. `flags` are getaddrinfo's.
Result<std::vector<SocketAddress>> LookUp(const std::string& host, uint16_t port, int flags = 0);

// Returns this host's addresses that other hosts may reach, then loopback.
std::vector<std::string> OwnAddresses();

}  // namespace tutti::launch
