#pragma once

// What one process owns once, whatever the number of its communicators: the threads that serve
// sockets, the network proxy, the server of shared memory, the memory from ncclMemAlloc.
//
// The API makes one Process on first use and hands it down; nothing below the API knows a global
// one. After a fork the child makes its own (threads do not survive a fork). Thread-safe.

#include <memory>
#include <mutex>

#include "base/status.h"
#include "bootstrap/root.h"
#include "comm/peer_info.h"
#include "config/settings.h"
#include "proxy/proxy.h"
#include "sys/event_loop.h"
#include "sys/fd_server.h"
#include "transport/shm/registry.h"

namespace tutti {

class Process {
 public:
  static Result<std::unique_ptr<Process>> Create(const Settings& settings);

  EventLoop& loop() { return *loop_; }  // bootstrap sockets
  Proxy& proxy() { return *proxy_; }
  FdServer& fd_server() { return *fd_server_; }

  HostMemory& memory() { return *memory_; }

  // What peers need to reach this process's memory.
  void DescribeMemory(PeerInfo& info) const;

  // Begins to serve a new unique id.
  Result<UniqueId> StartRoot(const Settings& settings);

 private:
  Process() = default;

  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<HostMemory> memory_;
};

}  // namespace tutti
