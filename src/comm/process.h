#pragma once

// What one process owns once, whatever the number of its communicators: the threads that serve
// sockets, the network proxy, the server of shared memory, the memory from ncclMemAlloc.
//
// The API makes one Process on first use and hands it down; nothing below the API knows a global
// one. After a fork the child makes its own (threads do not survive a fork). Thread-safe.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "base/status.h"
#include "bootstrap/root.h"
#include "config/settings.h"
#include "operations/peer_info.h"
#include "proxy/proxy.h"
#include "sys/event_loop.h"
#include "sys/fd_server.h"
#include "topology/machine.h"
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

  // This host as it is known, NCCL_TOPO_FILE laid over it, without ranks.
  struct KnownHost {
    topology::Machine machine;
    uint64_t hash = 0;  // of all that is known; not 0
  };
  // `interfaces` are those of the network, all that lead anywhere when empty. The processors are
  // looked at once in the life of the process, and what is found is kept.
  Result<std::shared_ptr<const KnownHost>> FindHost(const Settings& settings,
                                                    const std::vector<std::string>& interfaces);
  // True once: whoever gets it writes NCCL_TOPO_DUMP_FILE.
  bool TakeDumpTurn() { return !machine_dumped_.exchange(true); }

  // The CUDA device that a rank made by the calling thread now would have: the current one; -1 when
  // ranks are host devices, because the settings say so or there is no GPU.
  static Result<int> CurrentDevice(const Settings& settings);
  // That device, opened on first use.
  Result<const cuda::Device*> OpenDevice(int ordinal);

  // Begins to serve a new unique id.
  Result<UniqueId> StartRoot(const Settings& settings);

 private:
  Process();

  Guests unasked_roots_;  // of the thread of loop_, which must end first
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<HostMemory> memory_;

  std::mutex host_mutex_;  // guards the two below
  std::vector<topology::CpuFact> processors_;
  std::map<std::string, std::shared_ptr<const KnownHost>> hosts_;  // by what was asked for
  std::atomic<bool> machine_dumped_ = false;

  std::mutex devices_mutex_;  // guards what follows
  std::map<int, std::unique_ptr<cuda::Device>> devices_;
};

}  // namespace tutti
