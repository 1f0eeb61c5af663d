#pragma once

// The parsers of bytes from outside, each with its promise; libFuzzer (store_fuzz.cc) and the
// seeded mutations of store_wire_test.cc call the same functions.

#include <cstdlib>
#include <span>
#include <string_view>

#include "elastic/hosts.h"
#include "elastic/store_wire.h"

namespace tutti::elastic::fuzz {

inline void Require(bool promise) {
  if (!promise) std::abort();
}

inline void Requests(std::span<const std::byte> bytes) {
  const Result<Request> request = ParseRequest(bytes);
  if (!request.ok()) return;
  Require(!request->key.empty() && request->key.size() <= kMaxKeyBytes);
  Require(request->value.size() <= kMaxValueBytes);
  const Bytes again = EncodeRequest(*request);
  Require(again == Bytes(bytes.begin(), bytes.end()));
}

inline void Answers(std::span<const std::byte> bytes) {
  const Result<Answer> answer = ParseAnswer(bytes);
  if (answer.ok()) Require(EncodeAnswer(*answer) == Bytes(bytes.begin(), bytes.end()));
}

// Reads the output of a discovery script; names go to ssh.
inline void Hosts(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto hosts = ParseHosts(text, 1);
  if (!hosts.ok()) return;
  for (const HostSlots& host : *hosts) {
    Require(!host.host.empty() && host.host.front() != '-' && host.slots >= 0);
    Require(host.host.find_first_of(" \t\r\n'\"\\;|&$<>") == std::string::npos);
  }
}

inline void All(std::span<const std::byte> bytes) {
  Requests(bytes);
  Answers(bytes);
  Hosts(bytes);
}

}  // namespace tutti::elastic::fuzz
