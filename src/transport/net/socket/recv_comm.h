#pragma once

// The receiving end of a socket connection. frame.h describes the frames that it reads.

#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "transport/net/channel_comm.h"
#include "transport/net/net.h"
#include "transport/net/socket/channel.h"
#include "transport/net/socket/frame.h"

namespace tutti {

class SocketRecvComm final : public ChannelComm<NetRecvComm, SocketChannel> {
 public:
  explicit SocketRecvComm(std::unique_ptr<SocketChannel> channel);
  ~SocketRecvComm() override;

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return channel_->Register(region);
  }
  Result<NetRequest*> Irecv(std::span<const NetReceive> group) override;
  Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) override;
  void ExpectMore(bool more) override { tell_from_ = more ? kHeldAtMost : kHeldAtEnd; }
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  NetCare Care() const override { return HasToTell() ? NetCare::kSoon : channel_->Care(); }

 private:
  struct Request : NetRequest {
    bool in_flight = false;  // posted, and not yet tested as done
    uint64_t group = 0;
    size_t size = 0;      // the number of buffers
    size_t taken = 0;     // the number of buffers with a message, wholly or in part
    uint32_t in_use = 0;  // bit i: buffer i has a message
    std::array<NetReceive, kMaxNetGroup> buffers = {};
    std::atomic<uint32_t> pieces_left = 0;
  };
  // The size of the staging area. Small frames and chunks are read through the staging area, many
  // in one system call. The rest of a long chunk goes straight to its buffer.
  static constexpr size_t kStagingBytes = 8192;
  // The bounds of a read-ahead. After two long messages of equal length, one system call reads the
  // next frame and up to kMostAhead bytes of its message, directly into the next buffer. A buffer
  // may be written to beyond its message until the message has come.
  static constexpr size_t kAheadFrom = 4096;
  static constexpr size_t kMostAhead = 64 * 1024;

  // The number of messages that a busy receiver acknowledges at once. An acknowledgement costs
  // either end a system call, and the sender has the other half of its window meanwhile.
  static constexpr uint64_t kHeldAtMost = kNetWindow / 2;
  // The number of messages that the receiver acknowledges at once at the end of an operation, which
  // lets a sender of several messages go on without a wait. A single message is acknowledged by the
  // next call of Progress, after the caller has received the message.
  static constexpr uint64_t kHeldAtEnd = 2;

  Request& At(uint64_t group) { return requests_[group % kNetWindow]; }
  Status CheckGroup(std::span<const NetReceive> group);
  Result<bool> Receive();
  Status TakeStaged();
  Status TakeFrame();
  Result<size_t> ChooseBuffer(const Frame& frame);
  void CountMessage();
  void CountArrived();
  std::byte* PayloadPlace();
  Result<bool> ReadMore();
  size_t BytesAhead();
  Result<bool> ReadAhead(size_t ahead);
  Result<bool> Read(std::span<const iovec> places, size_t& bytes);
  // Returns whether an acknowledgement or a grant for the sender has not been sent.
  bool HasToTell() const { return held_ > 0 || grants_from_ < grants_to_; }
  Result<bool> TellWhatCame();
  Result<bool> SendGrants(bool busy);
  void EncodeGrants(bool busy);
  bool GrantsDue(bool busy) const;
  void EncodeCount();
  void EncodeGroups();
  void Encode(const Frame& frame);
  void BeginAgain();

  std::array<Request, kNetWindow> requests_;
  // Decided by the first group: groups of one buffer without a tag are granted by count.
  bool tagged_ = false;
  // Groups counted over the connection's life: received_ <= posted_.
  uint64_t received_ = 0;  // wholly in their buffers, or handed to the data sockets
  uint64_t posted_ = 0;
  uint64_t granted_ = kNetWindow;
  size_t bytes_since_grant_ = 0;  // bytes of the messages since the last grant
  uint64_t messages_ = 0;         // counts messages as received_ counts groups
  // The first arrived_ groups, with arrived_messages_ messages, are wholly in their buffers. A
  // resumed connection goes on behind them.
  uint64_t arrived_ = 0;
  uint64_t arrived_messages_ = 0;

  size_t payload_left_ = 0;  // the rest of message messages_, after its frame has come
  size_t buffer_ = 0;        // the number of its buffer in group received_
  bool in_payload_ = false;
  size_t last_bytes_ = 0;         // the length of the last message on the control socket
  size_t before_last_bytes_ = 0;  // the length of the message before the last
  bool was_reset_ = false;        // the connection was reset while grants were sent
  // arrived messages that the sender holds until their acknowledgement
  uint64_t held_ = 0;
  uint64_t tell_from_ = 1;  // the number of held messages that are acknowledged at once
  size_t staged_from_ = 0;  // staging_[staged_from_, staged_to_) has been read but not used
  size_t staged_to_ = 0;
  // grants_[grants_from_, grants_to_) is still to be written.
  std::array<std::byte, 2 * kFrameBytes + kNetWindow*(kFrameBytes + kGroupTagsBytes)> grants_;
  size_t grants_from_ = 0;
  size_t grants_to_ = 0;
  // The staging area. The area is longer than kStagingBytes after a read-ahead took in bytes that
  // belong behind a short message.
  std::vector<std::byte> staging_ = std::vector<std::byte>(kStagingBytes);
};

}  // namespace tutti
