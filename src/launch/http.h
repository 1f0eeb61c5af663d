#pragma once

// Implements the part of HTTP/1.1 that Horovod's rendezvous and Prometheus use: GET, PUT and DELETE
// of a path, with a Content-Length where a body follows, one request for each connection. Parsers
// take bytes from anybody and bound them. Pure functions.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti::launch {

inline constexpr size_t kMaxHttpHeadBytes = 8 * 1024;
// Gloo keeps the addresses of a rank, a few hundred bytes for each other rank of its ring or mesh,
// in one value; Horovod's launcher keeps numbers of a few bytes.
inline constexpr size_t kMaxHttpBodyBytes = 64 * 1024;

struct HttpRequest {
  std::string method;
  std::string path;  // begins with '/'; printable, without blanks
  std::string body;
};

struct HttpResponse {
  int status = 0;
  std::string body = {};
  std::string type = {};  // of the body, as Content-Type; empty: none is told
};

// `host` is the server's, for the request's header.
std::string EncodeHttpRequest(const HttpRequest& request, std::string_view host);
std::string EncodeHttpResponse(const HttpResponse& response);

// Return nothing while bytes are missing. InvalidArgument for malformed or too long messages. A
// response without Content-Length ends with the connection, and `ended` says whether the connection
// has ended.
Result<std::optional<HttpRequest>> ParseHttpRequest(std::string_view bytes);
Result<std::optional<HttpResponse>> ParseHttpResponse(std::string_view bytes, bool ended);

}  // namespace tutti::launch
