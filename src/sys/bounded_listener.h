#pragma once

// BoundedListener: accepts the connections of a listening socket that strangers can reach, and
// holds each connection until its other end has proved itself. Every connection has a bounded time,
// and an AcceptLimit bounds their number. At the limit newcomers wait in the kernel's queue, and
// the oldest connection is closed once it had kGraceNs: ranks that arrive all at once do not push
// one another out. A process without further descriptors gives up the limit's reserve, then its
// oldest connection.
//
// Threads: lives on the loop's thread, except for its creation and Start.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "sys/accept_limit.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti {

class BoundedListener : public std::enable_shared_from_this<BoundedListener> {
 public:
  // Many times the duration of a proof between hosts. When a flood of connections fills the room,
  // hundreds of connections a second still get through, ranks among them.
  static constexpr int64_t kGraceNs = 200'000'000;

  // Names a connection, whose descriptor may be reused while an event is still on its way.
  using Number = uint64_t;

  // All functions but on_over may close the listener.
  struct Options {
    std::string name;  // for the log ("the root")
    int64_t time_ns;   // how long a connection may stay
    std::function<void(Number, int fd, const SocketAddress& from)> on_connection;
    std::function<void(Number)> on_ready;  // may read, or as ModifyFd of the loop says
    // The connection has no more time or room, and the owner must drop it.
    std::function<void(Number, std::string_view why)> on_over;
    // Accepting has failed for half a second. A program may need its descriptors for a moment only.
    std::function<void()> on_shortage = {};
  };

  // Takes a listening socket of any family. `loop` and `limit` must live until Close.
  BoundedListener(EventLoop& loop, AcceptLimit& limit, UniqueFd fd, Options options)
      : loop_(loop), limit_(limit), fd_(std::move(fd)), options_(std::move(options)) {}
  // REQUIRES: a shared_ptr owns the listener.
  Status Start();
  // Closes the socket and the connections. No function of the options begins after the call.
  void Close();

  // Lets go of a connection: its owner has it from now on.
  UniqueFd Take(Number number);
  // Closes a connection.
  void Drop(Number number);

 private:
  struct Held {
    UniqueFd fd;
    EventLoop::TimerId timer;
    AcceptLimit::Number place;
  };

  void AcceptSome();
  bool MakeRoom(int error);
  void Pause(int64_t pause_ns);
  void Admit(UniqueFd fd, const SocketAddress& from);

  EventLoop& loop_;
  AcceptLimit& limit_;
  UniqueFd fd_;  // invalid once closed
  const Options options_;
  std::map<Number, Held> held_;
  Number next_ = 1;
  EventLoop::TimerId pause_timer_ = 0;
  int failures_ = 0;  // without a success in between
};

}  // namespace tutti
