#pragma once

// Feeds arbitrary bytes to one end of a connection as the output of the other end. Called by
// libFuzzer (stream_fuzz.cc) and by the seeded mutations of comm_test.cc. A broken promise aborts.

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/net/socket/recv_comm.h"
#include "transport/net/socket/send_comm.h"

namespace tutti::fuzz {

inline void Require(bool promise) {
  if (!promise) std::abort();
}

inline std::pair<UniqueFd, UniqueFd> JoinedSockets() {
  int fds[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Begins to receive a group with the tags 1 to `size`, each message into `capacity` bytes.
inline Result<NetRequest*> ReceiveGroup(NetRecvComm& receiver, std::byte* data, size_t capacity,
                                        size_t size) {
  std::array<NetReceive, kMaxNetGroup> group;
  for (size_t i = 0; i < size; ++i) {
    group[i] = {data + i * capacity, capacity, static_cast<uint32_t>(i + 1)};
  }
  return receiver.Irecv(std::span(group).first(size));
}

// Begins to receive one message.
inline Result<NetRequest*> ReceiveOne(NetRecvComm& receiver, std::byte* data, size_t capacity) {
  const NetReceive buffer = {data, capacity};
  return receiver.Irecv({&buffer, 1});
}

// The bytes arrive at a receiver in pieces of `piece` bytes, over its control socket and (every
// fifth piece) its data sockets. The receiver must deliver chunks or break the connection, never
// write outside a buffer, and stay broken. Without a `group` the target posts single buffers
// without tags.
inline void FeedReceiver(std::span<const std::byte> bytes, size_t piece, int data_sockets,
                         size_t group = 0) {
  constexpr size_t kCapacity = 80 * 1024;
  constexpr size_t kGuardBytes = 64;
  constexpr std::byte kGuard{0xa5};
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  SocketSet sockets;
  std::vector<UniqueFd> writers(1);
  std::tie(sockets.control, writers[0]) = JoinedSockets();
  for (int i = 0; i < data_sockets; ++i) {
    auto [ours, theirs] = JoinedSockets();
    sockets.data.push_back(std::move(ours));
    writers.push_back(std::move(theirs));
  }
  SocketRecvComm receiver(
      SocketChannel::Create(std::move(sockets), SocketDirection::kReceive, helpers).value());
  std::vector<std::byte> memory(kNetWindow * (kCapacity + kGuardBytes), kGuard);
  std::vector<NetRequest*> requests;
  uint64_t posted = 0;
  uint64_t done = 0;
  bool broken = false;
  const auto drive = [&] {
    while (posted - done < kNetWindow) {
      std::byte* const buffer = &memory[posted % kNetWindow * (kCapacity + kGuardBytes)];
      const Result<NetRequest*> request =
          group == 0 ? ReceiveOne(receiver, buffer, kCapacity)
                     : ReceiveGroup(receiver, buffer, kCapacity / group, group);
      Require(request.ok() && request.value());
      requests.push_back(request.value());
      ++posted;
    }
    broken = !receiver.Progress().ok();
    while (!broken && done < posted && receiver.Test(*requests[done]).value()) {
      Require(requests[done]->received[0].bytes <= kCapacity);
      ++done;
    }
  };
  size_t turn = 0;
  for (size_t at = 0; at < bytes.size() && !broken; ++turn) {
    const auto part = bytes.subspan(at, std::min(piece, bytes.size() - at));
    at += part.size();
    const size_t to = turn % 5 == 4 ? 1 + turn / 5 % std::max<size_t>(writers.size() - 1, 1) : 0;
    const UniqueFd& writer = writers[to < writers.size() ? to : 0];
    [[maybe_unused]] const ssize_t sent =
        ::send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    drive();
  }
  if (broken) Require(!receiver.Progress().ok() && !ReceiveOne(receiver, memory.data(), 1).ok());
  for (size_t slot = 0; slot < kNetWindow; ++slot) {
    const auto guard =
        memory.begin() + static_cast<ptrdiff_t>(slot * (kCapacity + kGuardBytes) + kCapacity);
    Require(std::all_of(guard, guard + kGuardBytes, [&](std::byte b) { return b == kGuard; }));
  }
}

// The bytes arrive at a sender as grants. After each piece `send(sender, fed)` sends as much as
// possible; `fed` bytes have arrived so far. `send` returns false when the sender is broken.
template <class Send>
void FeedGrants(std::span<const std::byte> bytes, size_t piece, Send send) {
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  SocketSet sockets;
  UniqueFd writer;
  std::tie(sockets.control, writer) = JoinedSockets();
  SocketSendComm sender(
      SocketChannel::Create(std::move(sockets), SocketDirection::kSend, helpers).value());
  for (size_t at = 0; at < bytes.size();) {
    const auto part = bytes.subspan(at, std::min(piece, bytes.size() - at));
    at += part.size();
    [[maybe_unused]] const ssize_t sent =
        ::send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (!send(sender, at)) return;
  }
}

// A sender sends at most a window ahead, with any grants.
inline void FeedSender(std::span<const std::byte> bytes, size_t piece) {
  const std::byte data{1};
  uint64_t begun = 0;
  FeedGrants(bytes, piece, [&](SocketSendComm& sender, size_t fed) {
    for (bool more = true; more;) {
      const Result<NetRequest*> request = sender.Isend({&data, 1});
      more = request.ok() && request.value() && sender.Progress().ok() &&
             sender.Test(*request.value()).value();
      begun += more ? 1 : 0;
    }
    // Each grant is a frame of its own, worth at most a window beyond the sent messages.
    Require(begun <= (kNetWindow + kCreditMessages) * (1 + fed / kFrameBytes));
    return true;
  });
}

// With tags a sender sends only granted messages, and only to granted tags.
inline void FeedTaggedSender(std::span<const std::byte> bytes, size_t piece) {
  const std::byte data{1};
  uint64_t begun = 0;
  FeedGrants(bytes, piece, [&](SocketSendComm& sender, size_t fed) {
    for (uint32_t tag = 1; tag <= 9; ++tag) {
      const Result<NetRequest*> request = sender.Isend({&data, 1, tag});
      if (!request.ok() || !sender.Progress().ok()) return false;
      if (!*request || !sender.Test(**request).value()) continue;
      ++begun;
      tag = 0;
    }
    Require(begun <= kMaxNetGroup * (fed / (kFrameBytes + kGroupTagsBytes)));
    return true;
  });
}

}  // namespace tutti::fuzz
