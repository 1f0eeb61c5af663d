#include "transport/net/verbs/verbs_net.h"

#include <algorithm>
#include <map>

#include "base/erased.h"
#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/auth.h"
#include "sys/network_interface.h"
#include "transport/net/socket/listener.h"
#include "transport/net/verbs/devices.h"
#include "transport/net/verbs/merge.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/recv_comm.h"
#include "transport/net/verbs/rma_comm.h"
#include "transport/net/verbs/send_comm.h"
#include "transport/net/verbs/table.h"

namespace tutti {
namespace {

constexpr uint64_t kHandleMagic = 0x3242524556545554;     // "TUTVERB2"
constexpr uint64_t kRmaHandleMagic = 0x32414d5256545554;  // "TUTVRMA2"

// The two connections of a rank, one in each direction, register about as much memory.
constexpr size_t kTrialBytes = size_t{8} << 20;

Result<ListenerHandle> DecodeVerbsHandle(const NetHandle& in, uint64_t magic,
                                         const std::string& interface) {
  if (MagicOf(in) != magic) {
    return RemoteError(
        "the peer's handle is not one of the network over verbs: do all ranks use the same "
        "NCCL_NET, and have all of them InfiniBand or RoCE devices?");
  }
  return DecodeHandle(in, interface);
}

// The last byte of a handle is the number of own ports of the listener's device.
NetHandle WithPorts(NetHandle handle, const PortSet& ports) {
  handle.back() = static_cast<std::byte>(ports.own);
  return handle;
}
size_t PortsIn(const NetHandle& handle) {
  return std::clamp<size_t>(std::to_integer<size_t>(handle.back()), 1, kMaxPorts);
}

// A listener's connections, each with the offer with which the peer begins.
class OfferQueue {
 public:
  struct Taken {
    ControlSocket control;
    std::string peer;
    ControlMessage offer;
  };

  OfferQueue(std::shared_ptr<ConnectionQueues> queues, std::string port)
      : queues_(std::move(queues)), port_(std::move(port)), token_(queues_->Open(queue_)) {}
  ~OfferQueue() { queues_->Close(token_); }
  OfferQueue(const OfferQueue&) = delete;
  OfferQueue& operator=(const OfferQueue&) = delete;

  uint64_t token() const { return token_; }
  // Waits for the next connection and its offer. After a timeout, the next call goes on with the
  // same connection.
  Result<Taken> Take(const WaitLimits& limits) {
    if (!pending_) {
      TUTTI_ASSIGN(SocketSet sockets, queue_->Take(limits));
      pending_ = std::make_unique<Taken>();
      pending_->control = ControlSocket(sockets.control.TakeSealed());
      pending_->peer = fmt::format("{} over {}", sockets.peer, port_);
    }
    Result<ControlMessage> offer = pending_->control.Await(limits);
    if (offer.status().code() == Code::kTimeout) return offer.status();
    const std::unique_ptr<Taken> taken = std::move(pending_);
    TUTTI_TRY(offer.status());
    taken->offer = std::move(offer).value();
    return std::move(*taken);
  }

 private:
  const std::shared_ptr<ConnectionQueues> queues_;
  const std::string port_;
  const std::shared_ptr<ConnectionQueue> queue_ = std::make_shared<ConnectionQueue>();
  const uint64_t token_;
  std::unique_ptr<Taken> pending_;  // the connection whose offer has not come yet
};

// A listener of `Base`, NetListener or NetRmaListener, whose connections are of `Comm`.
template <class Base, class Comm, uint64_t kMagic>
class ListenerFor final : public Base {
 public:
  ListenerFor(std::shared_ptr<ConnectionQueues> queues, const SocketAddress& address, PortSet ports)
      : ports_(std::move(ports)),
        offers_(std::move(queues), ports_.Name()),
        handle_(WithPorts(EncodeHandle({{{address}}, offers_.token()}, kMagic), ports_)) {}

  const NetHandle& handle() const override { return handle_; }
  decltype(std::declval<Base&>().Accept({})) Accept(const WaitLimits& limits) override {
    TUTTI_ASSIGN(OfferQueue::Taken taken, offers_.Take(limits));
    return Comm::Accept(ports_, std::move(taken.control), taken.offer, std::move(taken.peer));
  }

 private:
  const PortSet ports_;
  OfferQueue offers_;
  const NetHandle handle_;
};

using VerbsListener = ListenerFor<NetListener, VerbsRecvComm, kHandleMagic>;
using VerbsRmaListener = ListenerFor<NetRmaListener, VerbsRmaComm, kRmaHandleMagic>;

class VerbsNetImpl final : public Net {
 public:
  VerbsNetImpl(EventLoop& loop, const Key& key, const PortRange& ports)
      : loop_(loop), key_(key), ports_(ports) {}

  // Finds the ports, and keeps the reasons against this network for IsViable.
  Status Open(const Settings& settings, const VerbsNet::Options& options);

  std::string_view name() const override { return "IB"; }
  const std::vector<NetDevice>& devices() const override { return devices_; }
  Status IsViable() const override { return viable_; }
  Result<std::unique_ptr<NetListener>> Listen(int device) override;
  Result<std::unique_ptr<NetSendComm>> Connect(int device, const NetHandle& handle,
                                               const WaitLimits& limits) override;
  Result<std::unique_ptr<NetMemory>> Register(int device, const NetRegion& region) override;
  void Spread(int device, const NetSpread& others) override;
  // Devices of iWARP and a few devices of InfiniBand and RoCE have no atomic operations.
  NetRma* rma() override {
    const bool have_atomics = std::all_of(sets_.begin(), sets_.end(), [](const PortSet& ports) {
      return !ports.iwarp() && ports.HaveAtomics();
    });
    return have_atomics ? &rma_ : nullptr;
  }

 private:
  class Rma final : public NetRma {
   public:
    explicit Rma(VerbsNetImpl& net) : net_(net) {}
    Result<std::unique_ptr<NetRmaListener>> Listen(int device) override;
    Result<std::unique_ptr<NetRmaComm>> Connect(int device, const NetHandle& handle,
                                                const WaitLimits& limits) override;
    bool AtomicWithProcessors() const override {
      return std::all_of(net_.sets_.begin(), net_.sets_.end(),
                         [](const PortSet& ports) { return ports.Atomics() == IBV_ATOMIC_GLOB; });
    }

   private:
    VerbsNetImpl& net_;
  };

  Status FindPorts(const Settings& settings, const std::string& sysfs);
  Status MergeDevices(std::vector<UsedPort> used, const MergeWish& wish);
  Status FindAddress(const Settings& settings, const SocketAddress& address);
  Result<const PortSet*> At(int device) const;
  // Returns the address of the listener for control sockets, and begins to listen.
  Result<SocketAddress> StartListening();
  Result<SealedSocket> OpenControl(const ListenerHandle& target, const WaitLimits& limits) const;

  EventLoop& loop_;
  const Erased<Key> key_;
  const PortRange ports_;
  Status viable_;
  std::vector<NetDevice> devices_;
  std::vector<PortSet> sets_;  // one for each device
  std::string interface_;      // of the control sockets
  const std::shared_ptr<ConnectionQueues> queues_ =
      std::make_shared<ConnectionQueues>(Sealing::kEncryption);
  Mutex mutex_;
  SocketAddress address_ TUTTI_GUARDED_BY(mutex_);  // port 0 until a listener exists
  std::unique_ptr<AuthAcceptor> acceptor_ TUTTI_GUARDED_BY(mutex_);
  Rma rma_{*this};
};

// A device takes the kinds of memory that all of its NICs take. Its speed is the sum of its ports'
// speeds.
NetDevice Describe(const PortSet& set) {
  NetDevice device;
  device.name = set.Name();
  device.guid = set.ports.front().port.device->guid();
  device.port = set.ports.front().port.number;
  device.max_group = kMaxNetGroup;
  device.max_requests = kTableSlots;
  device.needs_registration = true;
  device.registers_memory = device.shares_registrations = true;
  device.takes_gpu_memory = device.takes_dmabuf = true;
  for (const UsedPort& used : std::span(set.ports).first(set.own)) {
    const VerbsNic& nic = *used.nic;
    device.address += (device.address.empty() ? "" : "+") + used.port.gid.ToString();
    device.speed_mbps += used.port.speed_mbps;
    device.pci_paths.push_back(used.port.device->pci_path());
    // A read after the data orders the writes into a GPU's memory, and iWARP cannot read back.
    device.takes_gpu_memory &= nic.gpu_memory().peer_memory && !used.port.iwarp();
    device.takes_dmabuf &= nic.gpu_memory().dmabuf && !used.port.iwarp();
  }
  device.needs_flush = (device.takes_gpu_memory || device.takes_dmabuf) &&
                       set.ports.front().nic->options().gpu_flush;
  return device;
}

// Opens the devices, and collects the usable ports, with the reasons against the remaining ports.
// Returns the reason for the lack of any usable port.
Status VerbsNetImpl::FindPorts(const Settings& settings, const std::string& sysfs) {
  if (settings.ib_disable) return InvalidUsage("NCCL_IB_DISABLE is set");
  TUTTI_ASSIGN(const VerbsLibrary calls, LoadVerbsLibrary(settings.ib_library));
  const auto library = std::make_shared<const VerbsLibrary>(calls);
  // Children of this process must not share pages that a device writes; newer kernels copy them.
  // libibverbs does not expect two threads in this call.
  {
    static Mutex one_at_a_time;
    const MutexLock lock(one_at_a_time);
    [[maybe_unused]] const int forks = library->fork_init();
  }
  TUTTI_ASSIGN(const MergeWish wish, MergeWish::From(settings));
  TUTTI_ASSIGN(VerbsPorts ports, FindVerbsPorts(library, settings));
  std::vector<UsedPort> used;
  std::map<const VerbsDevice*, std::shared_ptr<VerbsNic>> nics;
  for (VerbsPort& port : ports.usable) {
    std::shared_ptr<VerbsNic>& nic = nics[port.device.get()];
    if (!nic) {
      Result<std::shared_ptr<VerbsNic>> made =
          VerbsNic::Create(loop_, port.device, VerbsOptions::From(settings), sysfs);
      Status usable = made.status();
      // A limit on locked memory shows here instead of in the first operation.
      if (made.ok()) {
        MemoryCache* const cache = &(*made)->memory();
        usable = RegisteredPages::Create({&cache, 1}, kTrialBytes).status();
      }
      if (!usable.ok()) {
        ports.left_out.emplace_back(usable.message());
        continue;
      }
      nic = std::move(made).value();
    }
    used.push_back({std::move(port), nic});
  }
  std::string reasons;
  for (const std::string& sentence : ports.left_out) {
    TUTTI_INFO(kLogNet | kLogInit, "net IB: not used: {}", sentence);
    reasons += (reasons.empty() ? "; " : ", ") + sentence;
  }
  if (used.empty()) {
    return SystemError("this host has no active InfiniBand, RoCE or iWARP port that can be used{}",
                       reasons);
  }
  return MergeDevices(std::move(used), wish);
}

// Makes devices of the ports. The remaining ports of a device's NICs are spares from the start,
// because they cost no further registrations.
Status VerbsNetImpl::MergeDevices(std::vector<UsedPort> used, const MergeWish& wish) {
  std::vector<PortPlace> places;
  for (const UsedPort& each : used) {
    const VerbsDevice& device = *each.port.device;
    places.push_back({std::string(device.name()), each.port.number, each.port.ethernet,
                      device.pci_path(), device.numa(), each.port.iwarp()});
  }
  TUTTI_ASSIGN(const std::vector<MergedPorts> merged, MergePorts(places, wish));
  for (const MergedPorts& each : merged) {
    PortSet set;
    for (const size_t i : each) set.ports.push_back(used[i]);
    set.own = set.ports.size();
    devices_.push_back(Describe(set));
    for (const UsedPort& other : used) {
      const bool of_nic = std::any_of(set.ports.begin(), set.ports.end(),
                                      [&](const UsedPort& port) { return port.nic == other.nic; });
      if (of_nic && !set.iwarp()) set.AddSpares({&other, 1});
    }
    sets_.push_back(std::move(set));
  }
  return Status::Ok();
}

// The first device of the same kind in the list becomes the spare. A device has no further spares,
// because each spare has to register all memory of the connections.
void VerbsNetImpl::Spread(int device, const NetSpread& others) {
  PortSet& set = sets_[static_cast<size_t>(device)];
  if (set.ports.front().nic->options().resume_within_ns == 0 || set.iwarp()) return;
  std::vector<int> all = others.together;
  all.insert(all.end(), others.spare.begin(), others.spare.end());
  for (const int other : all) {
    const PortSet& from = sets_[static_cast<size_t>(other)];
    if (!set.AddSpares(std::span(from.ports).first(from.own))) continue;
    TUTTI_INFO(kLogNet, "net IB: {} stands by for {}", from.Name(), set.Name());
    return;
  }
}

// Chooses the address at which control sockets are accepted. The address belongs to an ordinary
// network interface, because ranks meet before queue pairs are joined.
Status VerbsNetImpl::FindAddress(const Settings& settings, const SocketAddress& address) {
  const MutexLock lock(mutex_);
  TUTTI_ASSIGN(const std::vector<NetworkInterface> interfaces, ListNetworkInterfaces());
  if (!address.valid()) {
    const InterfaceWish wish = {settings.socket_ifname, FamilyNumber(settings.socket_family), {}};
    TUTTI_ASSIGN(const NetworkInterface best, ChooseInterface(interfaces, wish));
    address_ = best.address;
    interface_ = best.name;
    return Status::Ok();
  }
  address_ = address;
  for (const NetworkInterface& each : interfaces) {
    if (each.address.family == address.family && each.address.bytes == address.bytes) {
      interface_ = each.name;
    }
  }
  return Status::Ok();
}

// An impossible setting is an error. The lack of a device is no error: a different network may
// carry the data, and IsViable tells the reason.
Status VerbsNetImpl::Open(const Settings& settings, const VerbsNet::Options& options) {
  viable_ = FindPorts(settings, options.sysfs);
  if (viable_.code() == Code::kInvalidUsage && !settings.ib_disable) return viable_;
  if (viable_.ok()) viable_ = FindAddress(settings, options.address);
  for (size_t i = 0; i < devices_.size(); ++i) {
    TUTTI_INFO(kLogNet | kLogInit, "net IB: device {} is {}, {}, GID {}, {} Mb/s", i,
               devices_[i].name, sets_[i].kind(), devices_[i].address, devices_[i].speed_mbps);
  }
  return Status::Ok();
}

Result<const PortSet*> VerbsNetImpl::At(int device) const {
  TUTTI_TRY(viable_);
  if (device < 0 || static_cast<size_t>(device) >= sets_.size()) {
    return InternalError("the network over verbs has {} devices, not a device {}", sets_.size(),
                         device);
  }
  return &sets_[static_cast<size_t>(device)];
}

Result<SocketAddress> VerbsNetImpl::StartListening() {
  const MutexLock lock(mutex_);
  if (!acceptor_) {
    TUTTI_ASSIGN(acceptor_, ListenForQueues(loop_, key_, address_, ports_, queues_, interface_,
                                            "the network over verbs"));
  }
  return address_;
}

Result<SealedSocket> VerbsNetImpl::OpenControl(const ListenerHandle& target,
                                               const WaitLimits& limits) const {
  DataHello hello;
  hello.token = target.token;
  hello.connection = RandomU64();
  hello.sealing = Sealing::kEncryption;
  return ConnectPatiently(target.address(), key_, {Purpose::kData, hello.Encode()}, limits);
}

std::string PeerName(const ListenerHandle& target, const PortSet& ports) {
  return fmt::format("{} over {}", target.address().ToString(), ports.Name());
}

Result<std::unique_ptr<NetListener>> VerbsNetImpl::Listen(int device) {
  TUTTI_ASSIGN(const PortSet* const ports, At(device));
  TUTTI_ASSIGN(const SocketAddress address, StartListening());
  return std::unique_ptr<NetListener>(std::make_unique<VerbsListener>(queues_, address, *ports));
}

Result<std::unique_ptr<NetSendComm>> VerbsNetImpl::Connect(int device, const NetHandle& handle,
                                                           const WaitLimits& limits) {
  TUTTI_ASSIGN(const PortSet* const ports, At(device));
  TUTTI_ASSIGN(const ListenerHandle target, DecodeVerbsHandle(handle, kHandleMagic, interface_));
  TUTTI_ASSIGN(SealedSocket control, OpenControl(target, limits));
  return VerbsSendComm::Create(*ports, PortsIn(handle), std::move(control),
                               PeerName(target, *ports));
}

Result<std::unique_ptr<NetMemory>> VerbsNetImpl::Register(int device, const NetRegion& region) {
  TUTTI_ASSIGN(const PortSet* const ports, At(device));
  TUTTI_ASSIGN(std::unique_ptr<VerbsMemory> memory, ports->Register(region));
  return std::unique_ptr<NetMemory>(std::move(memory));
}

Result<std::unique_ptr<NetRmaListener>> VerbsNetImpl::Rma::Listen(int device) {
  TUTTI_ASSIGN(const PortSet* const ports, net_.At(device));
  TUTTI_ASSIGN(const SocketAddress address, net_.StartListening());
  return std::unique_ptr<NetRmaListener>(
      std::make_unique<VerbsRmaListener>(net_.queues_, address, *ports));
}

Result<std::unique_ptr<NetRmaComm>> VerbsNetImpl::Rma::Connect(int device, const NetHandle& handle,
                                                               const WaitLimits& limits) {
  TUTTI_ASSIGN(const PortSet* const ports, net_.At(device));
  TUTTI_ASSIGN(const ListenerHandle target,
               DecodeVerbsHandle(handle, kRmaHandleMagic, net_.interface_));
  TUTTI_ASSIGN(SealedSocket control, net_.OpenControl(target, limits));
  return VerbsRmaComm::Connect(*ports, PortsIn(handle), std::move(control),
                               PeerName(target, *ports));
}

}  // namespace

Result<std::unique_ptr<Net>> VerbsNet::Create(EventLoop& loop, const Key& key,
                                              const Settings& settings, const Options& options) {
  auto net = std::make_unique<VerbsNetImpl>(
      loop, key, PortRange{settings.port_range.low, settings.port_range.high});
  TUTTI_TRY(net->Open(settings, options));
  return std::unique_ptr<Net>(std::move(net));
}

}  // namespace tutti
