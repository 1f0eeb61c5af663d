#pragma once

// The data sockets of one connection. Each data socket takes pieces of chunks in order and moves
// the pieces without waiting. Data sockets are driven by the thread that drives their connection,
// or by a helper thread (helpers.h).
//
// Threads: the connection's thread calls Push, one thread at a time Step, any thread the rest.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/net/net.h"
#include "transport/net/socket/stream.h"

namespace tutti {

enum class SocketDirection { kSend, kReceive };

// Lets the data sockets of a connection tell its driver that a piece is done or a socket has
// failed.
class SocketDoorbell {
 public:
  static constexpr int kNoError = -1;

  explicit SocketDoorbell(UniqueFd event) : event_(std::move(event)) {}

  void PieceDone();
  void Fail(int error);  // an errno value, or 0: end of stream
  // Forgets the error, because new data sockets replace the failed ones.
  void Forgive() { error_.store(kNoError, std::memory_order_release); }
  int error() const { return error_.load(std::memory_order_acquire); }
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }

  // Makes the next PieceDone or Fail turn event_fd() readable. Turns it readable at once when
  // pieces beyond `seen` are done.
  void Arm(uint64_t seen);
  void Silence();  // makes event_fd() unreadable again
  int event_fd() const { return event_.get(); }

 private:
  void Ring();

  std::atomic<uint64_t> completed_ = 0;
  std::atomic<int> error_ = kNoError;
  std::atomic<bool> armed_ = false;
  std::atomic<bool> rung_ = false;
  UniqueFd event_;
};

class DataSocket {
 public:
  DataSocket(SocketStream stream, SocketDirection direction, SocketDoorbell& doorbell)
      : stream_(std::move(stream)), direction_(direction), doorbell_(doorbell) {}

  // Appends a piece, and decrements `left` when the piece is done. A message has at most one piece
  // on a data socket; hence at most kPieces pieces are under way at a time.
  void Push(std::byte* data, size_t bytes, std::atomic<uint32_t>& left);
  bool HasWork() const {
    return done_.load(std::memory_order_relaxed) < pushed_.load(std::memory_order_acquire) &&
           !failed_.load(std::memory_order_relaxed);
  }
  // Moves as many bytes as possible without a wait. Returns true when something moved.
  bool Step();
  int fd() const { return stream_.fd(); }
  // REQUIRES for Reset and Take: no other thread is in Step, nor will be.
  void Reset() { stream_.Reset(); }
  UniqueFd Take() { return stream_.Take(); }
  SocketDirection direction() const { return direction_; }

 private:
  struct Item {
    std::byte* data = nullptr;
    size_t bytes = 0;
    std::atomic<uint32_t>* left = nullptr;
  };
  // A step lets the remaining data sockets work after this number of bytes.
  static constexpr size_t kStepBytes = 512 * 1024;

  SocketStream stream_;
  const SocketDirection direction_;
  SocketDoorbell& doorbell_;
  static constexpr uint64_t kPieces = kNetWindow * kMaxNetGroup;

  std::array<Item, kPieces> items_;
  std::atomic<uint64_t> pushed_ = 0;
  std::atomic<uint64_t> done_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace tutti
