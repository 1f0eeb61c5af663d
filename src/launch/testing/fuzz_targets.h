#pragma once

// Holds the parsers of bytes from outside, each with its promises. libFuzzer (parsers_fuzz.cc) and
// the seeded mutations of parsers_test.cc call the same functions.

#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "launch/environment.h"
#include "launch/handshake.h"
#include "launch/hex.h"
#include "launch/http.h"
#include "launch/meeting_wire.h"
#include "launch/pmi1.h"
#include "launch/slurm.h"

namespace tutti::launch::fuzz {

inline void Require(bool promise) {
  if (!promise) std::abort();
}

// Reads an environment of lines "NAME=value".
inline void Variables(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos) {
      variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  const Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const auto info =
      ReadLaunchEnvironment(environment, {"machine", 0, [] { return 1; }}, {.may_join_pmi = true});
  if (!info.ok()) {
    // A secret that is too short is an invalid use.
    Require(info.status().code() == Code::kInvalidArgument ||
            info.status().code() == Code::kInvalidUsage);
    Require(!info.status().message().empty());
    return;
  }
  Require(info->size >= 1 && info->size <= kMaxRanks && info->rank >= 0 && info->rank < info->size);
  Require((info->local_rank < 0) == (info->local_size < 0) &&
          (info->local_rank < 0 || info->local_rank < info->local_size));
  Require(info->size == 1 || info->rendezvous != Rendezvous::kNone);
  const bool by_address = info->rendezvous == Rendezvous::kTcp ||
                          info->rendezvous == Rendezvous::kLocal ||
                          info->rendezvous == Rendezvous::kHttp;
  Require(by_address == !info->endpoints.empty() || info->size == 1);
  for (const Endpoint& endpoint : info->endpoints) {
    Require(endpoint.local_name.empty() ? endpoint.port > 0 && !endpoint.host.empty()
                                        : endpoint.local_name.size() < 100);
  }
}

inline void SlurmLists(std::string_view text) {
  Require(FirstHost(text).size() <= text.size());
  for (const NodeGroup& group : ReadTasksPerNode(text)) {
    Require(group.tasks >= 1 && group.tasks <= kMaxRanks);
    Require(group.nodes >= 1 && group.nodes <= kMaxRanks);
  }
}

inline void Hellos(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto hello = ParseClaimHello(bytes);
  if (hello.ok()) Require(EncodeClaimHello(*hello) == Bytes(bytes.begin(), bytes.end()));
  const auto residence = ParseResidence(text);
  if (residence.ok()) Require(EncodeResidence(*residence).size() <= kMaxNoteBytes);
}

inline void Answers(std::string_view text) {
  for (const int num_ranks : {1, 2, 3}) {
    const auto answer = ParseAnswer(text, num_ranks);
    if (!answer.ok()) continue;
    Require(answer->places.size() == static_cast<size_t>(num_ranks));
    Require(EncodeAnswer(*answer) == text);
  }
  const auto invitation = ParseInvitation(text);
  if (invitation.ok()) Require(ParseInvitation(EncodeInvitation(*invitation)).ok());
}

inline void Texts(std::string_view text) {
  const auto bytes = FromHex(text);
  if (bytes.ok()) Require(ToHex(*bytes) == text);
  for (const auto& [name, value] : ParsePmi1Line(text)) {
    Require(name.find('=') == std::string::npos && value.find(' ') == std::string::npos);
  }
}

inline void Http(std::string_view text) {
  const auto request = ParseHttpRequest(text);
  if (request.ok() && *request) {
    Require((*request)->body.size() <= kMaxHttpBodyBytes && (*request)->path.starts_with('/'));
    const auto again = ParseHttpRequest(EncodeHttpRequest(**request, "host"));
    Require(again.ok() && *again && (*again)->path == (*request)->path &&
            (*again)->body == (*request)->body);
  }
  for (const bool ended : {false, true}) {
    const auto response = ParseHttpResponse(text, ended);
    if (response.ok() && *response) Require((*response)->body.size() <= kMaxHttpBodyBytes);
    Require(!ended || !response.ok() || *response);
  }
}

inline void All(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Variables(text);
  SlurmLists(text);
  Hellos(text);
  Answers(text);
  Texts(text);
  Http(text);
}

}  // namespace tutti::launch::fuzz
