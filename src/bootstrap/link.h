#pragma once

// Link: a connection between two endpoints, in a stage of this drawing:
//
//   connecting ──connected──→ handshake ──both proved──→ open
//   open ──the endpoint closes──→ closing ──end of stream──→ closed
//
//   connecting, handshake, open, closing ──broken──→ closed
//
// A plain record. Guarded by its Endpoint's mutex; opened by any thread, closed on the loop's
// thread only.

#include <cstdint>
#include <deque>
#include <optional>

#include "base/unique_fd.h"
#include "bootstrap/auth.h"
#include "bootstrap/frame.h"
#include "bootstrap/frame_numbers.h"
#include "sys/event_loop.h"
#include "sys/silence.h"

namespace tutti {

struct Link {
  enum class Stage { kConnecting, kHandshake, kOpen, kClosing, kClosed };

  Link(int peer_in, Stage stage_in) : peer(peer_in), stage(stage_in) {}

  const int peer;  // rank of the endpoint at the other end
  Stage stage;
  UniqueFd connecting;  // the socket until both ends have proved the key
  SealedSocket socket;  // the socket afterwards
  // Returns the descriptor of the socket; -1 without one.
  int fd() const { return socket.valid() ? socket.fd() : connecting.get(); }
  uint32_t interest = 0;  // the epoll events asked for
  std::optional<Handshake> handshake;
  int attempts = 0;
  EventLoop::TimerId timer = 0;  // ends the attempt to connect, or starts the next

  int64_t opened_ns = 0;
  FrameReader reader;
  FramePtr sending;  // `sent` bytes of this frame have left; null: no frame is under way
  size_t sent = 0;
  std::deque<FramePtr> out;  // frames of this link alone, which have no number
  bool end_queued = false;   // kEnd has been sent, or is `sending`
  bool peer_said_end = false;
  SilenceMeter silence;
};

}  // namespace tutti
