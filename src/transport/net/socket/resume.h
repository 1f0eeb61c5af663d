#pragma once

// How a connection whose sockets broke gets new ones: the end that connected dials again
// (Redialer), the other end waits for that (ResumePoint). Both ends then prove the job's key anew,
// and the receiver says which messages it has; the sender repeats the others.
//
// Threads: that of the comm, but for what a ResumePoint says of itself.

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/auth.h"
#include "sys/tcp.h"
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
};

class SocketResumer {
 public:
  virtual ~SocketResumer() = default;
  // Begins to look for new sockets.
  virtual void Begin() = 0;
  // Returns connected sockets whose other end has proven the key, nothing when there are none yet,
  // or why there will be none. Never waits.
  virtual Result<std::optional<Sockets>> Step() = 0;
  // Returns whether the other end has found the connection broken and offers new sockets.
  virtual bool Offered() const { return false; }
  // Says which descriptors the comm uses now; the earlier ones are open until this returns.
  virtual void Use(std::vector<int>) {}
  // Turns further sockets away, because the connection has failed. Any thread.
  virtual void Refuse() {}
};

class Redialer final : public SocketResumer {
 public:
  // `hello` is that of the connection.
  Redialer(const SocketAddress& address, const Key& key, DataHello hello);

  void Begin() override;
  Result<std::optional<Sockets>> Step() override;

 private:
  enum class Stage { kPause, kConnecting, kProving };
  static constexpr int64_t kBetweenAttemptsNs = 50'000'000;

  void Pause(int64_t for_ns);
  bool StartSocket();
  Result<bool> StepSocket();

  const SocketAddress address_;
  const Key key_;
  DataHello hello_;
  Stage stage_ = Stage::kPause;
  int64_t next_ns_ = 0;
  Sockets sockets_;  // those of this attempt that are there
  UniqueFd fd_;      // the next one
  std::optional<Handshake> handshake_;
};

// Where the sockets that resume a connection are left for its comm.
//
// Threads: Offer on the loop's thread; Refuse from any; the rest that of the comm.
class ResumePoint final : public SocketResumer {
 public:
  explicit ResumePoint(size_t data_sockets) : data_sockets_(data_sockets) {}

  void Begin() override {}
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
  uint32_t attempt_ TUTTI_GUARDED_BY(mutex_) = 0;  // of the other end, that sockets_ belong to
  Sockets sockets_ TUTTI_GUARDED_BY(mutex_);
  size_t missing_ TUTTI_GUARDED_BY(mutex_) = 0;  // of sockets_
  std::vector<int> in_use_ TUTTI_GUARDED_BY(mutex_);
  bool refusing_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
