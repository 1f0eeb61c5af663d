#pragma once

// Frames: the messages between two endpoints whose connection is authenticated.
//
//   0  magic u16 0x5474   2  type u8   3  zero u8   4  tag u32   8  communicator u64   16  size u32
//   20  number u32   24  payload[size]
//
// The frames of communicators are numbered from 0 in each direction between two endpoints, over all
// connections of the two (frame_numbers.h). The number of every other frame is 0.
//
// Integers are little-endian. A frame that breaks a rule breaks its connection: the other end
// belongs to this job, hence has a defect, and the rest of the stream cannot be trusted.

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "bootstrap/wire.h"

namespace tutti {

enum class LinkFrameType : uint8_t {
  kMessage = 1,     // Bootstrap::Send
  kCollective = 2,  // a part of an exchange; the tag counts the exchanges of the communicator
  kControl = 3,     // Bootstrap::SendControl
  kGoodbye = 4,     // the sender destroyed this communicator
  // A rank cannot go on making this communicator: rank u32, code u32, sentence. Passed on.
  kGivingUp = 5,
  kEnd = 6,     // the sender closes this connection, and has sent everything
  kLosses = 7,  // facts of the agreement on lost ranks (loss_agreement.h), of no communicator
  // The sender has all numbered frames before number `tag`.
  kReceived = 8,
  // The sender, which is making its first communicator, is held up by rank `tag`.
  kHeldUp = 9,
};
inline bool IsNumbered(LinkFrameType type) { return type <= LinkFrameType::kGivingUp; }

inline constexpr size_t kFrameHeaderBytes = 24;
// The bootstrap carries addresses and descriptions, kilobytes; half an all-gather of a large job is
// the most. With a larger limit a single frame of a defective peer could take more memory.
inline constexpr uint32_t kMaxFrameBytes = 64u << 20;

struct FrameHeader {
  LinkFrameType type = LinkFrameType::kMessage;
  uint32_t tag = 0;
  uint64_t communicator = 0;
  uint32_t size = 0;
  uint32_t number = 0;
};

// Returns header and payload in one buffer. REQUIRES: payload.size() <= kMaxFrameBytes.
Bytes EncodeFrame(const FrameHeader& header, std::span<const std::byte> payload);
// Writes the number of an encoded frame.
void SetFrameNumber(Bytes& frame, uint32_t number);
Result<FrameHeader> ParseFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Cuts a stream of bytes into frames.
class FrameReader {
 public:
  using Sink = std::function<Status(const FrameHeader& header, Bytes payload)>;

  // Hands every frame completed by `data` to `sink`. A failure (of the format, or of the sink) is
  // final.
  Status Feed(std::span<const std::byte> data, const Sink& sink);

 private:
  std::array<std::byte, kFrameHeaderBytes> header_bytes_ = {};
  size_t header_got_ = 0;
  FrameHeader header_;
  Bytes payload_;  // grows as bytes come, since a size alone must take no memory
};

}  // namespace tutti
