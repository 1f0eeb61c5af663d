#include "transport/net/verbs/rma_comm.h"

#include <cstring>

namespace tutti {
namespace {

constexpr uint64_t kKeyMagic = 0x31414d5256545554;  // "TUTVRMA1"

// A put with a signal takes two requests of the queue pair.
constexpr uint32_t kWorkPerRequest = 2;

constexpr size_t kWordBytes = sizeof(uint64_t);

// Holds what a NetRemoteKey holds; both ends are little-endian (table.h).
struct RangeKey {
  uint64_t magic = kKeyMagic;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t key = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(RangeKey) <= sizeof(NetRemoteKey));

// A registration whose key names a range of memory. The other end adds an offset to the address,
// since a device takes addresses.
class Window final : public VerbsMemory {
 public:
  using VerbsMemory::VerbsMemory;
  NetRemoteKey remote_key() const override {
    RangeKey range;
    range.address = reinterpret_cast<uintptr_t>(region().address);
    range.bytes = region().bytes;
    range.key = registration(0)->remote_key();
    NetRemoteKey key = {};
    std::memcpy(key.data(), &range, sizeof(range));
    return key;
  }
};

}  // namespace

Result<std::unique_ptr<VerbsRmaComm>> VerbsRmaComm::Make(const PortSet& ports, std::string peer) {
  VerbsChannel::Parts parts;
  parts.ports = ports.First();
  if (parts.ports.ports[0].nic->device().attributes().atomic_cap == IBV_ATOMIC_NONE) {
    return InvalidUsage("{} has no atomic operations, by which signals are added",
                        parts.ports.Name());
  }
  parts.peer = std::move(peer);
  parts.table_bytes = kWordBytes;
  parts.outbox_bytes = kRequests * kWordBytes;
  parts.depths = {kRequests * kWorkPerRequest, 1};
  TUTTI_ASSIGN(auto channel, VerbsChannel::Create(std::move(parts), nullptr));
  return std::unique_ptr<VerbsRmaComm>(new VerbsRmaComm(std::move(channel)));
}

Result<std::unique_ptr<NetRmaComm>> VerbsRmaComm::Connect(const PortSet& ports, UniqueFd control,
                                                          std::string peer) {
  TUTTI_ASSIGN(auto comm, Make(ports, std::move(peer)));
  VerbsChannel& channel = *comm->channel_;
  channel.SetControl(ControlSocket(std::move(control)));
  TUTTI_TRY(channel.control().WatchPeer());
  TUTTI_TRY(channel.control().Send(ControlType::kOffer, channel.Here().Encode()));
  return std::unique_ptr<NetRmaComm>(std::move(comm));
}

Result<std::unique_ptr<NetRmaComm>> VerbsRmaComm::Accept(const PortSet& ports,
                                                         ControlSocket control,
                                                         const ControlMessage& offer,
                                                         std::string peer) {
  const auto make = [&]() -> Result<std::unique_ptr<VerbsRmaComm>> {
    if (offer.type != ControlType::kOffer) {
      return RemoteError("{} began with control message {} instead of an offer", peer,
                         static_cast<int>(offer.type));
    }
    TUTTI_ASSIGN(const VerbsEnd origin, VerbsEnd::Decode(offer.payload));
    TUTTI_ASSIGN(auto comm, Make(ports, std::move(peer)));
    TUTTI_TRY(comm->channel_->Join(origin, comm->channel_->options().traffic_class));
    return comm;
  };
  Result<std::unique_ptr<VerbsRmaComm>> comm = make();
  if (!comm.ok()) {
    control.Refuse(comm.status());
    return std::move(comm).status();
  }
  VerbsChannel& channel = *(*comm)->channel_;
  channel.SetControl(std::move(control));
  TUTTI_TRY(channel.control().Send(ControlType::kAnswer, channel.Here().Encode()));
  return std::unique_ptr<NetRmaComm>(std::move(*comm));
}

VerbsRmaComm::VerbsRmaComm(std::unique_ptr<VerbsChannel> channel)
    : ChannelComm(std::move(channel)), requests_(kRequests) {
  for (uint32_t i = 0; i < kRequests; ++i) free_.push_back(i);
}

Result<std::unique_ptr<NetMemory>> VerbsRmaComm::Register(const NetRegion& region) {
  TUTTI_ASSIGN(HeldRegistration held, channel_->nic().Hold(region, MemoryUse::kOneSided));
  return std::unique_ptr<NetMemory>(
      std::make_unique<Window>(region, VerbsMemory::Held{std::move(held)}));
}

// Returns whether an operation can begin. The connection's last steps are taken here, too, so that
// the first operation need not wait for a call of Progress.
Result<bool> VerbsRmaComm::HasRoom() {
  TUTTI_TRY(channel_->failure());
  if (!channel_->open()) TUTTI_TRY(Hear(/*idle=*/true).status());
  return channel_->open() && !free_.empty();
}

VerbsRmaComm::Request& VerbsRmaComm::Take(const char* doing) {
  Request& request = requests_[free_.back()];
  free_.pop_back();
  request.taken = true;
  request.doing = doing;
  return request;
}

// Checks memory of this end, and returns it as the device wants it.
Result<VerbsRmaComm::Near> VerbsRmaComm::Local(NetLocal local, size_t bytes) {
  if (bytes == 0) return Near{};
  if (!local.memory) return InternalError("an operation came without its registration");
  const std::byte* const begin = local.memory->region().address + local.offset;
  TUTTI_ASSIGN(const VerbsMemory* const memory, channel_->Check(local.memory, begin, bytes));
  return Near{reinterpret_cast<uintptr_t>(begin), memory->registration(0)->local_key()};
}

// Checks that the operation stays inside the range that the other end gave out. Its device would
// check that too, but a failure there costs the queue pair.
Result<VerbsRmaComm::Far> VerbsRmaComm::Reach(const NetRemote& remote, size_t bytes) {
  if (bytes == 0) return Far{};
  RangeKey range;
  std::memcpy(&range, remote.key.data(), sizeof(range));
  if (range.magic != kKeyMagic || range.zero != 0) {
    return channel_->Refuse(
        RemoteError("an operation named a range by a key that {} has not given out", peer()));
  }
  if (remote.offset > range.bytes || bytes > range.bytes - remote.offset) {
    return channel_->Refuse(
        RemoteError("an operation of {} bytes at offset {} reached "
                    "outside a range of {} bytes of {}",
                    bytes, remote.offset, range.bytes, peer()));
  }
  return Far{range.address + remote.offset, range.key};
}

// Returns the word that takes what an atomic operation or a flush reads, which is of no use.
VerbsRmaComm::Near VerbsRmaComm::Scratch(const Request& request) const {
  const auto index = static_cast<uint64_t>(&request - requests_.data());
  return {reinterpret_cast<uintptr_t>(channel_->outbox().data()) + index * kWordBytes,
          channel_->outbox().registration(0).local_key()};
}

// Posts a step of a request; a completion is asked for the last one only.
Status VerbsRmaComm::Post(Request& request, ibv_send_wr& work, const Near& near, size_t bytes,
                          bool last) {
  ibv_sge element = {};
  element.addr = near.address;
  element.length = static_cast<uint32_t>(bytes);
  element.lkey = near.key;
  work.wr_id = static_cast<uint64_t>(&request - requests_.data());
  work.sg_list = &element;
  work.num_sge = 1;
  work.send_flags = last ? unsigned{IBV_SEND_SIGNALED} : 0;
  const Status posted = channel_->pair(0).Send(work);
  if (!posted.ok()) return channel_->Fail(posted);
  if (last) {
    request.pending = true;
    ++in_flight_;
  }
  return Status::Ok();
}

// The signal is an atomic addition behind the write. A queue pair carries out requests in order, so
// that the data are there when the signal is.
Result<NetRequest*> VerbsRmaComm::Iput(NetLocal from, NetRemote to, size_t bytes,
                                       const NetSignal* signal) {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  // Everything is checked before anything is posted.
  TUTTI_ASSIGN(const Near near, Local(from, bytes));
  TUTTI_ASSIGN(const Far far, Reach(to, bytes));
  Far word;
  if (signal) {
    TUTTI_ASSIGN(word, Reach(signal->word, kWordBytes));
    if (word.address % kWordBytes != 0) {
      return channel_->Refuse(RemoteError("a signal's word at offset {} of {} is not aligned",
                                          signal->word.offset, peer()));
    }
  }
  Request& request = Take("a put");
  if (bytes > 0) {
    ibv_send_wr work = {};
    work.opcode = IBV_WR_RDMA_WRITE;
    work.wr.rdma = {far.address, far.key};
    TUTTI_TRY(Post(request, work, near, bytes, !signal));
  }
  if (signal) {
    ibv_send_wr work = {};
    work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    work.wr.atomic = {word.address, signal->value, 0, word.key};
    TUTTI_TRY(Post(request, work, Scratch(request), kWordBytes, true));
  }
  return &request;
}

Result<NetRequest*> VerbsRmaComm::Iget(NetLocal to, NetRemote from, size_t bytes) {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  TUTTI_ASSIGN(const Near near, Local(to, bytes));
  TUTTI_ASSIGN(const Far far, Reach(from, bytes));
  Request& request = Take("a get");
  if (bytes > 0) {
    ibv_send_wr work = {};
    work.opcode = IBV_WR_RDMA_READ;
    work.wr.rdma = {far.address, far.key};
    TUTTI_TRY(Post(request, work, near, bytes, true));
  }
  return &request;
}

// A read of the other end's table. It is answered after all writes before it have been carried out.
Result<NetRequest*> VerbsRmaComm::Iflush() {
  TUTTI_ASSIGN(const bool room, HasRoom());
  if (!room) return nullptr;
  Request& request = Take("a flush");
  ibv_send_wr work = {};
  work.opcode = IBV_WR_RDMA_READ;
  work.wr.rdma = {channel_->remote().table_address,
                  channel_->remote().ports[channel_->remote_port_of(0)].table_key};
  TUTTI_TRY(Post(request, work, Scratch(request), kWordBytes, true));
  return &request;
}

Result<bool> VerbsRmaComm::TakeCompletions() {
  TUTTI_ASSIGN(const std::span<const ibv_wc> completions, channel_->Poll());
  bool moved = false;
  for (const ibv_wc& completion : completions) {
    if (completion.wr_id >= requests_.size()) continue;
    Request& request = requests_[completion.wr_id];
    if (completion.status != IBV_WC_SUCCESS) {
      Status failed = channel_->FailCompletion(completion, request.doing);
      // What was done before the failure still counts; the next call fails.
      if (moved) return true;
      return failed;
    }
    request.pending = false;
    --in_flight_;
    moved = true;
  }
  return moved;
}

Result<bool> VerbsRmaComm::Hear(bool idle) {
  ControlMessage message;
  TUTTI_ASSIGN(const bool came, channel_->Listen(idle, in_flight_ > 0, message));
  if (!came) return false;
  TUTTI_TRY(TakeControl(message));
  return true;
}

// Takes the two messages by which a connection becomes usable: the answer to this end's offer, or
// the word that the other end is ready.
Status VerbsRmaComm::TakeControl(const ControlMessage& message) {
  if (message.type == ControlType::kReady && !channel_->open() &&
      !channel_->remote().queue_pairs.empty()) {
    channel_->SetOpen();
    return Status::Ok();
  }
  if (message.type == ControlType::kAnswer && channel_->remote().queue_pairs.empty()) {
    Result<VerbsEnd> end = VerbsEnd::Decode(message.payload);
    if (!end.ok()) return channel_->Refuse(std::move(end).status());
    const Status joined = channel_->Join(*end, channel_->options().traffic_class);
    if (!joined.ok()) return channel_->Refuse(joined);
    channel_->SetOpen();
    const Status told = channel_->control().Send(ControlType::kReady, {});
    return told.ok() ? told : channel_->Fail(told);
  }
  return channel_->Refuse(RemoteError("the other end sent control message {} at the wrong time",
                                      static_cast<int>(message.type)));
}

Result<bool> VerbsRmaComm::Progress() {
  TUTTI_TRY(channel_->failure());
  TUTTI_ASSIGN(const bool moved, TakeCompletions());
  TUTTI_ASSIGN(const bool heard, Hear(!moved));
  return moved || heard;
}

Result<bool> VerbsRmaComm::Test(NetRequest& request) {
  auto& mine = static_cast<Request&>(request);
  if (!mine.taken) return InternalError("a request was tested that is not under way");
  if (mine.pending) return false;
  mine.taken = false;
  free_.push_back(static_cast<uint32_t>(&mine - requests_.data()));
  return true;
}

NetIdle VerbsRmaComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (!channel_->failure().ok()) return NetIdle::kProgress;
  return channel_->PrepareToWait(waits);
}

}  // namespace tutti
