#pragma once

// The receiving end of a socket connection; see frame.h for what it reads.

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
    size_t size = 0;      // It has so many buffers.
    size_t taken = 0;     // So many of them have a message, wholly or in part.
    uint32_t in_use = 0;  // bit i: buffer i has
    std::array<NetReceive, kMaxNetGroup> buffers = {};
    std::atomic<uint32_t> pieces_left = 0;
  };
  // Small frames and chunks are read through here, many in one system call; the rest of a long
  // chunk goes straight to its buffer.
  static constexpr size_t kStagingBytes = 8192;
  // Where one long message was as long as the one before, the next frame and this much of the
  // message behind it are read together, the latter into the buffer that is next: a buffer may be
  // written to beyond its message until that has come.
  static constexpr size_t kAheadFrom = 4096;
  static constexpr size_t kMostAhead = 64 * 1024;

  // While the receiver is busy with further messages, it acknowledges so many at once. An
  // acknowledgement costs either end a system call, and a sender has the other half of its window.
  static constexpr uint64_t kHeldAtMost = kNetWindow / 2;
  // At the end of an operation it acknowledges so many at once, and one alone with its next look:
  // whoever waits for that one has it before. An operation of several goes on without a wait.
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
  // Returns whether there is something that the sender is to know, and has not been sent.
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
  size_t bytes_since_grant_ = 0;  // The messages that have come since have so many.
  uint64_t messages_ = 0;         // Counts messages as received_ counts groups.
  // The first arrived_ groups are wholly in their buffers; they have arrived_messages_ messages. A
  // resumed connection goes on from here.
  uint64_t arrived_ = 0;
  uint64_t arrived_messages_ = 0;

  size_t payload_left_ = 0;  // So much is left of message messages_, once its frame has come.
  size_t buffer_ = 0;        // the buffer of group received_ that it goes to
  bool in_payload_ = false;
  size_t last_bytes_ = 0;         // So long was the last message on the control socket, and so long
  size_t before_last_bytes_ = 0;  // was the one before it.
  bool was_reset_ = false;        // It was reset while grants were sent.
  uint64_t held_ = 0;             // Messages have arrived that the sender holds until it knows.
  uint64_t tell_from_ = 1;        // The sender is told at once of so many of them.
  size_t staged_from_ = 0;        // staging_[staged_from_, staged_to_) has been read but not used
  size_t staged_to_ = 0;
  // grants_[grants_from_, grants_to_) is still to be written.
  std::array<std::byte, 2 * kFrameBytes + kNetWindow*(kFrameBytes + kGroupTagsBytes)> grants_;
  size_t grants_from_ = 0;
  size_t grants_to_ = 0;
  // Longer than kStagingBytes where a read-ahead took in more that belongs behind a short message.
  std::vector<std::byte> staging_ = std::vector<std::byte>(kStagingBytes);
};

}  // namespace tutti
