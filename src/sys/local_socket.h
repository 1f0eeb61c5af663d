#pragma once

// Local sockets: abstract Unix sockets at which processes of one user meet on a machine. The kernel
// tells each end the user at the other end.
//
// Any user may take a name first. The listener then takes the next of kLocalNames names (`name`,
// `name`-1, …), and those who connect pass over the sockets of other users.
//
// Any thread.

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

inline constexpr int kLocalNames = 16;

// Listens at the local socket `name`. `error` (when given) tells the errno of a failure, which is
// EADDRINUSE where another process of this user has the name.
Result<UniqueFd> ListenLocal(const std::string& name, int* error = nullptr);

// Connects to the local socket `name` of a process of this user or of root, without waiting. A
// failure is the failure at the first name.
Result<UniqueFd> ConnectLocal(const std::string& name);

// Fails where `fd` is a Unix socket whose far end belongs to another user; root is accepted.
// Sockets of other families pass.
Status CheckSameUser(int fd);

}  // namespace tutti
