#pragma once

// How a connection whose sockets broke gets a new one: the sending end dials again (Redialer), the
// receiving end waits for that (ResumePoint in listener.h). Both ends then prove the job's key
// anew, and the receiver says how many messages it has; the sender repeats the others.
//
// Threads: that of the comm, but for what a ResumePoint says of itself.

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/auth.h"
#include "sys/tcp.h"

namespace tutti {

// A connection that is broken for longer is given up. Long enough for a cable that is pulled and
// put back, a switch that restarts a port, a firewall that forgets; short beside the time that a
// job would need to start anew.
inline constexpr int64_t kResumeWithinNs = 10'000'000'000;

// Messages of up to this length are copied when they are sent, so that the caller's memory is free
// at once; longer ones are held until the receiver says that it has them. Copying this much costs
// some 6 % of what sending it does, and so does an acknowledgement, a system call at each end
// (bench/results/net.md).
inline constexpr size_t kKeepBytes = 16 * 1024;

class SocketResumer {
 public:
  virtual ~SocketResumer() = default;
  // Begins to look for a new socket.
  virtual void Begin() = 0;
  // Returns a connected socket whose other end has proven the key, an invalid one when there is
  // none yet, or why there will be none. Never waits.
  virtual Result<UniqueFd> Step() = 0;
  // Returns whether the other end has found the connection broken and offers a new socket.
  virtual bool Offered() const { return false; }
  // Says which socket the comm uses now; the earlier one is open until this returns.
  virtual void Use(int) {}
  // Turns further sockets away, because the connection has failed. Any thread.
  virtual void Refuse() {}
};

class Redialer final : public SocketResumer {
 public:
  Redialer(const SocketAddress& address, const Key& key, Hello hello)
      : address_(address), key_(key), hello_(std::move(hello)) {}

  void Begin() override;
  Result<UniqueFd> Step() override;

 private:
  enum class Stage { kPause, kConnecting, kProving };
  static constexpr int64_t kBetweenAttemptsNs = 50'000'000;

  UniqueFd Again();

  const SocketAddress address_;
  const Key key_;
  const Hello hello_;
  Stage stage_ = Stage::kPause;
  int64_t next_ns_ = 0;
  UniqueFd fd_;
  std::optional<Handshake> handshake_;
};

}  // namespace tutti
