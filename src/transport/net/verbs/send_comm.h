#pragma once

// The sending end of a connection over verbs; verbs_net.h has the protocol.

#include <array>
#include <bitset>
#include <deque>
#include <memory>
#include <vector>

#include "transport/net/channel_comm.h"
#include "transport/net/net.h"
#include "transport/net/verbs/channel.h"
#include "transport/net/verbs/table.h"

namespace tutti {

class VerbsSendComm final : public ChannelComm<NetSendComm, VerbsChannel> {
 public:
  // Makes queue pairs on the ports, and offers them over `control`, an authenticated socket. The
  // peer's device has `remote_ports` own ports. Returns before the peer has answered.
  static Result<std::unique_ptr<NetSendComm>> Create(const PortSet& ports, size_t remote_ports,
                                                     SealedSocket control, std::string peer);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return channel_->Register(region);
  }
  Result<NetRequest*> Isend(const NetSend& message) override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  // Over iWARP a completion says only that TCP has the data. After a call of Drained there,
  // Progress reads a word of the peer's memory over each queue pair. The answer proves that all
  // earlier data has arrived.
  bool Drained() const override;
  void LookClosely() override { channel_->LookClosely(); }
  NetCare Care() const override { return channel_->Care(); }

 private:
  struct Request : NetRequest {
    bool taken = false;
    int pending = 0;  // completions that have not come
    // The fields below are kept for a repetition over renewed queue pairs.
    NetSend message;
    GrantEntry grant;
    uint64_t number = 0;  // Counts the messages over the connection's life.
    uint64_t group = 0;
    uint32_t group_size = 0;
    bool ends_group = false;
  };

  // Neighbouring queue pairs, over which a message goes.
  struct Stripe {
    size_t first = 0;
    size_t count = 1;
  };

  VerbsSendComm(std::unique_ptr<VerbsChannel> channel, uint64_t requests, size_t row);

  const GrantSlot& Granted(uint64_t group) const;
  // Returns the source of writes into the receiver's table. The slot is used again kTableSlots
  // groups later.
  RecordSlot& Records(uint64_t group) const;
  bool LoadGroup();
  bool IsGroup(const GrantSlot& slot) const;
  int FindTag(uint32_t tag) const;
  Request* TakeRequest();
  // Returns a group's own queue pair, by turns. The end of the group goes over the own queue pair.
  size_t OwnPair(uint64_t group) const { return group % channel_->num_queue_pairs(); }
  Stripe StripeOf(const Request& request) const;
  bool NeedsRecords(const Request& request) const;
  // Stages all requests of a message.
  Status Post(Request& request);
  Status PostMessage(Request& request);
  void PostEnd(Request& request);
  void PostSideEnds(Request& request);
  // Stages, in place of an immediate value, the send that announces `request` on a queue pair.
  void PostNotice(size_t pair, Request& request, const Notice& notice);
  Status PostHelloReceives();
  // Says that this end is ready once the queue pairs can be used. REQUIRES: the answer has come.
  Status OpenIfJoined();
  // Make lost queue pairs again, in two steps.
  Status OfferAgain();
  Status TakeAnswerAgain(const ControlMessage& message);
  struct Piece {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint32_t key = 0;
    NetMemoryKind kind = NetMemoryKind::kHost;
  };
  // Stages work of a request. With `completes` the request waits for the completion of the work. A
  // completion stands for all earlier work on its queue pair.
  void StagePiece(size_t pair, ibv_send_wr& work, Request& request, bool completes,
                  const Piece& piece);
  // Posts all staged work.
  Status Flush();
  // Begins to find out whether the peer's host has all data that was sent (Drained).
  Status ProveArrival();
  // Takes notice that work `number` on a queue pair has completed, with all earlier work.
  void Complete(size_t pair, uint64_t number);
  Result<bool> TakeCompletions();
  Status TakeControl(const ControlMessage& message);

  const size_t row_;  // the queue pairs of a row (stripes.h)
  std::vector<Request> requests_;
  std::vector<uint32_t> free_;  // indices of requests_ that are not taken
  size_t in_flight_ = 0;        // requests whose completions have not all come
  uint64_t begun_ = 0;          // messages, over the connection's life
  size_t hellos_ = 0;           // iWARP: queue pairs over which the greeting has come
  // iWARP: the number of messages that the peer's host certainly has.
  uint64_t proven_ = 0;
  // The next value of proven_, once the reads of ProveArrival have all been answered.
  uint64_t proving_ = 0;
  size_t proofs_ = 0;  // reads that have not been answered
  mutable bool proof_wanted_ = false;

  // The group that is being filled. grants_ and group_size_ are known once the grants have come.
  uint64_t group_ = 1;
  uint32_t group_size_ = 0;  // 0: The grants have not come.
  uint32_t matched_ = 0;     // a bit for each buffer that has its message
  GrantSlot grants_ = {};
  // The uncompleted work of a queue pair, in order. The work at index i has number first + i.
  struct UnderWay {
    uint64_t first = 1;
    std::deque<Request*> requests;
  };
  std::vector<UnderWay> under_way_;
  std::bitset<kMaxQueuePairs> staged_;  // queue pairs with staged work

  // The group whose messages are being posted, and the further queue pairs, besides the group's
  // own, over which pieces of the group have gone.
  uint64_t posting_ = 0;
  std::bitset<kMaxQueuePairs> beside_;
  bool starved_ = false;     // the last message that was to be sent found no grants
  uint64_t wake_asked_ = 0;  // the group for which the receiver was asked to wake this end
  uint64_t woken_ = 0;       // the last group that the receiver has reported as granted
};

}  // namespace tutti
