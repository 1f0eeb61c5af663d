#pragma once

// Carries the messages between the driver of a measurement and one of its ranks: JSON objects with
// a length in front, over a stream socket. The driver asks and the rank answers. A working rank may
// send {"barrier": true}, and then waits for {"go": true}.

#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

using Json = nlohmann::json;

// The longest message is a list of the times of a million iterations, some ten megabytes.
inline constexpr size_t kMaxMessageBytes = 64u << 20;

class Channel {
 public:
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}

  Status Send(const Json& message);
  // Waits for a whole message.
  Result<Json> Receive(Deadline deadline);
  // Takes the bytes that have arrived, without waiting. Returns true when a message filled
  // *message, and fails with RemoteError when the peer has closed the connection.
  Result<bool> TryReceive(Json* message);

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  void Close() { fd_.Reset(); }

 private:
  Result<bool> Extract(Json* message);

  UniqueFd fd_;
  std::string pending_;
};

}  // namespace tutti::tools
