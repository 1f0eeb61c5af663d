#pragma once

// The server of RAS: answers clients of NCCL's RAS protocol (conversation.h) about the job, and
// processes of other hosts that collect a report (collector.h) about this machine.
//
// Every process of the job listens at the same address, and the kernel gives each connection to one
// of them. The process that is asked reads the boards of its machine, and asks one process of every
// other host by a letter (watch/wait_board.h). Connections of strangers are few (kMostClients) and
// bounded in time, and the boards are read at most once in kReadEveryNs.
//
// The Process (comm/process.h) owns the server. All work is done on the server's thread; a process
// that nobody asks does nothing.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "config/settings.h"
#include "observe/board.h"
#include "watch/wait_board.h"

namespace tutti::ras {

class Server {
 public:
  static constexpr size_t kMostClients = 16;
  static constexpr size_t kMostMonitors = 16;  // beside the clients
  static constexpr int64_t kReadEveryNs = 20'000'000;
  // The longest time that a client may stay, unless the client monitors.
  static constexpr int64_t kClientNs = 300'000'000'000;

  // Returns null where the settings, or the system, grant no server; the log then has one line.
  // `board` and `letters` must outlive the server.
  static std::unique_ptr<Server> Create(const Settings& settings, observe::Board& board,
                                        WaitBoard& letters);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ras
