#pragma once

// Gives a connection whose sockets broke new ones: the end that connected dials again
// (redialer.h), the other end waits for that (ResumePoint). Both ends then prove the job's key
// anew, and the receiver says which messages it has; the sender repeats the others.
//
// A connection that works moves to other sockets in the same way, when the sender has found that a
// path which was lost can be used again.
//
// Threads: that of the comm, but for what a ResumePoint says of itself.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/socket/data_hello.h"
#include "transport/net/socket/stream.h"

namespace tutti {

// The default of TUTTI_RESUME_TIMEOUT_S. A connection that is broken for longer is given up. Long
// enough for a cable that is pulled and put back, a switch that restarts a port, a firewall that
// forgets; short beside the time that a job would need to start anew.
inline constexpr int64_t kResumeWithinNs = 10'000'000'000;

// Messages of up to this length are copied when they are sent, so that the caller's memory is free
// at once; longer ones are held until the receiver says that it has them. Copying this much costs
// some 6 % of what sending it does, and so does an acknowledgement, a system call at each end
// (bench/results/net.md).
inline constexpr size_t kKeepBytes = 16 * 1024;

// The sockets of a connection.
struct Sockets {
  SocketStream control;
  std::vector<SocketStream> data;  // empty: everything goes over the control socket
  bool moved = false;              // they replace sockets that worked
};

class SocketResumer {
 public:
  virtual ~SocketResumer() = default;
  // Begins to look for new sockets. `silent_socket` is the number of the one on which the other
  // host acknowledged nothing any more (0: control, n: data socket n - 1); -1: that is not the
  // reason.
  virtual void Begin(int silent_socket) = 0;
  // Returns connected sockets whose other end has proven the key, nothing when there are none yet,
  // or why there will be none. Never waits.
  virtual Result<std::optional<Sockets>> Step() = 0;
  // Returns whether the other end has found the connection broken and offers new sockets.
  virtual bool Offered() const { return false; }
  // Tries a lost path again, when it is time for that. Returns whether it does: then Step may
  // return sockets to replace those that work, or fail when those have perhaps been left by the
  // receiver.
  virtual bool TriesPath(int64_t /*now_ns*/) { return false; }
  // Returns whether new sockets are being made, so that the other end may leave the old ones.
  virtual bool IsTrying() const { return false; }
  // Returns whether the other end may have done so.
  virtual bool MayHaveMoved() const { return false; }
  // Returns whether there are paths that are to be tried again.
  virtual bool LacksPaths() const { return false; }
  // Returns which paths have been lost or have come back since the last call, as the end of a
  // sentence about the connection; empty: none.
  virtual std::string TakeNotice() { return {}; }
  // Says which descriptors the comm uses now; the earlier ones are open until this returns.
  virtual void Use(std::vector<int>) {}
  // Turns further sockets away, because the connection has failed. Any thread.
  virtual void Refuse() {}
};

// The sockets that resume a connection are left here for its comm.
//
// Threads: Offer on the loop's thread; Refuse from any; the rest that of the comm.
class ResumePoint final : public SocketResumer {
 public:
  explicit ResumePoint(size_t data_sockets) : data_sockets_(data_sockets) {}

  void Begin(int) override {}
  Result<std::optional<Sockets>> Step() override;
  bool Offered() const override { return offered_.load(std::memory_order_acquire); }
  void Use(std::vector<int> fds) override;
  void Refuse() override;
  // Takes a socket for the comm, or closes it when the connection has failed.
  Status Offer(SocketStream socket, const DataHello& hello);

 private:
  const size_t data_sockets_;
  std::atomic<bool> offered_ = false;
  Mutex mutex_;
  uint32_t attempt_ TUTTI_GUARDED_BY(mutex_) =
      0;  // The other end's attempt that sockets_ belong to.
  Sockets sockets_ TUTTI_GUARDED_BY(mutex_);
  size_t missing_ TUTTI_GUARDED_BY(mutex_) = 0;  // So many of sockets_ are missing.
  std::vector<int> in_use_ TUTTI_GUARDED_BY(mutex_);
  bool refusing_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
