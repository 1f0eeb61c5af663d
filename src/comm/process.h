#pragma once

// A Process owns the things that a process has once, whatever the number of its communicators: the
// threads that serve sockets, the network proxy, the server of shared memory, the memory from
// ncclMemAlloc, the list of windows and the board for other processes.
//
// The API makes one Process on first use and hands it down; nothing below the API knows a global
// Process. After a fork the child makes its own, because threads do not survive a fork.
// Thread-safe.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/root.h"
#include "config/settings.h"
#include "observe/board.h"
#include "observe/picture_signal.h"
#include "operations/peer_info.h"
#include "proxy/proxy.h"
#include "ras/server.h"
#include "sys/event_loop.h"
#include "sys/fd_server.h"
#include "topology/detect.h"
#include "topology/machine.h"
#include "transport/shm/registry.h"
#include "transport/shm/remote_copy.h"
#include "watch/run_delay.h"
#include "watch/wait_board.h"
#include "window/window_directory.h"

namespace tutti {

class Process {
 public:
  static Result<std::unique_ptr<Process>> Create(const Settings& settings);

  // Serves the sockets of the bootstrap.
  EventLoop& loop() { return *loop_; }
  Proxy& proxy() { return *proxy_; }
  FdServer& fd_server() { return *fd_server_; }

  HostMemory& memory() { return *memory_; }
  RemoteCopyPermits& copy_permits() { return copy_permits_; }
  WindowDirectory& windows() { return windows_; }
  WaitBoard& waits() { return waits_; }
  observe::Board& board() { return *board_; }
  // Only for the thread of loop().
  RunDelay& run_delay() { return run_delay_; }
  // Begins to answer clients of RAS, at the first call. Called with the first communicator, because
  // a process without communicators cannot ask other hosts.
  void StartRas(const Settings& settings);

  // Fills in the fields by which peers reach this process's memory.
  void DescribeMemory(PeerInfo& info) const;

  // Describes this host: its hardware, with NCCL_TOPO_FILE laid over, and without ranks.
  struct KnownHost {
    topology::Machine machine;
    uint64_t hash = 0;  // A hash of the machine; never 0.
  };
  // Returns the description of this host. `ports` are the ports of the network; when empty, all
  // interfaces that lead anywhere count. GPUs are looked for only `with_gpus`, because the driver
  // takes some time. The processors are looked at once in the life of the process. The answers to
  // the last few questions are kept.
  Result<std::shared_ptr<const KnownHost>> FindHost(const Settings& settings,
                                                    const std::vector<topology::FoundPort>& ports,
                                                    bool with_gpus);
  // Returns true to its first caller, which then writes NCCL_TOPO_DUMP_FILE.
  bool TakeDumpTurn() { return !machine_dumped_.exchange(true); }

  // Returns the CUDA device for a rank that the calling thread would make now: the current device.
  // Returns -1 when ranks are host devices, because the settings say so or no GPU is present.
  static Result<int> CurrentDevice(const Settings& settings);
  // Returns the device of a number, opened on first use. The process owns the device.
  Result<const cuda::Device*> OpenDevice(int ordinal);

  // Begins to serve a new unique id, and returns it. `meeting` is as in Root::Create.
  Result<UniqueId> StartRoot(const Settings& settings, const SocketAddress& meeting = {});

 private:
  Process();

  // Used by the thread of loop_ and by communicators, which therefore have to end first.
  std::unique_ptr<observe::Board> board_;
  // Used by the thread of loop_ only, which therefore has to end first.
  AcceptLimit unasked_roots_;
  RunDelay run_delay_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<observe::PictureSignal> picture_signal_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<HostMemory> memory_;
  WindowDirectory windows_;
  WaitBoard waits_;
  std::once_flag ras_started_;
  std::unique_ptr<ras::Server> ras_;

  std::atomic<bool> machine_dumped_ = false;

  Mutex host_mutex_;
  std::vector<topology::CpuFact> processors_ TUTTI_GUARDED_BY(host_mutex_);
  // By the settings and interfaces on which the answers depend.
  std::map<std::string, std::shared_ptr<const KnownHost>> hosts_ TUTTI_GUARDED_BY(host_mutex_);

  Mutex devices_mutex_;
  std::map<int, std::unique_ptr<cuda::Device>> devices_ TUTTI_GUARDED_BY(devices_mutex_);

  RemoteCopyPermits copy_permits_;
};

}  // namespace tutti
