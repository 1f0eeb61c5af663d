#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <thread>

#include "launch/http_store.h"
#include "launch/listen.h"

namespace tutti::launch {
namespace {

// Pauses before asking again. A store on this machine answers in a fraction of the shortest pause;
// with the longest pause, a thousand waiting ranks ask a store ten thousand times a second.
constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{100};

std::string PathOf(std::string_view scope, std::string_view key) {
  return fmt::format("/{}/{}", scope, key);
}

}  // namespace

Result<HttpResponse> HttpStoreClient::AskOnce(const SocketAddress& address,
                                              const std::string& request,
                                              const WaitLimits& limits) const {
  TUTTI_ASSIGN(const UniqueFd fd, Connect(address, limits));
  TUTTI_TRY(SendAll(fd.get(), std::as_bytes(std::span(request)), limits));
  std::string bytes;
  std::array<std::byte, 4096> buffer;
  for (;;) {
    TUTTI_TRY(WaitReady(fd.get(), POLLIN, limits, "waiting for the rendezvous store"));
    TUTTI_ASSIGN(const int64_t got, TryRecv(fd.get(), buffer));
    const bool ended = got == kEndOfStream;
    if (!ended)
      bytes.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(got));
    TUTTI_ASSIGN(std::optional<HttpResponse> response, ParseHttpResponse(bytes, ended));
    if (response) return std::move(*response);
  }
}

// Asks until the store answers: a busy store may refuse a connection, and a network may lose a
// connection.
Result<HttpResponse> HttpStoreClient::Ask(const HttpRequest& request,
                                          const WaitLimits& limits) const {
  const std::string text = EncodeHttpRequest(request, server_.host);
  Status last = Timeout("there was no time to ask the rendezvous store at {}", server_.ToString());
  for (auto pause = kFirstPause; !limits.Over(); pause = std::min(2 * pause, kLongestPause)) {
    TUTTI_ASSIGN(const auto addresses, LookUp(server_.host, server_.port));
    for (const SocketAddress& address : addresses) {
      Result<HttpResponse> response = AskOnce(address, text, limits);
      if (response.ok() && (response->status == 200 || response->status == 404)) return response;
      last = response.ok() ? RemoteError("the rendezvous store at {} answers with status {}",
                                         server_.ToString(), response->status)
                           : std::move(response).status();
    }
    std::this_thread::sleep_for(pause);
  }
  return last;
}

Status HttpStoreClient::Put(std::string_view scope, std::string_view key, std::string_view value,
                            const WaitLimits& limits) const {
  return Ask({"PUT", PathOf(scope, key), std::string(value)}, limits).status();
}

Result<std::optional<std::string>> HttpStoreClient::Get(std::string_view scope,
                                                        std::string_view key,
                                                        const WaitLimits& limits) const {
  TUTTI_ASSIGN(HttpResponse response, Ask({"GET", PathOf(scope, key), ""}, limits));
  if (response.status == 404) return std::optional<std::string>();
  return std::optional(std::move(response.body));
}

Result<std::string> HttpStoreClient::Await(std::string_view scope, std::string_view key,
                                           const WaitLimits& limits) const {
  bool answered = false;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    Result<std::optional<std::string>> value = Get(scope, key, limits);
    if (value.ok() && *value) return std::move(**value);
    if (!value.ok() && !answered) return std::move(value).status();
    answered = true;
    if (limits.Over()) {
      return Timeout("nobody has put /{}/{} into the rendezvous store at {}", scope, key,
                     server_.ToString());
    }
    std::this_thread::sleep_for(pause);
  }
}

Status HttpStoreClient::Delete(std::string_view scope, std::string_view key,
                               const WaitLimits& limits) const {
  return Ask({"DELETE", PathOf(scope, key), ""}, limits).status();
}

}  // namespace tutti::launch
