#include "launch/environment_reader.h"

#include "base/text.h"

namespace tutti::launch {
namespace {

// torchrun's agent holds MASTER_PORT itself, hence rank 0 takes one of the next few ports. Eight
// ports are enough to step over other listeners and few enough for every rank to try them all.
constexpr int kPortChoices = 8;

}  // namespace

const char* Reader::Text(const char* name) const {
  const char* value = environment_(name);
  return value && *value ? value : nullptr;
}

std::string Reader::TextOr(const char* name, std::string_view otherwise) const {
  const char* value = Text(name);
  return value ? value : std::string(otherwise);
}

Result<int64_t> Reader::Number(const char* name, int64_t lowest, int64_t highest) const {
  const char* text = Text(name);
  if (!text) return InvalidArgument("the environment variable {} is not set", name);
  const std::optional<int64_t> value = WholeNumber<int64_t>(text);
  if (value && *value >= lowest && *value <= highest) return *value;
  return InvalidArgument("{}={} in the environment is not a number from {} to {}", name, text,
                         lowest, highest);
}

Result<int> Reader::NumberIfSet(const char* name, int lowest, int highest) const {
  if (!Has(name)) return -1;
  TUTTI_ASSIGN(const int64_t value, Number(name, lowest, highest));
  return static_cast<int>(value);
}

Result<uint16_t> Reader::Port(const char* name) const {
  TUTTI_ASSIGN(const int64_t port, Number(name, 1, 65535));
  return static_cast<uint16_t>(port);
}

Result<Endpoint> ReadEndpoint(std::string_view name, std::string_view text) {
  const size_t colon = text.rfind(':');
  const bool has_host = colon != std::string_view::npos && colon > 0;
  const uint16_t port =
      has_host ? WholeNumber<uint16_t>(text.substr(colon + 1)).value_or(0) : uint16_t{0};
  if (port == 0) {
    return InvalidArgument("{}={} in the environment is not HOST:PORT", name, text);
  }
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return Endpoint{std::string(host), port, ""};
}

Result<std::vector<Endpoint>> ReadGivenEndpoints(const Reader& reader) {
  if (const char* text = reader.Text("TUTTI_ADDR")) {
    TUTTI_ASSIGN(Endpoint endpoint, ReadEndpoint("TUTTI_ADDR", text));
    return std::vector<Endpoint>{std::move(endpoint)};
  }
  const char* const master = reader.Text("MASTER_ADDR");
  if (!master || !reader.Has("MASTER_PORT")) return std::vector<Endpoint>{};
  TUTTI_ASSIGN(const uint16_t port, reader.Port("MASTER_PORT"));
  const std::string agent = reader.TextOr("TORCHELASTIC_USE_AGENT_STORE", "False");
  const bool port_is_taken = agent == "True" || agent == "true" || agent == "1";
  if (!port_is_taken) return std::vector<Endpoint>{{master, port, ""}};
  std::vector<Endpoint> endpoints;
  for (int i = 1; i <= kPortChoices; ++i) {
    // Choices turn back below the highest port: every choice is a port.
    const int choice = port + i <= 65535 ? port + i : port - i;
    endpoints.push_back({master, static_cast<uint16_t>(choice), ""});
  }
  return endpoints;
}

// torchrun inside `tutti run` starts a job of its own, which must not meet by the outer job's
// store.
Result<std::vector<Endpoint>> ReadStoreEndpoints(const Reader& reader) {
  std::vector<Endpoint> endpoints;
  if (reader.Has("TORCHELASTIC_RUN_ID")) return endpoints;
  const std::string list = reader.TextOr("TUTTI_STORE_ADDR", "");
  for (std::string_view rest = list; !rest.empty();) {
    TUTTI_ASSIGN(Endpoint endpoint, ReadEndpoint("TUTTI_STORE_ADDR", NextItem(rest, ',')));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

Result<double> ReadTimeout(const Reader& reader) {
  for (const char* name : {"HOROVOD_GLOO_TIMEOUT_SECONDS", "TUTTI_INIT_TIMEOUT_S"}) {
    const char* const text = reader.Text(name);
    if (!text) continue;
    const std::optional<double> seconds = WholeNumber<double>(text);
    constexpr double kMinSeconds = 0.01, kMaxSeconds = 1e6;
    if (seconds && *seconds >= kMinSeconds && *seconds <= kMaxSeconds) return *seconds;
    return InvalidArgument("{}={} in the environment is not a number of seconds from {} to {}",
                           name, text, kMinSeconds, kMaxSeconds);
  }
  return LaunchInfo{}.timeout_s;
}

}  // namespace tutti::launch
