#pragma once

// Carries the messages between the driver of a measurement and one of its ranks: JSON objects with
// a length in front. The driver asks and the rank answers. A working rank may send
// {"barrier": true}, and then waits for {"go": true}. Between hosts the messages are encrypted,
// since one of them has the communicator's unique id with its key.

#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/sealed_socket.h"

namespace tutti::tools {

using Json = nlohmann::json;

// The longest message is a list of the times of a million iterations, some ten megabytes.
inline constexpr size_t kMaxMessageBytes = 64u << 20;

class Channel {
 public:
  // For a stream socket between processes of one host.
  explicit Channel(UniqueFd fd)
      : Channel(SealedSocket(
            SealedSocket::Parts{std::move(fd), RecordSeal::Checksum(), RecordSeal::Checksum()})) {}
  explicit Channel(SealedSocket socket) : socket_(std::move(socket)) {}

  Status Send(const Json& message);
  // Waits for a whole message.
  Result<Json> Receive(Deadline deadline);
  // Takes the bytes that have arrived, without waiting. Returns true when a message filled
  // *message, and fails with RemoteError when the peer has closed the connection.
  Result<bool> TryReceive(Json* message);

  int fd() const { return socket_.fd(); }
  bool open() const { return socket_.valid(); }
  void Close() { socket_.Reset(); }

 private:
  Result<bool> Extract(Json* message);

  SealedSocket socket_;
  Bytes pending_;
};

}  // namespace tutti::tools
