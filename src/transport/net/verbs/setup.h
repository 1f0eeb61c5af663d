#pragma once

// What the two ends of a connection tell each other over its control socket.
//
//   sending end                                  receiving end
//   hello (socket/listener.h: the token) ──────▶ Accept takes the socket
//   offer: VerbsEnd, split or not ─────────────▶ makes as many queue pairs, joins them
//   joins its queue pairs ◀───────────────────── answer: VerbsEnd
//   ready ─────────────────────────────────────▶ grants may be written from now on
//
//   wake: I sleep until group g is granted ────▶
//         ◀───────────────────────────────────── woken: group g is granted
//   either end: refusal, a sentence; the connection is broken then
//
// A message is a header of 8 bytes and a payload (integers little-endian):
//     0  magic   u16   0x7656
//     2  type    u8
//     3  zero    u8
//     4  length  u32   of the payload, at most kMaxControlPayload
//
// Threads: one at a time, except Shutdown.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/wire.h"
#include "sys/tcp.h"

namespace tutti {

inline constexpr uint32_t kVerbsNetVersion = 1;
inline constexpr size_t kMaxQueuePairs = 128;
inline constexpr size_t kMaxControlPayload = 1024;

// Where an end's queue pairs and its table are.
struct VerbsEnd {
  bool ethernet = false;
  uint8_t mtu = 1;  // the code of the standard, 1 to 5
  uint16_t lid = 0;
  std::array<uint8_t, 16> gid = {};
  uint32_t first_packet = 0;  // 24 bits
  bool split = false;         // the sending end's word: each message goes over all queue pairs
  uint64_t table_address = 0;
  uint32_t table_key = 0;
  std::vector<uint32_t> queue_pairs;
  std::string name;  // "mlx5_0 (10.0.0.1)"

  Bytes Encode() const;
  // Returns RemoteError when the bytes are none, or say what cannot be.
  static Result<VerbsEnd> Decode(std::span<const std::byte> payload);
};

enum class ControlType : uint8_t {
  kOffer = 1,
  kAnswer = 2,
  kReady = 3,
  kWake = 4,     // payload: group u64
  kWoken = 5,    // payload: group u64
  kRefusal = 6,  // payload: a sentence
};

struct ControlMessage {
  ControlType type = ControlType::kReady;
  Bytes payload;
};

// The control socket: connected, authenticated, non-blocking.
class ControlSocket {
 public:
  ControlSocket() = default;
  explicit ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // Has the kernel ask an idle peer whether it is still there: one whose host has vanished breaks
  // the connection after about a minute.
  Status WatchPeer();
  // Queues a message and writes what the socket takes. SystemError when too much is queued: the
  // other end does not read.
  Status Send(ControlType type, std::span<const std::byte> payload);
  // Tells the other end why the connection is given up, as far as the socket takes it.
  void Refuse(const Status& why);
  // Writes what is queued. Returns whether all of it is written.
  Result<bool> Flush();
  // Stores the next message; false when none has come yet. RemoteError when the other end has
  // closed the connection or sends nonsense.
  Result<bool> Receive(ControlMessage& message);
  // Returns whether Receive has something to say without the socket: a message that came together
  // with an earlier one. Nobody who sleeps on the socket would be woken for it.
  bool HasStaged() const;
  // Waits for the next message. Timeout when none came within `limits`: the wait may be repeated.
  Result<ControlMessage> Await(const WaitLimits& limits);
  // Breaks the connection. Any thread.
  void Shutdown();

 private:
  Result<bool> TakeStaged(ControlMessage& message);

  UniqueFd fd_;
  Bytes out_;
  size_t sent_ = 0;
  Bytes in_;
};

}  // namespace tutti
