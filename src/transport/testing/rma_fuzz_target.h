#pragma once

// Feeds arbitrary bytes to one end of a connection for one-sided operations as the output of the
// other end. Called by libFuzzer (rma_fuzz.cc) and by the seeded mutations of rma_comm_test.cc. A
// broken promise aborts.

#include <unistd.h>

#include "transport/net/socket/rma_comm.h"
#include "transport/testing/socket_fuzz_targets.h"

namespace tutti::fuzz {

// The keys of the two ranges that FeedRma registers, and their length.
inline constexpr uint64_t kRmaKeys[] = {1, 2};
inline constexpr size_t kRmaRangeBytes = 256;

// The bytes arrive in pieces of `piece` bytes while a get, a flush and an atomic of this end wait
// for answers. The comm must serve operations or break, never write outside the ranges, and stay
// broken.
inline void FeedRma(std::span<const std::byte> bytes, size_t piece) {
  constexpr uint64_t kGuard = 0xa5a5a5a5a5a5a5a5;
  constexpr size_t kWords = kRmaRangeBytes / 8;
  SocketSet sockets;
  UniqueFd writer;
  std::tie(sockets.control, writer) = JoinedSockets();
  SocketRmaComm comm(SocketChannel::Create(std::move(sockets), SocketDirection::kSend,
                                           SocketHelpers::Create(0).value())
                         .value(),
                     kRmaKeys[0]);
  // A guard, a range, a guard, a range, a guard.
  std::vector<uint64_t> words(5 * kWords, kGuard);
  const auto range = [&](size_t i) {
    return NetRegion{reinterpret_cast<std::byte*>(&words[i * kWords]), kRmaRangeBytes};
  };
  const std::unique_ptr<NetMemory> first = comm.Register(range(1)).value();
  const std::unique_ptr<NetMemory> second = comm.Register(range(3)).value();
  Require(comm.Iget({first.get(), 0}, {}, 100).value() && comm.Iflush().value() &&
          comm.Iatomic({first.get(), 0}, {}).value());
  bool broken = false;
  for (size_t at = 0; at < bytes.size() && !broken;) {
    const auto part = bytes.subspan(at, std::min(piece, bytes.size() - at));
    at += part.size();
    [[maybe_unused]] const ssize_t sent =
        ::send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    broken = !comm.Progress().ok();
    std::array<std::byte, 4096> answers;
    while (::recv(writer.get(), answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
    }
  }
  if (broken) Require(!comm.Progress().ok() && !comm.Iflush().ok());
  for (const size_t guard : {0, 2, 4}) {
    for (size_t i = 0; i < kWords; ++i) Require(words[guard * kWords + i] == kGuard);
  }
}

}  // namespace tutti::fuzz
