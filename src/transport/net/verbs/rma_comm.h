#pragma once

// Is one end of a connection over verbs for one-sided operations. The NIC does them: a put is a
// write, a get a read, a signal an atomic addition, a flush a read of the other end's table. A
// queue pair carries out what is posted in order, so that a signal may be posted right behind its
// put. The other end's process takes no part but for setting the connection up as that of messages
// is (setup.h).
//
// Between ends with several ports there are as many queue pairs as the end with more has
// (stripes.h). Long puts and gets are cut over all of them. Everything else goes over the first:
// atomic operations have to, because a NIC's are atomic among its own only. Nothing is in order
// between two queue pairs; therefore a read follows each piece of a put that is not on the first
// one. When it is answered the piece is in place, and only then is posted what must come behind it:
//
//   queue pair 0:   write                  signal
//   queue pair 1:   write  read . . answer ↗
//
// A key says where a range lies, how long it is and by which keys the NICs let it be reached. The
// origin keeps within it; the target's NIC refuses what lies outside of it all the same.

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "transport/net/channel_comm.h"
#include "transport/net/rma.h"
#include "transport/net/verbs/channel.h"

namespace tutti {

class VerbsRmaComm final : public ChannelComm<NetRmaComm, VerbsChannel> {
 public:
  // Operations of one end under way.
  static constexpr uint32_t kRequests = 128;

  // Make an end, as VerbsSendComm::Create and VerbsRecvComm::Accept do. Spares are not used, since
  // lost queue pairs are not made again.
  static Result<std::unique_ptr<NetRmaComm>> Connect(const PortSet& ports, size_t remote_ports,
                                                     UniqueFd control, std::string peer);
  static Result<std::unique_ptr<NetRmaComm>> Accept(const PortSet& ports, ControlSocket control,
                                                    const ControlMessage& offer, std::string peer);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                           const NetSignal* signal) override;
  Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) override;
  Result<NetRequest*> Iatomic(NetLocal before, const NetAtomic& atomic) override;
  Result<NetRequest*> Iflush() override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;

 private:
  struct Request : NetRequest {
    bool taken = false;
    uint32_t due = 0;  // Completions and steps that are still to come.
    const char* doing = "";
  };
  // Bytes of this end or of the other one, with the keys that the NICs of its ports have for them.
  struct Place {
    uint64_t address = 0;
    std::array<uint32_t, kMaxPorts> keys = {};

    Place operator+(size_t bytes) const { return {address + bytes, keys}; }
  };
  // Counts work that reports, on each queue pair but the first.
  using Counts = std::array<uint64_t, kMaxPorts>;
  // The last step of a request, which waits until what `after` counts has been done.
  struct Step {
    Request* request = nullptr;
    ibv_send_wr work = {};
    Counts after = {};
  };
  using Pieces = std::array<size_t, kMaxPorts>;

  explicit VerbsRmaComm(std::unique_ptr<VerbsChannel> channel);
  // `offer` is the other end's; null for the end that offers.
  static Result<std::unique_ptr<VerbsChannel>> Make(const PortSet& ports, size_t queue_pairs,
                                                    std::string peer, const VerbsEnd* offer);
  Result<bool> HasRoom();
  Request& Take(const char* doing);
  Result<Place> Local(NetLocal local, size_t bytes);
  Result<Place> Reach(const NetRemote& remote, size_t bytes);
  Result<Place> ReachWord(const NetRemote& word);
  // Returns a word for what a signal or a flush reads; nobody looks at it.
  Place Scratch(const Request& request) const;
  // Returns how many bytes of an operation go over each queue pair.
  Pieces Cut(size_t bytes) const;
  // Posts work of a request on a queue pair. Where it `reports`, the request waits for it.
  Status Post(Request& request, size_t pair, ibv_send_wr& work, const Place& near, size_t bytes,
              bool reports);
  // Posts a write or a read.
  Status Move(Request& request, size_t pair, ibv_wr_opcode opcode, const Place& near,
              const Place& far, size_t bytes, bool reports);
  // Posts a read of the other end's table, whose answer says that the writes before it are in
  // place.
  Status Confirm(Request& request, size_t pair);
  ibv_send_wr ReadTable(size_t pair) const;
  // Posts a request's last step on the first queue pair, with `behind_all` only once all pieces
  // that were posted on others are in place.
  Status Finish(Request& request, ibv_send_wr work, bool behind_all);
  bool AreDone(const Counts& counts) const;
  Status TakeSteps();
  Result<bool> TakeCompletions();
  Result<bool> Hear(bool idle);
  Status TakeControl(const ControlMessage& message);

  std::vector<Request> requests_;
  std::vector<uint32_t> free_;  // indices of requests_ that are not taken
  size_t in_flight_ = 0;        // completions that are to come
  Counts posted_ = {};
  Counts done_ = {};
  std::deque<Step> steps_;  // in order; at most one of each request
};

}  // namespace tutti
