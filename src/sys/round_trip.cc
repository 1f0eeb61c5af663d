#include "sys/round_trip.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <limits>

namespace tutti {

int64_t ShortestRoundTripNs(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  // The kernel's number for "nothing measured".
  if (info.tcpi_min_rtt == std::numeric_limits<uint32_t>::max()) return 0;
  return int64_t{info.tcpi_min_rtt} * 1000;
}

}  // namespace tutti
