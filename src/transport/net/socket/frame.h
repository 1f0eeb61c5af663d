#pragma once

// The frames of a socket connection: 24 bytes that announce a message, or grant buffers.
//
// Format (all integers little-endian):
//     0  magic    u16   0x7554
//     2  type     u8    FrameType
//     3  number   u8    kStriped: how many data sockets carry the message
//                       kGroup: how many buffers the group has; otherwise 0
//     4  op_tag   u32   kData, kStriped: handed to the receiver unchanged; otherwise 0
//     8  bytes    u32   kData, kStriped: length of the message
//                       kGrant: how many of the granted messages have not come yet, on a connection
//                       that can be resumed; otherwise 0
//    12  tag      u32   kData, kStriped: of the buffer that it is for; otherwise 0
//    16  count    u64   kData, kStriped: number of the message, from 0 over the connection's life
//                       kGrant: how many messages the sender may have sent in all
//                       kGroup: number of the group, from 0 over the connection's life
//                       kResume, kHas: how many messages the receiver has, in whole groups
// A kData frame is followed by its message, a kGroup frame by the tags of its buffers, kMaxNetGroup
// u32 of which the first `number` are not 0 and differ, and the others are 0.
//
// Without tags the receiver grants buffers by count (kGrant), the first kNetWindow by opening the
// connection. Short messages may travel ahead of their grants, on credit (kCreditMessages). With
// tags the receiver grants each group by a kGroup frame, and the sender may send nothing before.
//
// On a connection that can be resumed the receiver says what it has: in kGrant frames, and with
// tags in kHas frames. kResume is the first frame on new sockets; the receiver then grants again
// what was not filled.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/net/net.h"

namespace tutti {

// A sender may send this beyond what is granted to it: so many messages, and no further one once
// they have so many bytes together. They wait in the sockets until there is a buffer. Without this
// every fourth short message would need a grant, which costs as much as the message, and a sender
// would wait for its receiver after eight of them. Over a long way grants are late: with this much
// a sender that sends 20 at a time need not wait for the grants of those before, though they come
// only once half of the credit is used, and three quarters where the receiver is busy
// (bench/results/hosts.md, Broadcast at 1 ms). The bounds limit what a connection that can be
// resumed keeps (resume.h). Both ends count by the same rule, so that the receiver knows when the
// credit is used up.
inline constexpr uint64_t kCreditMessages = 96;
inline constexpr size_t kCreditBytes = 48 * 1024;

inline constexpr size_t kFrameBytes = 24;
inline constexpr size_t kGroupTagsBytes = 4 * kMaxNetGroup;  // So many follow a kGroup frame.

// A connection may have so many data sockets: NCCL's bound for NCCL_SOCKET_NTHREADS ×
// NCCL_NSOCKS_PERTHREAD.
inline constexpr int kMaxDataSockets = 64;

enum class FrameType : uint8_t {
  kData = 1,     // sender → receiver: a message follows
  kStriped = 2,  // sender → receiver: a message comes over the data sockets (stripe.h)
  kGrant = 3,    // receiver → sender
  kGroup = 4,    // receiver → sender: tags follow
  kResume = 5,   // receiver → sender: send on from here (resume.h)
  kHas = 6,      // receiver → sender
};

struct Frame {
  FrameType type = FrameType::kData;
  uint8_t number = 0;
  uint32_t op_tag = 0;
  uint32_t bytes = 0;
  uint64_t count = 0;
  uint32_t tag = 0;

  bool operator==(const Frame&) const = default;
};

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out);
// Returns RemoteError, with a sentence, for bytes that EncodeFrame cannot have written.
Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in);

// The tags of a group's buffers.
using GroupTags = std::array<uint32_t, kMaxNetGroup>;

void EncodeGroupTags(const GroupTags& tags, std::span<std::byte, kGroupTagsBytes> out);
// Returns RemoteError, with a sentence, unless they are the tags of a group of `number` buffers.
Result<GroupTags> DecodeGroupTags(std::span<const std::byte, kGroupTagsBytes> in, uint8_t number);

}  // namespace tutti
