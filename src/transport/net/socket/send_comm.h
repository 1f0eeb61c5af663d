#pragma once

// The sending end of a socket connection. frame.h describes the frames that it writes.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "transport/net/channel_comm.h"
#include "transport/net/net.h"
#include "transport/net/socket/channel.h"
#include "transport/net/socket/frame.h"
#include "transport/net/socket/kept_messages.h"

namespace tutti {

class SocketSendComm final : public ChannelComm<NetSendComm, SocketChannel> {
 public:
  explicit SocketSendComm(std::unique_ptr<SocketChannel> channel);
  // Destroys the channel first, since helper threads touch the requests until the channel is gone.
  ~SocketSendComm() override { channel_.reset(); }

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return channel_->Register(region);
  }
  Result<NetRequest*> Isend(const NetSend& message) override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  void LookClosely() override { idle_looks_ = kLookAfter - 1; }
  NetCare Care() const override { return awaiting_resume_ ? NetCare::kSoon : channel_->Care(); }
  bool Drained() const override { return Undelivered() == 0; }
  size_t Undelivered() const override {
    const bool all_written = in_flight_ == 0 && written_ == begun_ && !awaiting_resume_;
    return channel_->Undelivered() + (all_written ? 0 : 1);
  }

 private:
  struct Request : NetRequest {
    bool in_flight = false;  // begun, and not yet tested as done
    uint64_t chunk = 0;
    size_t bytes = 0;
    std::array<std::byte, kFrameBytes> frame;
    const std::byte* data = nullptr;
    int used = 0;              // the number of data sockets that carry the message
    size_t control_bytes = 0;  // the frame, and the chunk unless data sockets carry it
    size_t written = 0;        // the written bytes of control_bytes
    bool held = false;         // the caller's memory is needed until the receiver has the message
    std::atomic<uint32_t> pieces_left = 0;
  };

  // The messages that the receiver may not have yet, including those under way. With tags the
  // receiver may lack all messages of a window of groups.
  static constexpr size_t kKeptMessages = kNetWindow + kCreditMessages;
  static constexpr size_t kKeptWithTags = kNetWindow * kMaxNetGroup;
  // The most bytes of copies among these messages: the messages within the window, the messages on
  // credit, and the message that ended the credit.
  static constexpr size_t kKeptBytes = kNetWindow * kKeepBytes + kCreditBytes + kKeepBytes;
  static constexpr size_t kKeptBytesWithTags = kKeptWithTags * kKeepBytes;

  // An idle connection is read once in kLookAfter calls, since each read is a system call.
  static constexpr uint32_t kLookAfter = 16;

  Request& At(uint64_t chunk) { return requests_[chunk % requests_.size()]; }
  // A granted group with tags: the buffers that still lack a message.
  struct Group {
    size_t left = 0;
    GroupTags tags = {};
  };

  // Gives the pieces of a message to the data sockets, if data sockets carry the message.
  void PushPieces(Request& request);
  // Keeps the data that a resumed connection may have to repeat.
  Status Keep(Request& request, const NetSend& message);
  Result<bool> WriteControl();
  // Returns whether a message with this tag may be sent now.
  Result<bool> Granted(uint32_t tag);
  bool TakeTag(uint32_t tag);
  // Returns whether a request only waits for the receiver's acknowledgement.
  bool AwaitsAcknowledgement() const { return in_flight_ > 0 && acknowledged_ < held_until_; }
  Result<bool> ReadGrants();
  // Handles the end of the stream. Returns whether it proves that the receiver has all held
  // messages.
  bool TakeEnd();
  Result<size_t> TakeStagedGrants();
  Status TakeGrant(const Frame& frame);
  Status TakeAcknowledgement(uint64_t has);
  Status TakeResume(const Frame& frame);
  Status TakeGroup(const Frame& frame, std::span<const std::byte, kGroupTagsBytes> tags);
  // Returns whether a message without a tag may be sent, by a grant or on credit.
  bool HasRoom() const {
    return begun_ < granted_ ||
           (begun_ - granted_ < kCreditMessages && bytes_on_credit_ < kCreditBytes);
  }
  // Returns whether the next message must wait for grants.
  bool NeedsGrants() const { return tagged_ ? groups_granted_ == groups_filled_ : !HasRoom(); }
  // Returns whether to read grants now, in order that a later message need not wait for them.
  bool WantsGrants() const;

  // The last messages, which the receiver may lack; some may be under way. The vector is made by
  // the first message, which decides whether there are tags.
  std::vector<Request> requests_;
  std::optional<KeptMessages> kept_;  // made with requests_, on a connection that can be resumed
  size_t write_bytes_;                // the most bytes of one system call
  size_t in_flight_ = 0;
  uint32_t idle_looks_ = 0;  // calls of Progress with nothing left to write
  // Messages counted over the connection's life: written_ <= begun_, and without tags also begun_
  // <= granted_ + kCreditMessages.
  uint64_t written_ = 0;  // wholly on the control socket
  uint64_t begun_ = 0;
  uint64_t granted_ = kNetWindow;
  size_t bytes_on_credit_ = 0;  // the bytes of the messages [granted_, begun_)
  // On a connection that can be resumed: the messages that the receiver has acknowledged.
  uint64_t acknowledged_ = 0;
  uint64_t held_until_ = 0;  // the last held message is before this number
  // New sockets have come, and the receiver has not yet said where to go on.
  bool awaiting_resume_ = false;
  // With tags: the groups that are granted and not filled, in order.
  bool tagged_ = false;
  std::array<Group, kNetWindow> groups_;
  uint64_t groups_granted_ = 0;
  uint64_t groups_filled_ = 0;
  uint64_t groups_repeated_ = 0;  // a resumed connection may grant earlier groups once more
  // Grants, the last one perhaps in part.
  std::array<std::byte, kNetWindow*(kFrameBytes + kGroupTagsBytes)> staging_;
  size_t staged_ = 0;
};

}  // namespace tutti
