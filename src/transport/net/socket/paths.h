#pragma once

// The paths of a connection: the addresses at which its receiver listens, one for each NIC of the
// receiver that the connection may use. The sender's routes say by which of its own NICs an address
// is reached.
//
// The first paths carry the connection together. The others are spares, which carry it while none
// of the first can be used.
//
//   good ──GiveUp──▶ lost ──Restore, when a try has succeeded──▶ good
//
// When the last good path is given up, all the others count as good again: there is nothing better
// to be tried than what failed before.
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

// Says where a listener can be reached.
struct PathAddresses {
  std::vector<SocketAddress> all;
  size_t together = 1;  // So many of the first ones carry a connection together.
};

class SocketPaths {
 public:
  // Tests make these shorter.
  struct Times {
    // A path may fail so long while there is another one. A packet that is lost while a connection
    // is made is sent again after one second.
    int64_t patience_ns = 2'500'000'000;
    // A lost path is tried again after this time. It doubles, up to 32 times, whenever the path is
    // lost anew: one that lets a connection be made but carries no data would stop the operations
    // each time.
    int64_t retry_ns = 5'000'000'000;
  };

  // Has the paths of a connection of a control socket and `data_sockets` others. REQUIRES: there is
  // an address.
  SocketPaths(PathAddresses addresses, size_t data_sockets, const Times& times);

  size_t size() const { return paths_.size(); }
  const SocketAddress& address(size_t path) const { return paths_[path].address; }
  // Returns the path of each socket, the control socket first: by all good ones of the first paths,
  // and by `trial` as if it were good.
  std::vector<size_t> Spread(std::optional<size_t> trial = {}) const;

  // Notes that a path is tried, and that it was found to work.
  void NoteTry(size_t path, int64_t now_ns);
  void NoteReached(size_t path);
  // Forgets when the tries began.
  void BeginTries();
  // Returns whether the peer was reached by this path before.
  bool WasReached(size_t path) const { return paths_[path].was_reached; }
  // Returns whether the tries of a path have failed for so long that another one is better.
  bool IsHopeless(size_t path, int64_t now_ns) const;

  // Has no effect on the only path.
  void GiveUp(size_t path, int64_t now_ns);
  // Returns a lost path that would carry the connection, and that is to be tried again now.
  std::optional<size_t> Due(int64_t now_ns) const;
  // Returns whether there is a path that will be due.
  bool AnyToRetry() const;
  void Postpone(size_t path, int64_t now_ns);
  void Restore(size_t path) { paths_[path].lost = false; }

  // Returns what has changed since the last call, as the end of a sentence about the connection;
  // empty when nothing has.
  std::string TakeNotice();

 private:
  struct Path {
    SocketAddress address;
    bool lost = false;
    bool told_lost = false;
    bool was_reached = false;
    int64_t tried_since_ns = 0;  // 0: it is not tried, or works
    int64_t retry_ns = 0;        // A lost one is tried again then.
    int times_lost = 0;
  };
  int64_t RetryAfterNs(const Path& path) const;

  std::vector<Path> paths_;
  size_t together_;
  size_t data_sockets_;
  Times times_;
};

}  // namespace tutti
