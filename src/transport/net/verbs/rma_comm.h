#pragma once

// An end of a connection over verbs for one-sided operations. The NIC does the work: a put is a
// write, a get a read, a signal an atomic addition, a flush a read of the peer's table. A queue
// pair carries out its requests in order, so that a signal may be posted right behind its put. The
// peer's process only takes part in the set-up, which is the same as for messages (setup.h).
//
// A connection has as many queue pairs as the end with more ports has ports (stripes.h). Long puts
// and gets are cut over all queue pairs. All further requests go over the first queue pair, because
// atomic operations of a NIC are atomic only among operations of the same NIC. Requests of two
// queue pairs are not in order. A read therefore follows each piece of a put that is not on the
// first queue pair. The answer to the read says that the piece is in place, and requests that must
// come behind the piece are posted only after the answer:
//
//   queue pair 0:   write                  signal
//   queue pair 1:   write  read . . answer ↗
//
// A remote key holds the address and the length of a range, and the NICs' keys for the range. The
// origin checks that each operation stays inside the range, and the target's NIC checks again.

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
  // The most operations of an end under way.
  static constexpr uint32_t kRequests = 128;

  // Make an end, as VerbsSendComm::Create and VerbsRecvComm::Accept do. The ends use no spares,
  // since lost queue pairs are not made again.
  static Result<std::unique_ptr<NetRmaComm>> Connect(const PortSet& ports, size_t remote_ports,
                                                     SealedSocket control, std::string peer);
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
    uint32_t due = 0;  // completions and steps that are still to come
    const char* doing = "";
  };
  // Bytes of an end, with the keys of that end's NICs for the bytes.
  struct Place {
    uint64_t address = 0;
    std::array<uint32_t, kMaxPorts> keys = {};

    Place operator+(size_t bytes) const { return {address + bytes, keys}; }
  };
  // Counts work with a completion, on each queue pair but the first.
  using Counts = std::array<uint64_t, kMaxPorts>;
  // The last step of a request, which waits until all work counted in `after` is done.
  struct Step {
    Request* request = nullptr;
    ibv_send_wr work = {};
    Counts after = {};
  };
  using Pieces = std::array<size_t, kMaxPorts>;

  explicit VerbsRmaComm(std::unique_ptr<VerbsChannel> channel);
  // `offer` is the peer's; null for the end that offers.
  static Result<std::unique_ptr<VerbsChannel>> Make(const PortSet& ports, size_t queue_pairs,
                                                    std::string peer, const VerbsEnd* offer);
  Result<bool> HasRoom();
  Request& Take(const char* doing);
  Result<Place> Local(NetLocal local, size_t bytes);
  Result<Place> Reach(const NetRemote& remote, size_t bytes);
  Result<Place> ReachWord(const NetRemote& word);
  // Returns a word for the value that a signal or a flush reads and nobody uses.
  Place Scratch(const Request& request) const;
  // Returns the number of bytes of an operation for each queue pair.
  Pieces Cut(size_t bytes) const;
  // Posts work of a request on a queue pair. With `reports` the request waits for the completion.
  Status Post(Request& request, size_t pair, ibv_send_wr& work, const Place& near, size_t bytes,
              bool reports);
  // Posts a write or a read.
  Status Move(Request& request, size_t pair, ibv_wr_opcode opcode, const Place& near,
              const Place& far, size_t bytes, bool reports);
  // Posts a read of the peer's table. The answer says that all earlier writes are in place.
  Status Confirm(Request& request, size_t pair);
  ibv_send_wr ReadTable(size_t pair) const;
  // Posts a request's last step on the first queue pair. With `behind_all` the step waits until all
  // pieces on further queue pairs are in place.
  Status Finish(Request& request, ibv_send_wr work, bool behind_all);
  bool AreDone(const Counts& counts) const;
  Status TakeSteps();
  Result<bool> TakeCompletions();
  Result<bool> Hear(bool idle);
  Status TakeControl(const ControlMessage& message);

  std::vector<Request> requests_;
  std::vector<uint32_t> free_;  // indices of requests_ that are not taken
  size_t in_flight_ = 0;        // completions that are still to come
  Counts posted_ = {};
  Counts done_ = {};
  std::deque<Step> steps_;  // in order; at most one step of each request
};

}  // namespace tutti
