#pragma once

// SilenceMeter: whether the host at the other end of a TCP connection still answers.
//
// The meter looks at the acknowledgements of the other host's kernel, which needs no process: a
// process that is stopped, or that is too busy to read, does not make its host silent. The kernel's
// own limit (TCP_USER_TIMEOUT) does not tell the two cases apart: the limit also breaks a
// connection whose receiver has not read for the same time.

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace tutti {

// The kernel's knowledge of a connection. A plain value.
struct SignsOfLife {
  bool awaits_answer = false;  // the other host has not acknowledged all sent bytes
  int64_t answered_ns = 0;     // the time of the last acknowledgement, on the clock of NowNs
};

// Makes the kernel probe an idle connection several times within `dead_after_s` seconds, and makes
// it resend lost packets soon. Breaks an idle connection whose host has answered no probe for
// `dead_after_s` seconds.
Status ProbeWhenIdle(int fd, int dead_after_s);

// Makes the kernel break a connection whose host acknowledges nothing for `dead_after_s` seconds,
// neither data nor probes: a send or receive fails with ETIMEDOUT, and the descriptor wakes its
// waiters. Only for connections on which so little is sent that the receiver always has room.
Status BreakWhenSilent(int fd, int dead_after_s);

Result<SignsOfLife> ReadSignsOfLife(int fd, int64_t now_ns);

// A value without sockets and clocks, for a single connection.
class SilenceMeter {
 public:
  // Returns whether the other host has left something unanswered for `dead_after_ns`, counted from
  // the first call that found it unanswered. The caller must call several times within this
  // duration. Where two calls lie further apart than half of the duration, this process did not
  // run, and the other host may have stood still as well: the time begins anew.
  bool Observe(const SignsOfLife& signs, int64_t now_ns, int64_t dead_after_ns);

 private:
  std::optional<int64_t> since_ns_;  // An answer has been awaited since then, and none has come.
  int64_t observed_ns_ = 0;
};

}  // namespace tutti
