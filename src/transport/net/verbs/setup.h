#pragma once

// The messages of the control socket, by which the two ends of a connection set the connection up
// and mend it.
//
//   sending end                                  receiving end
//   hello (socket/listener.h: the token) ──────▶ Accept takes the socket
//   offer: VerbsEnd ───────────────────────────▶ makes as many queue pairs, joins them
//   joins its queue pairs ◀───────────────────── answer: VerbsEnd
//   [iWARP: awaiting ──────────────────────────▶
//           queue pairs ◀─────────────────────── connects its queue pairs, and sends by each]
//   ready ─────────────────────────────────────▶ grants may be written from now on
//
//   wake: I sleep until group g is granted ────▶
//         ◀───────────────────────────────────── woken: group g is granted
//   either end: refusal, a sentence; the connection is broken afterwards
//
//   either end: lost: my queue pairs failed ───▶ both ends stop theirs (recovery.h)
//   offer again: VerbsEnd ─────────────────────▶ takes completions, renews and joins its own
//   renews its own, joins them ◀──────────────── answer again: ReceivedGroups, VerbsEnd
//   ready ─────────────────────────────────────▶ grants missing groups again
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
#include "bootstrap/sealed_socket.h"
#include "bootstrap/wire.h"
#include "sys/tcp.h"
#include "transport/net/verbs/manager.h"
#include "transport/net/verbs/table.h"

namespace tutti {

inline constexpr uint32_t kVerbsNetVersion = 5;
inline constexpr size_t kMaxQueuePairs = 128;
inline constexpr size_t kMaxControlPayload = 1024;

// Describes the queue pairs and the table of an end.
struct VerbsEnd {
  struct Port {
    uint8_t mtu = 1;  // the code of the standard, 1 to 5
    uint16_t lid = 0;
    std::array<uint8_t, 16> gid = {};
    uint32_t speed_mbps = 0;  // 0: unknown
    uint32_t table_key = 0;   // the key of the port's NIC for the table
  };
  struct Pair {
    uint32_t number = 0;  // 24 bits
    uint8_t port = 0;     // an index into `ports`
  };

  bool ethernet = false;      // RoCE or iWARP; false: an InfiniBand fabric
  bool iwarp = false;         // The connection manager joins the queue pairs.
  bool notices = false;       // Sends announce messages instead of immediate values.
  uint32_t first_packet = 0;  // 24 bits
  uint64_t table_address = 0;
  uint8_t own = 1;          // The first `own` ports are the device's; all later ports are spares.
  std::vector<Port> ports;  // 1 to kMaxPorts
  std::vector<Pair> queue_pairs;
  std::string name;        // "mlx5_0 (10.0.0.1)"
  ManagedAddress managed;  // iWARP: where the sending end awaits the receiver's queue pairs

  std::string_view kind() const { return iwarp ? "iWARP" : ethernet ? "RoCE" : "InfiniBand"; }
  Bytes Encode() const;
  // Returns RemoteError when the bytes are no VerbsEnd, or have impossible values.
  static Result<VerbsEnd> Decode(std::span<const std::byte> payload);
};

// Tells which of the groups in the tables (table.h) have come as a whole.
struct ReceivedGroups {
  static constexpr size_t kSlots = 256;

  uint64_t posted = 0;                           // the last group with receives
  std::array<uint8_t, kSlots / 8> missing = {};  // a bit for each slot whose group has not come

  void Miss(uint64_t group) {
    missing[group % kSlots / 8] =
        static_cast<uint8_t>(missing[group % kSlots / 8] | 1u << group % 8);
  }
  // Returns whether a group has come. All groups that have left the tables have come.
  bool Has(uint64_t group) const {
    if (group > posted) return false;
    const bool in_table = group + kSlots > posted;
    return !in_table || (missing[group % kSlots / 8] >> group % 8 & 1) == 0;
  }
};

// The payload of an answer that joins an existing connection again.
struct AnswerAgain {
  ReceivedGroups groups;
  VerbsEnd end;

  Bytes Encode() const;
  // Returns RemoteError when the bytes are no AnswerAgain.
  static Result<AnswerAgain> Decode(std::span<const std::byte> payload);
};

enum class ControlType : uint8_t {
  kOffer = 1,
  kAnswer = 2,
  kReady = 3,
  kWake = 4,     // payload: group u64
  kWoken = 5,    // payload: group u64
  kRefusal = 6,  // payload: a sentence
  kLost = 7,
  kOfferAgain = 8,   // payload: VerbsEnd
  kAnswerAgain = 9,  // payload: AnswerAgain
  kAwaiting = 10,    // iWARP: the sending end calls Listen and takes queue pairs.
};

struct ControlMessage {
  ControlType type = ControlType::kReady;
  Bytes payload;
};

// The control socket: connected, authenticated, encrypted, non-blocking.
class ControlSocket {
 public:
  ControlSocket() = default;
  explicit ControlSocket(SealedSocket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  // Queues a message, and writes as much as the socket takes. SystemError when too much is queued,
  // because the peer does not read.
  Status Send(ControlType type, std::span<const std::byte> payload);
  // Tells the peer why the connection is given up, as far as the socket takes the sentence.
  void Refuse(const Status& why);
  // Writes queued bytes. Returns whether all of them are written.
  Result<bool> Flush();
  // Stores the next message; false when none has come yet. RemoteError when the peer has closed the
  // connection or sends nonsense.
  Result<bool> Receive(ControlMessage& message);
  // Returns whether Receive has a message without the socket, because the message came together
  // with an earlier message. The socket wakes no sleeper for such a message.
  bool HasStaged() const;
  // Waits for the next message. Timeout when none came within `limits`; the caller may wait again.
  Result<ControlMessage> Await(const WaitLimits& limits);
  // Breaks the connection. Any thread.
  void Shutdown();

 private:
  Result<bool> TakeStaged(ControlMessage& message);

  SealedSocket socket_;
  Bytes out_;
  size_t sent_ = 0;
  Bytes in_;
};

}  // namespace tutti
