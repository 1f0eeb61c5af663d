#pragma once

// Sends messages over an authenticated connection: a length of 4 bytes, little-endian, then the
// bytes. Only one thread at a time may use a connection.

#include <string>
#include <string_view>

#include "base/status.h"
#include "bootstrap/sealed_socket.h"
#include "sys/tcp.h"

namespace tutti::launch {

// Sends a message, waiting within `limits`.
Status SendMessage(SealedSocket& socket, std::string_view message, const WaitLimits& limits);
// Receives a message of at most `limit` bytes. Fails with Timeout at the deadline, and with
// RemoteError when the peer closed the connection or announced a longer message.
Result<std::string> ReceiveMessage(SealedSocket& socket, size_t limit, const WaitLimits& limits);

}  // namespace tutti::launch
