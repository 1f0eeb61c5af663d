#pragma once

// A server of HTTP/1.1 that strangers can reach: one request for each connection (http.h), answered
// on an event loop of the server's own. Strangers cannot make the process large or slow: requests,
// the time of a connection and the number of connections are bounded, and a shortage of descriptors
// makes the server pause.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "launch/http.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti::launch {

class HttpServer {
 public:
  // Bound of the connections at the same time, each with at most some 150 KiB beside its answer. A
  // process with fewer than 1024 descriptors has a quarter of them. At the bound newcomers take the
  // place of the oldest (sys/bounded_listener.h).
  static constexpr size_t kMaxConnections = 256;

  // Returns the encoded response to a request (http.h). Many connections may share a long one.
  // Called on the loop's thread.
  using Answer = std::function<std::shared_ptr<const std::string>(const HttpRequest&)>;

  // Listens at `address`; its port 0 means any. `name` is for the log ("the store of the
  // launcher").
  static Result<std::unique_ptr<HttpServer>> Create(SocketAddress address, std::string name,
                                                    Answer answer);
  // Closes all connections. No answer is being made after return.
  ~HttpServer();

  uint16_t port() const { return port_; }
  size_t connections() const;  // number of open connections
  // Runs `task` on the loop's thread, between two answers, and returns when the task has run.
  void RunSync(std::function<void()> task) const { loop_->RunSync(std::move(task)); }

 private:
  class State;
  HttpServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state, uint16_t port);

  const std::unique_ptr<EventLoop> loop_;
  const std::shared_ptr<State> state_;
  const uint16_t port_;
};

}  // namespace tutti::launch
