#pragma once

// The frames of a socket connection: 24 bytes that announce a message or grant buffers.
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
//    12  tag      u32   kData, kStriped: the tag of the message's buffer; otherwise 0
//    16  count    u64   kData, kStriped: number of the message, from 0 over the connection's life
//                       kGrant: how many messages the sender may have sent in all
//                       kGroup: number of the group, from 0 over the connection's life
//                       kResume, kHas: how many messages the receiver has, in whole groups
// A kData frame is followed by its message. A kGroup frame is followed by the tags of its buffers:
// kMaxNetGroup u32, of which the first `number` are distinct and not 0, and the rest are 0.
//
// Without tags the receiver grants buffers by count (kGrant). The opening of the connection grants
// the first kNetWindow buffers. Short messages may travel ahead of their grants, on credit
// (kCreditMessages). With tags the receiver grants each group by a kGroup frame, and the sender may
// send nothing before the grant.
//
// On a connection that can be resumed, the receiver acknowledges messages in kGrant frames, and
// with tags in kHas frames. kResume is the first frame on new sockets. The receiver then grants
// unfilled buffers again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/net/net.h"

namespace tutti {

// The credit: how much a sender may send beyond its grants. A sender may send up to kCreditMessages
// messages on credit, and no further message once the messages on credit have kCreditBytes
// together. The messages wait in the sockets until there is a buffer. Without credit every fourth
// short message would need a grant, which costs as much as the message, and a sender would wait for
// its receiver after eight messages. Over a long way grants are late. Receivers grant only after
// half of the credit is used, or three quarters while they are busy; with this credit, a sender of
// 20 messages at a time still need not wait for earlier grants (bench/results/hosts.md, Broadcast
// at 1 ms). The bounds limit the memory of a connection that can be resumed (resume.h). Both ends
// count by the same rule, and the receiver thus knows when the credit is used up.
inline constexpr uint64_t kCreditMessages = 96;
inline constexpr size_t kCreditBytes = 48 * 1024;

inline constexpr size_t kFrameBytes = 24;
inline constexpr size_t kGroupTagsBytes = 4 * kMaxNetGroup;  // the bytes behind a kGroup frame

// The most data sockets of a connection: NCCL's bound for NCCL_SOCKET_NTHREADS ×
// NCCL_NSOCKS_PERTHREAD.
inline constexpr int kMaxDataSockets = 64;

enum class FrameType : uint8_t {
  kData = 1,     // sender → receiver: a message follows
  kStriped = 2,  // sender → receiver: a message comes over the data sockets (stripe.h)
  kGrant = 3,    // receiver → sender
  kGroup = 4,    // receiver → sender: tags follow
  kResume = 5,   // receiver → sender: send on from message `count` (resume.h)
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
// Returns RemoteError, with the reason, for bytes that EncodeFrame cannot have written.
Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in);

// The tags of a group's buffers.
using GroupTags = std::array<uint32_t, kMaxNetGroup>;

void EncodeGroupTags(const GroupTags& tags, std::span<std::byte, kGroupTagsBytes> out);
// Returns RemoteError, with the reason, unless `in` has the tags of a group of `number` buffers.
Result<GroupTags> DecodeGroupTags(std::span<const std::byte, kGroupTagsBytes> in, uint8_t number);

}  // namespace tutti
