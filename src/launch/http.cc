#include "launch/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace tutti::launch {
namespace {

// Holds the part of a message before the body.
struct Head {
  std::string_view first_line;
  std::optional<size_t> content_length;
  size_t size = 0;  // length of the whole head with the blank line
};

Status TakeHeader(std::string_view line, Head* head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return InvalidArgument("a header of HTTP without a colon");
  const std::string_view name = line.substr(0, colon);
  if (EqualIgnoringCase(name, "Transfer-Encoding"))
    return InvalidArgument("a message of HTTP in parts");
  if (!EqualIgnoringCase(name, "Content-Length")) return Status::Ok();
  head->content_length = WholeNumber<size_t>(Trim(line.substr(colon + 1)));
  if (!head->content_length || *head->content_length > kMaxHttpBodyBytes)
    return InvalidArgument("a message of HTTP of more than {} bytes", kMaxHttpBodyBytes);
  return Status::Ok();
}

Result<std::optional<Head>> ParseHead(std::string_view bytes) {
  const size_t end = bytes.substr(0, kMaxHttpHeadBytes).find("\r\n\r\n");
  if (end == std::string_view::npos) {
    if (bytes.size() >= kMaxHttpHeadBytes)
      return InvalidArgument("a head of HTTP of more than {} bytes", kMaxHttpHeadBytes);
    return std::optional<Head>();
  }
  Head head;
  head.size = end + 4;
  std::string_view lines = bytes.substr(0, end);
  for (bool first = true; !lines.empty(); first = false) {
    const size_t line_end = std::min(lines.find("\r\n"), lines.size());
    const std::string_view line = lines.substr(0, line_end);
    lines.remove_prefix(std::min(line_end + 2, lines.size()));
    if (first) {
      head.first_line = line;
    } else {
      TUTTI_TRY(TakeHeader(line, &head));
    }
  }
  return std::optional<Head>(head);
}

bool IsWord(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string EncodeHttpRequest(const HttpRequest& request, std::string_view host) {
  return fmt::format(
      "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
      request.method, request.path, host, request.body.size(), request.body);
}

std::string EncodeHttpResponse(const HttpResponse& response) {
  const std::string_view reason = response.status == 200   ? "OK"
                                  : response.status == 404 ? "Not Found"
                                                           : "Bad Request";
  const std::string type =
      response.type.empty() ? "" : fmt::format("Content-Type: {}\r\n", response.type);
  return fmt::format("HTTP/1.1 {} {}\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n{}",
                     response.status, reason, type, response.body.size(), response.body);
}

Result<std::optional<HttpRequest>> ParseHttpRequest(std::string_view bytes) {
  TUTTI_ASSIGN(const std::optional<Head> head, ParseHead(bytes));
  if (!head) return std::optional<HttpRequest>();
  std::string_view line = head->first_line;
  HttpRequest request;
  request.method = NextItem(line, ' ');
  request.path = NextItem(line, ' ');
  if (!IsWord(request.method) || !IsWord(request.path) || request.path.front() != '/' ||
      !line.starts_with("HTTP/1."))
    return InvalidArgument("no request of HTTP/1.1");
  const std::string_view body = bytes.substr(head->size);
  const size_t length = head->content_length.value_or(0);
  if (body.size() < length) return std::optional<HttpRequest>();
  request.body = body.substr(0, length);
  return std::optional(std::move(request));
}

Result<std::optional<HttpResponse>> ParseHttpResponse(std::string_view bytes, bool ended) {
  TUTTI_ASSIGN(const std::optional<Head> head, ParseHead(bytes));
  if (!head) {
    if (ended) return InvalidArgument("the connection ended in the midst of a response of HTTP");
    return std::optional<HttpResponse>();
  }
  std::string_view line = head->first_line;
  HttpResponse response;
  const bool is_http = NextItem(line, ' ').starts_with("HTTP/1.");
  const std::optional<int> status = WholeNumber<int>(NextItem(line, ' '));
  if (!is_http || !status) return InvalidArgument("no response of HTTP/1.1");
  response.status = *status;
  const std::string_view body = bytes.substr(head->size);
  if (body.size() > kMaxHttpBodyBytes)
    return InvalidArgument("a response of HTTP of more than {} bytes", kMaxHttpBodyBytes);
  const bool whole = head->content_length ? body.size() >= *head->content_length : ended;
  if (!whole) {
    if (ended) return InvalidArgument("the connection ended in the midst of a response of HTTP");
    return std::optional<HttpResponse>();
  }
  response.body = body.substr(0, head->content_length.value_or(body.size()));
  return std::optional(std::move(response));
}

}  // namespace tutti::launch
