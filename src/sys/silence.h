#pragma once

// SilenceMeter: whether the host at the other end of a TCP connection still answers.
//
// It looks at what the other host's kernel acknowledges, which needs no process there: a process
// that is stopped, or that is too busy to read, does not make its host silent. The kernel's own
// limit (TCP_USER_TIMEOUT) does not tell the two apart: it also breaks a connection whose receiver
// has not read for that long.

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace tutti {

// Holds what the kernel knows of a connection. It is a plain value.
struct SignsOfLife {
  bool awaits_answer = false;  // something was sent that the other host has not acknowledged
  int64_t answered_ns = 0;     // It last acknowledged something then, on the clock of NowNs.
};

// Makes the kernel send a probe over a connection that is idle, so often that `dead_after_s`
// seconds leave time for several, and makes it resend what is lost soon. Breaks a connection that
// is idle and whose host has answered no probe for that long.
Status ProbeWhenIdle(int fd, int dead_after_s);

Result<SignsOfLife> ReadSignsOfLife(int fd, int64_t now_ns);

// A value without sockets and clocks, for one connection.
class SilenceMeter {
 public:
  // Returns whether the other host has left something unanswered for `dead_after_ns`, counted from
  // the first call that saw it so. To be called several times within that time.
  bool Observe(const SignsOfLife& signs, int64_t now_ns, int64_t dead_after_ns);

 private:
  std::optional<int64_t> since_ns_;  // An answer has been awaited since then, and none has come.
};

}  // namespace tutti
