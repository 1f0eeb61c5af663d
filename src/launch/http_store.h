#pragma once

// Horovod's rendezvous: a store of values under a scope and a key, over HTTP.
//
//   PUT    /scope/key   stores the body
//   GET    /scope/key   200 and the value; 404 while there is none, and who waits for it asks again
//   DELETE /scope/key   forgets it
//
// Horovod's launcher serves one for its workers (HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT), and
// `tutti run --horovod-store` serves this one. Whoever reaches its port may read and write it, in
// Horovod and here, because Horovod's workers prove nothing. Ranks of this library find only their
// addresses there and then prove that they hold the job's key (handshake.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "launch/environment.h"
#include "launch/http.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti::launch {

// Asks the store for a process. Each call makes a connection of its own, and fails with
// Timeout at its deadline. Any thread.
class HttpStoreClient {
 public:
  explicit HttpStoreClient(Endpoint server) : server_(std::move(server)) {}

  Status Put(std::string_view scope, std::string_view key, std::string_view value,
             const WaitLimits& limits) const;
  // Nothing where there is no value.
  Result<std::optional<std::string>> Get(std::string_view scope, std::string_view key,
                                         const WaitLimits& limits) const;
  // Asks until there is a value.
  Result<std::string> Await(std::string_view scope, std::string_view key,
                            const WaitLimits& limits) const;
  Status Delete(std::string_view scope, std::string_view key, const WaitLimits& limits) const;

 private:
  Result<HttpResponse> Ask(const HttpRequest& request, const WaitLimits& limits) const;
  Result<HttpResponse> AskOnce(const SocketAddress& address, const std::string& request,
                               const WaitLimits& limits) const;

  const Endpoint server_;
};

// The store itself, on an event loop of its own; its functions are called from any other thread.
class HttpStoreServer {
 public:
  // Listens at `address`; its port 0 means any.
  static Result<std::unique_ptr<HttpStoreServer>> Create(SocketAddress address);
  ~HttpStoreServer();

  uint16_t port() const { return port_; }
  void Put(const std::string& scope, const std::string& key, std::string value);
  size_t size() const;  // Returns how many values there are.

 private:
  class State;
  HttpStoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state, uint16_t port);

  const std::unique_ptr<EventLoop> loop_;
  const std::shared_ptr<State> state_;
  const uint16_t port_;
};

}  // namespace tutti::launch
