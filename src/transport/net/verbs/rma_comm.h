#pragma once

// Is one end of a connection over verbs for one-sided operations. The NIC does them: a put is a
// write, a get a read, a signal an atomic addition behind its put on the same queue pair, which
// carries out what is posted in order; so every signal is a strong one. A flush is a read of the
// other end's table, which its NIC answers when the writes before it are done. The other end's
// process takes no part but for setting the connection up as that of messages is (setup.h).
//
// A key says where a range lies, how long it is and by which key the NIC lets it be reached. The
// origin keeps within it; the target's NIC refuses what lies outside of it all the same.

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

  // Make an end, as VerbsSendComm::Create and VerbsRecvComm::Create do. Of several ports the first
  // is used: a signal comes behind its put because both go over one queue pair.
  static Result<std::unique_ptr<NetRmaComm>> Connect(const PortSet& ports, UniqueFd control,
                                                     std::string peer);
  static Result<std::unique_ptr<NetRmaComm>> Accept(const PortSet& ports, ControlSocket control,
                                                    const ControlMessage& offer, std::string peer);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                           const NetSignal* signal) override;
  Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) override;
  Result<NetRequest*> Iflush() override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;

 private:
  struct Request : NetRequest {
    bool taken = false;
    bool pending = false;
    const char* doing = "";
  };
  // Bytes of this end.
  struct Near {
    uint64_t address = 0;
    uint32_t key = 0;
  };
  // Bytes of the other end.
  using Far = Near;

  explicit VerbsRmaComm(std::unique_ptr<VerbsChannel> channel);
  static Result<std::unique_ptr<VerbsRmaComm>> Make(const PortSet& ports, std::string peer);
  Result<bool> HasRoom();
  Request& Take(const char* doing);
  Result<Near> Local(NetLocal local, size_t bytes);
  Result<Far> Reach(const NetRemote& remote, size_t bytes);
  // Returns the word of a request that what a signal or a flush reads is written to; nobody looks
  // at it.
  Near Scratch(const Request& request) const;
  Status Post(Request& request, ibv_send_wr& work, const Near& near, size_t bytes, bool last);
  Result<bool> TakeCompletions();
  Result<bool> Hear(bool idle);
  Status TakeControl(const ControlMessage& message);

  std::vector<Request> requests_;
  std::vector<uint32_t> free_;  // indices of requests_ that are not taken
  size_t in_flight_ = 0;        // requests that are pending
};

}  // namespace tutti
