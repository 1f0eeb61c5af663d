#pragma once

// Helper threads that drive the data sockets of connections (NCCL_SOCKET_NTHREADS), for links that
// one thread cannot fill. All connections of a network share the helper threads. A helper sleeps in
// poll(2) when no data socket has work.
//
// Threads: all calls from any thread.

#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/net/socket/data_socket.h"

namespace tutti {

class SocketHelpers {
 public:
  // Starts `threads` threads, and fails when the system grants fewer. With 0 the thread that drives
  // a connection also drives its data sockets.
  static Result<std::shared_ptr<SocketHelpers>> Create(int threads);
  // REQUIRES: no data socket is attached.
  ~SocketHelpers();

  bool any() const { return !threads_.empty(); }
  // Makes thread `index` (modulo their number) drive `socket` from now on.
  void Attach(DataSocket& socket, int index);
  // When Detach returns, no helper touches `socket` any more.
  void Detach(DataSocket& socket, int index);
  // Tells thread `index` that a data socket of the thread has a new piece.
  void Wake(int index);

 private:
  class Thread;
  SocketHelpers();
  Thread& Of(int index) const;

  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace tutti
