#pragma once

// A function for each parser of bytes from outside. Each function takes any bytes and must neither
// crash nor break a promise of its parser's header; libFuzzer (parsers_fuzz.cc) and the seeded
// mutations of parsers_test.cc call the same functions.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "bootstrap/exchange.h"
#include "bootstrap/frame.h"
#include "bootstrap/root_messages.h"
#include "bootstrap/unique_id.h"

namespace tutti::fuzz {

inline void Require(bool promise) {
  if (!promise) std::abort();
}

// An id that decodes must encode to the same bytes.
inline void DecodeId(std::span<const std::byte> bytes) {
  char text[128] = {};
  std::memcpy(text, bytes.data(), std::min(bytes.size(), sizeof(text)));
  const Result<UniqueId> id = UniqueId::Decode(text);
  if (!id.ok()) return;
  char again[128];
  id->Encode(again);
  Require(std::memcmp(text, again, sizeof(text)) == 0);
}

inline void ParseRequest(std::span<const std::byte> bytes) {
  const Result<RootRequest> request = ParseRootRequest(bytes);
  if (!request.ok()) return;
  Require(request->num_ranks >= 1 && request->num_ranks <= kMaxRanks);
  Require(request->rank < request->num_ranks && request->num_roots <= request->num_ranks);
  Require(request->root_index < request->num_roots);
  for (const uint32_t rank : request->wanted) {
    Require(RootInCharge(rank, request->num_ranks, request->num_roots) == request->root_index);
  }
  Require(ParseRootRequest(EncodeRootRequest(*request)).ok());
}

inline void ParseAnswer(std::span<const std::byte> bytes) {
  if (bytes.size() < kRootAnswerHeaderBytes) return;
  uint32_t type = 0;
  const auto size = ParseRootAnswerHeader(bytes.first(kRootAnswerHeaderBytes), &type);
  if (!size.ok()) return;
  Require(*size <= kMaxRootAnswerBytes);
  const auto body = bytes.subspan(kRootAnswerHeaderBytes);
  [[maybe_unused]] const auto answer =
      ParseRootAnswer(type, body.first(std::min<size_t>(*size, body.size())));
}

// However the stream is cut, the frames are the same.
inline void ReadFrames(std::span<const std::byte> bytes) {
  const auto read = [&](size_t piece) {
    FrameReader reader;
    size_t frames = 0;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const Status fed = reader.Feed(bytes.subspan(at, std::min(piece, bytes.size() - at)),
                                     [&](const FrameHeader& header, const Bytes& payload) {
                                       Require(payload.size() == header.size);
                                       Require(header.size <= kMaxFrameBytes);
                                       ++frames;
                                       return Status::Ok();
                                     });
      if (!fed.ok()) break;
    }
    return frames;
  };
  Require(read(1) == read(bytes.size() + 1) && read(7) == read(1));
}

inline void ReadExchange(std::span<const std::byte> bytes) {
  std::vector<Bytes> parts;
  if (bytes.empty()) return;
  const size_t count = std::to_integer<size_t>(bytes[0]);
  if (!ReadParts(bytes.subspan(1), count, parts).ok()) return;
  const Bytes again = WriteParts(parts);
  Require(parts.size() == count && again.size() == bytes.size() - 1);
}

inline void All(std::span<const std::byte> bytes) {
  DecodeId(bytes);
  ParseRequest(bytes);
  ParseAnswer(bytes);
  ReadFrames(bytes);
  ReadExchange(bytes);
}

}  // namespace tutti::fuzz
