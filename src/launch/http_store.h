#pragma once

// Implements Horovod's rendezvous: a store of values under a scope and a key, over HTTP.
//
//   PUT    /scope/key   stores the body
//   GET    /scope/key   200 and the value; 404 without a value, and a waiting client asks again
//   DELETE /scope/key   removes the value
//
// Horovod's launcher serves a store for its workers (HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT), and
// `tutti run --horovod-store` serves this store. Anyone who reaches the store's port may read and
// write the store, in Horovod and here, because Horovod's workers neither prove anything nor sign
// their values. Ranks of this library find only their addresses in a store and then prove that they
// hold the job's secret (handshake.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "launch/environment.h"
#include "launch/http.h"
#include "launch/http_server.h"
#include "sys/tcp.h"

namespace tutti::launch {

// Asks the store for a process. Each call makes a connection of its own, and fails with
// Timeout at its deadline. Any thread.
class HttpStoreClient {
 public:
  explicit HttpStoreClient(Endpoint server) : server_(std::move(server)) {}

  Status Put(std::string_view scope, std::string_view key, std::string_view value,
             const WaitLimits& limits) const;
  // Returns nothing where the key has no value.
  Result<std::optional<std::string>> Get(std::string_view scope, std::string_view key,
                                         const WaitLimits& limits) const;
  // Asks until the key has a value.
  Result<std::string> Await(std::string_view scope, std::string_view key,
                            const WaitLimits& limits) const;
  Status Delete(std::string_view scope, std::string_view key, const WaitLimits& limits) const;

 private:
  Result<HttpResponse> Ask(const HttpRequest& request, const WaitLimits& limits) const;
  Result<HttpResponse> AskOnce(const SocketAddress& address, const std::string& request,
                               const WaitLimits& limits) const;

  const Endpoint server_;
};

// Serves the store (http_server.h); other threads call the functions. The values and their total
// are bounded too.
class HttpStoreServer {
 public:
  // Bound of all keys and values together. A job of a thousand ranks needs a few MiB.
  static constexpr size_t kMaxTotalBytes = size_t{64} << 20;

  // Listens at `address`; its port 0 means any.
  static Result<std::unique_ptr<HttpStoreServer>> Create(SocketAddress address);
  ~HttpStoreServer();

  uint16_t port() const { return server_->port(); }
  // Has no effect where the store is full, as for clients.
  void Put(const std::string& scope, const std::string& key, std::string value);
  size_t size() const;  // number of values
  size_t connections() const { return server_->connections(); }

 private:
  class Values;
  HttpStoreServer(std::shared_ptr<Values> values, std::unique_ptr<HttpServer> server);

  const std::shared_ptr<Values> values_;
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace tutti::launch
