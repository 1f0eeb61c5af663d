#pragma once

// Closes what a child of fork() must not keep. A connection ends when the last process that has it
// open ends; with copies in children (PyTorch's DataLoader forks workers) the death of a rank would
// not be seen before that of its children. So a child lets go of the sockets that this process
// serves.
//
// A child may only do what is safe in a signal handler, and the parent's threads may have been in
// the middle of anything: hence no lock, no allocation, and the system's own list of what an epoll
// set holds (/proc/self/fdinfo). Where there is none, children keep what they inherit.
//
// Thread-safe. One table per process, as fork handlers are.

#include <cstdint>

namespace tutti {

// Returns how many forks lie between this process and that which first had a NotForChildren. What
// was made at another number is the parent's.
uint32_t ForksBehind();

// While it lives, children that are forked lose `epoll_fd` and all descriptors in that set: their
// numbers then stand for /dev/null, so that what closes them in the child closes nothing else.
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
