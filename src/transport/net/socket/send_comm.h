#pragma once

// The sending end of a socket connection; see frame.h for what it writes.

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
  // Helper threads touch the requests until the channel is gone.
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
    int used = 0;              // So many data sockets carry it.
    size_t control_bytes = 0;  // the frame, and the chunk unless data sockets carry it
    size_t written = 0;        // So many of control_bytes are written.
    bool held = false;         // the caller's memory is needed until the receiver has the message
    std::atomic<uint32_t> pieces_left = 0;
  };

  // Messages that the receiver may not have yet, and those under way. With tags the receiver may
  // lack all messages of a window of groups.
  static constexpr size_t kKeptMessages = kNetWindow + kCreditMessages;
  static constexpr size_t kKeptWithTags = kNetWindow * kMaxNetGroup;
  // The copies among them have at most so many bytes: those within the window, those on credit, and
  // the one with which the credit ended.
  static constexpr size_t kKeptBytes = kNetWindow * kKeepBytes + kCreditBytes + kKeepBytes;
  static constexpr size_t kKeptBytesWithTags = kKeptWithTags * kKeepBytes;

  // An idle connection is looked at once in so many times: each look is a system call.
  static constexpr uint32_t kLookAfter = 16;

  Request& At(uint64_t chunk) { return requests_[chunk % requests_.size()]; }
  // A granted group with tags: those of its buffers that no message is for yet.
  struct Group {
    size_t left = 0;
    GroupTags tags = {};
  };

  // Hands a message to the data sockets, where it is for them.
  void PushPieces(Request& request);
  // Keeps what a resumed connection may have to repeat.
  Status Keep(Request& request, const NetSend& message);
  Result<bool> WriteControl();
  // Returns whether a message with this tag may be sent now.
  Result<bool> Granted(uint32_t tag);
  bool TakeTag(uint32_t tag);
  // Returns whether a request only waits for the receiver to say that it has the message.
  bool AwaitsAcknowledgement() const { return in_flight_ > 0 && acknowledged_ < held_until_; }
  Result<bool> ReadGrants();
  // Takes notice that the stream has ended. Returns whether that says of messages which are held
  // that the receiver has them.
  bool TakeEnd();
  Result<size_t> TakeStagedGrants();
  Status TakeGrant(const Frame& frame);
  Status TakeAcknowledgement(uint64_t has);
  Status TakeResume(const Frame& frame);
  Status TakeGroup(const Frame& frame, std::span<const std::byte, kGroupTagsBytes> tags);
  // Returns whether a message without a tag may be sent: it has been granted, or there is credit
  // for it.
  bool HasRoom() const {
    return begun_ < granted_ ||
           (begun_ - granted_ < kCreditMessages && bytes_on_credit_ < kCreditBytes);
  }
  // Returns whether nothing more may be sent before grants come.
  bool NeedsGrants() const { return tagged_ ? groups_granted_ == groups_filled_ : !HasRoom(); }
  // Returns whether it is time to look for grants, so that a later message need not wait for them.
  bool WantsGrants() const;

  // The last messages, some of them perhaps under way: those that the receiver may lack. Made by
  // the first, which says whether there are tags.
  std::vector<Request> requests_;
  std::optional<KeptMessages> kept_;  // made with requests_, on a connection that can be resumed
  size_t write_bytes_;                // One system call writes at most so much.
  size_t in_flight_ = 0;
  uint32_t idle_looks_ = 0;  // calls of Progress with nothing left to write
  // Messages counted over the connection's life: written_ <= begun_, and without tags also
  // begun_ <= granted_ + kCreditMessages.
  uint64_t written_ = 0;  // wholly on the control socket
  uint64_t begun_ = 0;
  uint64_t granted_ = kNetWindow;
  size_t bytes_on_credit_ = 0;  // The messages [granted_, begun_) have so many.
  // On a connection that can be resumed: how many the receiver is known to have.
  uint64_t acknowledged_ = 0;
  uint64_t held_until_ = 0;  // the last message that is held is one before
  // New sockets are there, and the receiver has not said where to go on.
  bool awaiting_resume_ = false;
  // With tags: the groups that are granted and not filled, in order.
  bool tagged_ = false;
  std::array<Group, kNetWindow> groups_;
  uint64_t groups_granted_ = 0;
  uint64_t groups_filled_ = 0;
  uint64_t groups_repeated_ = 0;  // a resumed connection may grant those before once more
  // Grants, the last one perhaps in part.
  std::array<std::byte, kNetWindow*(kFrameBytes + kGroupTagsBytes)> staging_;
  size_t staged_ = 0;
};

}  // namespace tutti
