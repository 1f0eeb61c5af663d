#pragma once

// Gives new sockets to a connection whose sockets broke. The connecting end dials again
// (redialer.h), and the accepting end waits for the new sockets (ResumePoint). Both ends then prove
// the job's key anew. The receiver names the messages that it has, and the sender repeats the rest.
//
// A working connection moves to other sockets in the same way, when the sender has found that a
// lost path can be used again.
//
// Threads: the comm's thread, except for the calls of ResumePoint that name another thread.

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

// The default of TUTTI_RESUME_TIMEOUT_S, after which a broken connection is given up. The time is
// long enough for a cable that is pulled and put back, a switch that restarts a port, or a firewall
// that forgets. The time is short compared with starting a job anew.
inline constexpr int64_t kResumeWithinNs = 10'000'000'000;

// The longest message whose bytes are copied when it is sent. The caller's memory of such a message
// is free at once; the memory of a longer message is held until the receiver acknowledges the
// message. Copying kKeepBytes costs some 6 % of sending them, and so does an acknowledgement, with
// a system call at each end (bench/results/net.md).
inline constexpr size_t kKeepBytes = 16 * 1024;

// The sockets of a connection.
struct Sockets {
  SocketStream control;
  std::vector<SocketStream> data;  // empty: everything goes over the control socket
  bool moved = false;              // the sockets replace working sockets
};

class SocketResumer {
 public:
  virtual ~SocketResumer() = default;
  // Begins to look for new sockets. `silent_socket` is the number of the socket on which the other
  // host acknowledged nothing any more (0: control, n: data socket n - 1), or -1 if silence is not
  // the reason.
  virtual void Begin(int silent_socket) = 0;
  // Returns connected sockets whose other end has proven the key, or nothing while there are none
  // yet, or the reason why none will come. Never waits.
  virtual Result<std::optional<Sockets>> Step() = 0;
  // Returns whether the other end has left the old sockets for new sockets, which Step has not
  // returned yet.
  virtual bool Offered() const { return false; }
  // Tries a lost path again when its try is due. Returns whether a try is under way. During a try
  // Step may return sockets that replace the working sockets, or fail when the receiver may have
  // left the working sockets.
  virtual bool TriesPath(int64_t /*now_ns*/) { return false; }
  // Returns whether new sockets are being made, for which the other end may leave the old ones.
  virtual bool IsTrying() const { return false; }
  // Returns whether the other end may already have left the old sockets.
  virtual bool MayHaveMoved() const { return false; }
  // Returns whether lost paths will be tried again.
  virtual bool LacksPaths() const { return false; }
  // Returns the paths that were lost or came back since the last call, as the end of a sentence
  // about the connection; empty: none.
  virtual std::string TakeNotice() { return {}; }
  // Names the comm's current descriptors. The earlier descriptors stay open until Use returns.
  virtual void Use(std::vector<int>) {}
  // Turns further sockets away, because the connection has failed. Any thread.
  virtual void Refuse() {}
};

// Collects the sockets that resume a connection, for the connection's comm. The first complete set
// shuts the old sockets down, and the point is offered from then on. A later attempt replaces a set
// that Step has not returned; the point stays offered meanwhile, since the old sockets are gone.
//
// Threads: the loop's thread calls Offer; any thread calls Refuse; the comm's thread calls the
// rest.
class ResumePoint final : public SocketResumer {
 public:
  explicit ResumePoint(size_t data_sockets) : data_sockets_(data_sockets) {}

  void Begin(int) override {}
  Result<std::optional<Sockets>> Step() override;
  bool Offered() const override { return offered_.load(std::memory_order_acquire); }
  void Use(std::vector<int> fds) override;
  void Refuse() override;
  // Takes a socket for the comm, or closes the socket when the connection has failed.
  Status Offer(SocketStream socket, const DataHello& hello);

 private:
  const size_t data_sockets_;
  std::atomic<bool> offered_ = false;
  Mutex mutex_;
  uint32_t attempt_ TUTTI_GUARDED_BY(mutex_) =
      0;  // the other end's attempt to which sockets_ belong
  Sockets sockets_ TUTTI_GUARDED_BY(mutex_);
  size_t missing_ TUTTI_GUARDED_BY(mutex_) = 0;  // the number of missing sockets_
  std::vector<int> in_use_ TUTTI_GUARDED_BY(mutex_);
  bool refusing_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
