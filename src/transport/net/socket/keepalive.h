#pragma once

#include "base/status.h"

namespace tutti {

// Makes the kernel break a connection that is idle and whose host has vanished, after about a
// minute. Not TCP_USER_TIMEOUT: it would also break a connection whose receiver is alive but late,
// as a rank is that computes for minutes before it joins a collective.
Status KeepAlive(int fd);

}  // namespace tutti
