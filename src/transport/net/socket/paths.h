#pragma once

// The paths of a connection: the addresses at which the receiver listens, one for each NIC of the
// receiver that the connection may use. The sender's routes determine the sender's NIC for each
// address.
//
// The first paths carry the connection together. The remaining paths are spares, which carry the
// connection while none of the first paths can be used.
//
//   good ──GiveUp──▶ lost ──Restore, when a try has succeeded──▶ good
//
// When the last good path is given up, all others count as good again, since no better path is
// left.
//
// Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sys/tcp.h"

namespace tutti {

// The most paths of a connection: as many as NCCL merges into one device.
inline constexpr size_t kMostPaths = 4;

// The addresses of a listener.
struct PathAddresses {
  std::vector<SocketAddress> all;
  size_t together = 1;  // the number of first addresses that carry a connection together
};

class SocketPaths {
 public:
  // Tests make these times shorter.
  struct Times {
    // How long a path may fail while there is another path. The kernel repeats a packet that was
    // lost during the set-up of a connection after one second.
    int64_t patience_ns = 2'500'000'000;
    // The time after which a lost path is tried again. The time doubles, up to 32 times its value,
    // whenever the path is lost anew. Otherwise a path that lets a connection be made but carries
    // no data would stop the operations at each try.
    int64_t retry_ns = 5'000'000'000;
  };

  // Makes the paths of a connection with a control socket and `data_sockets` data sockets.
  // REQUIRES: there is an address.
  SocketPaths(PathAddresses addresses, size_t data_sockets, const Times& times);

  size_t size() const { return paths_.size(); }
  const SocketAddress& address(size_t path) const { return paths_[path].address; }
  // Returns the path of each socket, the control socket first. The sockets spread over all good
  // paths among the first paths, and over `trial` as if it were good.
  std::vector<size_t> Spread(std::optional<size_t> trial = {}) const;

  // Note that a path is being tried, and that a try has succeeded.
  void NoteTry(size_t path, int64_t now_ns);
  void NoteReached(size_t path);
  // Forgets when the tries began.
  void BeginTries();
  // Returns whether the peer was reached by this path before.
  bool WasReached(size_t path) const { return paths_[path].was_reached; }
  // Returns whether the tries of a path have failed for so long that another path is better.
  bool IsHopeless(size_t path, int64_t now_ns) const;

  // Counts the path as lost. Has no effect on the only path.
  void GiveUp(size_t path, int64_t now_ns);
  // Returns a lost path that would carry the connection and whose next try is due.
  std::optional<size_t> Due(int64_t now_ns) const;
  // Returns whether there is a path that will be due.
  bool AnyToRetry() const;
  void Postpone(size_t path, int64_t now_ns);
  void Restore(size_t path) { paths_[path].lost = false; }

  // Returns the changes since the last call, as the end of a sentence about the connection, or
  // nothing.
  std::string TakeNotice();

 private:
  struct Path {
    SocketAddress address;
    bool lost = false;
    bool told_lost = false;
    bool was_reached = false;
    int64_t tried_since_ns = 0;  // 0: no try runs, or the path works
    int64_t retry_ns = 0;        // the time of a lost path's next try
    int times_lost = 0;
  };
  int64_t RetryAfterNs(const Path& path) const;

  std::vector<Path> paths_;
  size_t together_;
  size_t data_sockets_;
  Times times_;
};

}  // namespace tutti
