#pragma once

// Connections from outside to every port that a process listens on: what a port scanner, a wrong
// client or an attacker without the key would do.

#include <sys/types.h>

#include <string>
#include <vector>

namespace tutti::testing {

// Where a process listens: TCP ports, and names of abstract Unix sockets.
struct Listener {
  bool is_tcp = true;
  bool is_v6 = false;
  std::string address;  // raw bytes of the IP address, or the name
  unsigned short port = 0;
};

// Found through /proc/<pid>/fd and /proc/<pid>/net.
std::vector<Listener> ListenersOf(pid_t pid);

// Opens connections and keeps them open until destroyed.
class Attack {
 public:
  ~Attack();
  Attack() = default;
  Attack(const Attack&) = delete;
  Attack& operator=(const Attack&) = delete;

  // Connects several times: says nothing, says a little, sends random bytes and zeros, leaves in
  // the middle. How many connections were taken.
  int Assault(const Listener& listener);

 private:
  int Connect(const Listener& listener);
  std::vector<int> open_;
};

}  // namespace tutti::testing
