#include "sys/silence.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace tutti {

// The first probe comes after a fifth of the time, and the others share the rest of it.
Status ProbeWhenIdle(int fd, int dead_after_s) {
  const int one = 1;
  // Where a fifth of the packets is lost, a probe of 16 comes through.
  constexpr int kProbes = 16;
  const int idle_s = std::max(1, dead_after_s / 5);
  const int between_s = std::max(1, (dead_after_s - idle_s) / kProbes);
  const int probes = std::max(1, (dead_after_s - idle_s) / between_s);
  if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof(between_s)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes)) != 0)
    return ErrnoError(errno, "setting the keepalive of a connection failed");
  // The pauses between the first attempts to resend do not double. Not every kernel has it.
  static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof(one)));
  return Status::Ok();
}

Status BreakWhenSilent(int fd, int dead_after_s) {
  TUTTI_TRY(ProbeWhenIdle(fd, dead_after_s));
  const int most_ms = dead_after_s * 1000;
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof(most_ms)) != 0)
    return ErrnoError(errno, "setting the time-out of a connection failed");
  return Status::Ok();
}

// Unacknowledged data and unanswered probes both wait for the other host.
Result<SignsOfLife> ReadSignsOfLife(int fd, int64_t now_ns) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
    return ErrnoError(errno, "reading the state of a connection failed");
  return SignsOfLife{
      .awaits_answer = info.tcpi_unacked > 0 || info.tcpi_probes > 0,
      .answered_ns = now_ns - int64_t{info.tcpi_last_ack_recv} * 1'000'000,
  };
}

// The time counts from the observation and not from the last acknowledgement, since an idle
// connection may have had no reason for one.
bool SilenceMeter::Observe(const SignsOfLife& signs, int64_t now_ns, int64_t dead_after_ns) {
  const bool stood_still = now_ns - observed_ns_ > dead_after_ns / 2;
  observed_ns_ = now_ns;
  if (!signs.awaits_answer || stood_still) since_ns_.reset();
  if (!signs.awaits_answer) return false;
  if (!since_ns_ || signs.answered_ns > *since_ns_) since_ns_ = now_ns;
  return now_ns - *since_ns_ >= dead_after_ns;
}

}  // namespace tutti
