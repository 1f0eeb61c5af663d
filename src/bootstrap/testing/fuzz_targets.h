#pragma once

// A function for each parser of bytes from outside. Each function takes any bytes and must neither
// crash nor break a promise of its parser's header; libFuzzer (parsers_fuzz.cc) and the seeded
// mutations of parsers_test.cc call the same functions.

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "bootstrap/exchange.h"
#include "bootstrap/frame.h"
#include "bootstrap/handshake.h"
#include "bootstrap/root_messages.h"
#include "bootstrap/sealed_socket.h"
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

// Nobody without the key gets through a handshake, as either side, or has a record opened. The
// number of bytes chooses the receiver, because a socket for each of them would take long.
inline void TalkWithoutTheKey(std::span<const std::byte> bytes) {
  constexpr size_t kMost = 16 * 1024;  // less than a socket holds
  static const auto pair = std::make_shared<EphemeralPair>(SecretKey{{1, 2, 3}});
  const Key key = {4, 5, 6};
  int fds[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  UniqueFd ours(fds[0]);
  const UniqueFd theirs(fds[1]);
  Require(TrySend(theirs.get(), bytes.first(std::min(bytes.size(), kMost))).ok());
  if (bytes.size() % 3 == 0) {
    SealedSocket socket(std::move(ours), SecretKey{key}, SecretKey{key});
    Bytes opened;
    [[maybe_unused]] const auto got = socket.TryRecv(opened);
    Require(opened.empty());
    return;
  }
  const Handshake::Randomness randomness = {pair, {}};
  Handshake side = bytes.size() % 3 == 1
                       ? Handshake::Accepting(key, randomness)
                       : Handshake::Connecting(key, {Purpose::kLink, {}}, randomness);
  Result<Progress> step = side.Step(ours.get());
  while (step.ok() && *step == Progress::kAdvanced) step = side.Step(ours.get());
  Require(!step.ok() || *step != Progress::kDone);
}

inline void All(std::span<const std::byte> bytes) {
  DecodeId(bytes);
  ParseRequest(bytes);
  ParseAnswer(bytes);
  ReadFrames(bytes);
  ReadExchange(bytes);
  TalkWithoutTheKey(bytes);
}

}  // namespace tutti::fuzz
