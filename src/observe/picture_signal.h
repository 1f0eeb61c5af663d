#pragma once

// Writes the picture of a process to the log when a signal comes (TUTTI_OBSERVE_SIGNAL). The
// handler only wakes a thread of the library. A signal with a handler of the program's own is left
// alone, and a child that was forked treats the signal as if there were no handler.
//
// A process has a single PictureSignal at a time, as it has a single handler of a signal.

#include <functional>
#include <memory>
#include <string_view>

#include "base/unique_fd.h"
#include "sys/event_loop.h"

namespace tutti::observe {

class PictureSignal {
 public:
  // Has `picture` called on the thread of `loop` for each signal of the name, a choice of the
  // setting. Returns null where the setting says so, the program handles the signal, or the system
  // grants no descriptor.
  static std::unique_ptr<PictureSignal> Install(std::string_view name, EventLoop& loop,
                                                std::function<void()> picture);
  ~PictureSignal();
  PictureSignal(const PictureSignal&) = delete;
  PictureSignal& operator=(const PictureSignal&) = delete;

 private:
  PictureSignal(int signal, EventLoop& loop, UniqueFd wake);

  const int signal_;
  EventLoop& loop_;
  const UniqueFd wake_;
};

}  // namespace tutti::observe
