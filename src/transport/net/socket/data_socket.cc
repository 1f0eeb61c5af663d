#include "transport/net/socket/data_socket.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

namespace tutti {

void SocketDoorbell::Ring() {
  rung_.store(true, std::memory_order_release);
  eventfd_write(event_.get(), 1);
}

// PieceDone counts first and reads armed_ afterwards, and Arm does the reverse. Hence one of the
// two sees the other (both orders are sequentially consistent).
void SocketDoorbell::PieceDone() {
  completed_.fetch_add(1, std::memory_order_seq_cst);
  if (armed_.load(std::memory_order_seq_cst) && armed_.exchange(false)) Ring();
}

// Only the first error is kept; the later ones follow from it. PieceDone wakes the driver.
void SocketDoorbell::Fail(int error) {
  int none = kNoError;
  error_.compare_exchange_strong(none, error, std::memory_order_seq_cst);
  PieceDone();
}

void SocketDoorbell::Arm(uint64_t seen) {
  armed_.store(true, std::memory_order_seq_cst);
  // A piece that was done just before the store did not see armed_.
  if (completed_.load(std::memory_order_seq_cst) != seen && armed_.exchange(false)) Ring();
}

// Takes back a ring that has been heard, since the descriptor would otherwise wake the next poll.
void SocketDoorbell::Silence() {
  if (!rung_.exchange(false, std::memory_order_acq_rel)) return;
  eventfd_t count;
  eventfd_read(event_.get(), &count);
}

void DataSocket::Push(std::byte* data, size_t bytes, std::atomic<uint32_t>& left) {
  const uint64_t number = pushed_.load(std::memory_order_relaxed);
  items_[number % kPieces] = {data, bytes, &left};
  pushed_.store(number + 1, std::memory_order_release);
}

// Moves pieces in order until the socket would block, fails, or has moved kStepBytes.
bool DataSocket::Step() {
  size_t moved = 0;
  while (moved < kStepBytes && HasWork()) {
    const uint64_t number = done_.load(std::memory_order_relaxed);
    Item& item = items_[number % kPieces];
    if (item.bytes > 0) {
      const size_t want = std::min(item.bytes, kStepBytes);
      const iovec piece = {item.data, want};
      const ssize_t got = direction_ == SocketDirection::kSend ? stream_.Write({&piece, 1})
                                                               : stream_.Read({&piece, 1});
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0) {
        failed_.store(true, std::memory_order_relaxed);
        doorbell_.Fail(got == 0 ? 0 : errno);
        break;
      }
      item.data += got;
      item.bytes -= static_cast<size_t>(got);
      moved += static_cast<size_t>(got);
      if (item.bytes > 0) continue;
    }
    // The item is free before the chunk counts as done, since the next Push may follow at once.
    std::atomic<uint32_t>& left = *item.left;
    done_.store(number + 1, std::memory_order_release);
    left.fetch_sub(1, std::memory_order_acq_rel);
    doorbell_.PieceDone();
    if (moved == 0) moved = 1;  // an empty piece is progress too
  }
  return moved > 0;
}

}  // namespace tutti
