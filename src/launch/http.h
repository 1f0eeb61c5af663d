#pragma once

// The few words of HTTP/1.1 that Horovod's rendezvous is made of: GET, PUT and DELETE of
// /scope/key, with a Content-Length where there is a body, one request for each connection. Parsers
// take bytes from anybody and bound them. Pure functions.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti::launch {

inline constexpr size_t kMaxHttpHeadBytes = 8 * 1024;
// Gloo keeps an address of a few hundred bytes for each pair of ranks under a key of its own.
inline constexpr size_t kMaxHttpBodyBytes = 1 << 20;

struct HttpRequest {
  std::string method;
  std::string scope;
  std::string key;
  std::string body;
};

struct HttpResponse {
  int status = 0;
  std::string body;
};

// `host` is the server's, for the request's header.
std::string EncodeHttpRequest(const HttpRequest& request, std::string_view host);
std::string EncodeHttpResponse(const HttpResponse& response);

// Return nothing while more bytes are to come. InvalidArgument for what is no such message, or is
// too long. A response without Content-Length goes on to the end of the connection, which `ended`
// says.
Result<std::optional<HttpRequest>> ParseHttpRequest(std::string_view bytes);
Result<std::optional<HttpResponse>> ParseHttpResponse(std::string_view bytes, bool ended);

}  // namespace tutti::launch
