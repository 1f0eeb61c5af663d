#pragma once

// Closes the descriptors that a child of fork() must not keep. A connection ends when the last
// process with an open copy ends; with copies in children (PyTorch's DataLoader forks workers) the
// death of a rank would go unseen until its children died. A child therefore lets go of the sockets
// that this process serves.
//
// A child may only do things that are safe in a signal handler, and the parent's threads may have
// been in the middle of anything: hence no lock, no allocation, and the system's own list of an
// epoll set (/proc/self/fdinfo). Without this list, children keep the sockets they inherit.
//
// Thread-safe. A process has a single table, like its fork handlers.

#include <cstdint>

namespace tutti {

// Returns how many forks lie between this process and the first process that called this function
// or made a NotForChildren. Objects made at another number belong to the parent.
uint32_t ForksBehind();

// While a NotForChildren lives, children that are forked lose `epoll_fd` and all descriptors in its
// set: their numbers then stand for /dev/null, so a close in the child closes nothing else.
class NotForChildren {
 public:
  explicit NotForChildren(int epoll_fd);
  ~NotForChildren();
  NotForChildren(const NotForChildren&) = delete;
  NotForChildren& operator=(const NotForChildren&) = delete;

 private:
  int place_ = -1;  // Its place in the table.
  const int epoll_fd_;
};

}  // namespace tutti
