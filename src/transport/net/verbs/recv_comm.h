#pragma once

// The receiving end of a connection over verbs; verbs_net.h has the protocol.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "transport/net/channel_comm.h"
#include "transport/net/net.h"
#include "transport/net/verbs/channel.h"
#include "transport/net/verbs/table.h"

namespace tutti {

class VerbsRecvComm final : public ChannelComm<NetRecvComm, VerbsChannel> {
 public:
  // Answers or refuses `offer`, which has come over `control`, an authenticated socket.
  static Result<std::unique_ptr<NetRecvComm>> Accept(const PortSet& ports, ControlSocket control,
                                                     const ControlMessage& offer, std::string peer);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  Result<NetRequest*> Irecv(std::span<const NetReceive> group) override;
  Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  void LookClosely() override { channel_->LookClosely(); }
  NetCare Care() const override { return channel_->Care(); }

 private:
  struct Request : NetRequest {
    uint64_t group = 0;  // 0: free
    uint32_t count = 0;  // buffers
    std::array<size_t, kMaxNetGroup> capacities = {};
    size_t pending =
        0;  // Receives: 1 until all has come. Flushes: reads that have not been answered.
    // The ends that have come: on the group's own queue pair, with the immediate value and the
    // length of the last write, and on further queue pairs.
    bool ended = false;
    uint32_t immediate = 0;
    size_t bytes = 0;
    size_t side_ends = 0;
    NetReceive flushed;  // the buffer of a flush
  };

  // Marks the last receive of a queue pair that was stopped.
  static constexpr uint64_t kMarkerBit = uint64_t{1} << 61;

  explicit VerbsRecvComm(std::unique_ptr<VerbsChannel> channel);
  static void Expect(Request& request);
  Status PostReceives();
  // Make lost queue pairs again: keep the sender's offer; post markers and wait for them; answer
  // the offer when both have come.
  Status TakeOfferAgain(const ControlMessage& message);
  Status GoOnLost();
  Status AnswerOffer();
  void StageGrants(uint64_t group);
  Status GrantWhatIsPosted();
  Result<bool> TakeCompletions();
  Status TakeCompletion(const ibv_wc& completion);
  Status TakeReceive(const ibv_wc& completion, size_t pair, size_t slot);
  // Take the end of a group's pieces on a further queue pair, the end on the group's own queue
  // pair, and a notice of either end.
  Status TakeSideEnd(uint32_t group);
  Status TakeEnd(Request& request, uint32_t immediate, size_t bytes);
  Status TakeNotice(const Notice& notice, size_t pair);
  Status PostReceive(size_t pair);
  const Notice* Notices(size_t pair) const;
  // Sends a greeting over each queue pair of iWARP once they are joined.
  Status SayHello();
  // Returns the group that ends next on its own queue pair `pair`; null where no such group is
  // posted.
  Request* NextEnded(size_t pair);
  Status FinishIfWhole(Request& request);
  Status PostFlush(Request& request);
  bool IsFlushing() const;
  Status Finish(Request& request);
  const RecordSlot& Records(const Request& request) const;
  bool HasRecords(const Request& request) const;
  Status TakeControl(const ControlMessage& message);
  Status TellIfAsleep();
  // Returns the source of writes into the sender's table. The slot is used again kTableSlots groups
  // later.
  GrantSlot& Grants(uint64_t group) const;
  Request& At(uint64_t group) { return requests_[group % kTableSlots]; }

  std::vector<Request> requests_;
  // Groups over the connection's life: granted_ <= posted_, and up to granted_ - reclaimed_ writes
  // of grants have not completed yet.
  uint64_t posted_ = 0;
  uint64_t granted_ = 0;
  uint64_t reclaimed_ = 0;
  uint64_t wake_from_ = 0;   // the group for which the sender sleeps; 0: The sender is awake.
  uint64_t unfinished_ = 0;  // groups that have not come as a whole
  // For each queue pair: the number of posted receives, which any group may use up, and the next
  // group that ends on the queue pair.
  std::vector<uint64_t> receives_;
  std::vector<uint64_t> next_ended_;
  std::vector<uint64_t> next_notice_;  // Counts receives; notices use slots in turn.
  bool said_hello_ = false;
  std::vector<Request> flushes_;
  // While the queue pairs are lost:
  size_t markers_posted_ = 0;
  size_t markers_taken_ = 0;
  std::optional<VerbsEnd> offer_again_;  // The offer that has not been answered.
};

}  // namespace tutti
