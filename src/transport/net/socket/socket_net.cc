#include "transport/net/socket/socket_net.h"

#include <algorithm>
#include <optional>

#include "base/erased.h"
#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/auth.h"
#include "sys/network_interface.h"
#include "transport/net/socket/data_socket_config.h"
#include "transport/net/socket/helpers.h"
#include "transport/net/socket/listener.h"
#include "transport/net/socket/paths.h"
#include "transport/net/socket/recv_comm.h"
#include "transport/net/socket/redialer.h"
#include "transport/net/socket/rma_comm.h"
#include "transport/net/socket/send_comm.h"
#include "transport/net/socket/silence_watch.h"

namespace tutti {
namespace {

constexpr uint64_t kHandleMagic = 0x314b434f53545554;     // "TUTSOCK1"
constexpr uint64_t kRmaHandleMagic = 0x31414d5253545554;  // "TUTSRMA1"

// Names the two kinds of wrong handles apart, because they have different causes: a mistake of the
// library, and ranks with different settings.
Result<ListenerHandle> DecodeSocketHandle(const NetHandle& in, uint64_t magic,
                                          const std::string& interface) {
  const uint64_t found = MagicOf(in);
  if (found != magic && (found == kHandleMagic || found == kRmaHandleMagic)) {
    return RemoteError("the peer's handle is one for {}",
                       found == kHandleMagic ? "messages" : "one-sided operations");
  }
  if (found != magic) {
    return RemoteError(
        "the peer's handle is not one of the socket network: do all ranks use the "
        "same NCCL_NET?");
  }
  return DecodeHandle(in, interface);
}

// The address and the acceptor of a device, which change while the network is in use.
struct DevicePorts {
  SocketAddress address;                   // port 0 until the device listens
  std::unique_ptr<AuthAcceptor> acceptor;  // null until the device listens
  NetSpread others;                        // further devices for this device's connections
};

// A queue of this rank at its devices' addresses, under a token of its own.
class ListeningQueue {
 public:
  ListeningQueue(std::shared_ptr<ConnectionQueues> queues, PathAddresses paths, uint64_t magic,
                 FaultPolicy faults)
      : queues_(std::move(queues)), faults_(std::move(faults)) {
    token_ = queues_->Open(queue_);
    handle_ = EncodeHandle({std::move(paths), token_, queues_->has_aes()}, magic);
  }
  ~ListeningQueue() { queues_->Close(token_); }
  ListeningQueue(const ListeningQueue&) = delete;
  ListeningQueue& operator=(const ListeningQueue&) = delete;

  const NetHandle& handle() const { return handle_; }
  Result<SocketSet> Take(const WaitLimits& limits) {
    TUTTI_ASSIGN(SocketSet sockets, queue_->Take(limits));
    sockets.faults = faults_;
    if (sockets.resumable != 0) sockets.resumer = queues_->Await(sockets);
    return sockets;
  }

 private:
  std::shared_ptr<ConnectionQueues> queues_;
  const FaultPolicy faults_;
  std::shared_ptr<ConnectionQueue> queue_ = std::make_shared<ConnectionQueue>();
  uint64_t token_ = 0;
  NetHandle handle_ = {};
};

Result<std::unique_ptr<NetRecvComm>> MakeRecvComm(SocketSet sockets,
                                                  std::shared_ptr<SocketHelpers> helpers) {
  TUTTI_ASSIGN(auto channel, SocketChannel::Create(std::move(sockets), SocketDirection::kReceive,
                                                   std::move(helpers)));
  return std::unique_ptr<NetRecvComm>(std::make_unique<SocketRecvComm>(std::move(channel)));
}

Result<std::unique_ptr<NetRmaComm>> MakeRmaComm(SocketSet sockets,
                                                std::shared_ptr<SocketHelpers> helpers) {
  TUTTI_ASSIGN(auto channel, SocketChannel::Create(std::move(sockets), SocketDirection::kSend,
                                                   std::move(helpers)));
  // Keys begin at a random number, hence a key of another connection is noticed.
  return std::unique_ptr<NetRmaComm>(
      std::make_unique<SocketRmaComm>(std::move(channel), RandomU64()));
}

// A listener of `Base`, NetListener or NetRmaListener, whose comms are made by `kMake`. The handles
// of the two differ in the magic number, so a mistaken handle is noticed.
template <class Base, uint64_t kMagic, auto kMake>
class ListenerFor final : public Base {
 public:
  ListenerFor(std::shared_ptr<ConnectionQueues> queues, PathAddresses paths,
              std::shared_ptr<SocketHelpers> helpers, FaultPolicy faults)
      : queue_(std::move(queues), std::move(paths), kMagic, std::move(faults)),
        helpers_(std::move(helpers)) {}

  const NetHandle& handle() const override { return queue_.handle(); }
  decltype(std::declval<Base&>().Accept({})) Accept(const WaitLimits& limits) override {
    TUTTI_ASSIGN(SocketSet sockets, queue_.Take(limits));
    return kMake(std::move(sockets), helpers_);
  }

 private:
  ListeningQueue queue_;
  std::shared_ptr<SocketHelpers> helpers_;
};

using SocketListener = ListenerFor<NetListener, kHandleMagic, MakeRecvComm>;
using SocketRmaListener = ListenerFor<NetRmaListener, kRmaHandleMagic, MakeRmaComm>;

class SocketNetImpl final : public Net {
 public:
  SocketNetImpl(EventLoop& loop, const Key& key, const Settings& settings,
                const SocketNet::Options& options)
      : loop_(loop),
        key_(key),
        ports_(settings.port_range),
        faults_{settings.resume_timeout_s * 1'000'000'000,
                std::make_shared<SilenceWatch>(loop, static_cast<int>(settings.host_timeout_s))},
        sealing_(settings.encrypt    ? Sealing::kEncryption
                 : settings.checksum ? Sealing::kChecksum
                                     : Sealing::kNone),
        has_aes_(options.use_aes && HasAes()),
        path_times_(options.path_times) {}

  Status Open(const Settings& settings, const SocketNet::Options& options);

  std::string_view name() const override { return "Socket"; }
  std::string_view cipher() const override {
    if (sealing_ != Sealing::kEncryption) return "";
    return has_aes_ ? "AES-256-GCM, or ChaCha20-Poly1305 with hosts without AES instructions"
                    : "ChaCha20-Poly1305";
  }
  const std::vector<NetDevice>& devices() const override { return devices_; }
  Status IsViable() const override { return devices_.empty() ? viable_ : Status::Ok(); }
  void Spread(int device, const NetSpread& others) override;
  Result<std::unique_ptr<NetListener>> Listen(int device) override;
  Result<std::unique_ptr<NetSendComm>> Connect(int device, const NetHandle& handle,
                                               const WaitLimits& limits) override;
  NetRma* rma() override { return &rma_; }

 private:
  // The one-sided operations, over connections of the same kind.
  class Rma final : public NetRma {
   public:
    explicit Rma(SocketNetImpl& net) : net_(net) {}
    Result<std::unique_ptr<NetRmaListener>> Listen(int device) override {
      TUTTI_ASSIGN(PathAddresses paths, net_.OpenPaths(device));
      return std::unique_ptr<NetRmaListener>(std::make_unique<SocketRmaListener>(
          net_.queues_, std::move(paths), net_.helpers_, net_.faults_));
    }
    Result<std::unique_ptr<NetRmaComm>> Connect(int device, const NetHandle& handle,
                                                const WaitLimits& limits) override {
      TUTTI_ASSIGN(SocketSet sockets, net_.ConnectSet(device, handle, kRmaHandleMagic, limits));
      return MakeRmaComm(std::move(sockets), net_.helpers_);
    }
    // A processor of the target adds.
    bool AtomicWithProcessors() const override { return true; }

   private:
    SocketNetImpl& net_;
  };

  // Begins to listen at a device, unless the device already listens, and returns its address.
  Result<SocketAddress> Open(int device);
  // Opens the device and all devices of its connections, and returns their addresses.
  Result<PathAddresses> OpenPaths(int device);
  Result<SocketSet> ConnectSet(int device, const NetHandle& handle, uint64_t magic,
                               const WaitLimits& limits);
  Result<Sockets> DialAll(SocketPaths& paths, DataHello hello, const WaitLimits& limits,
                          int64_t patience_ns, size_t* path);
  Result<Sockets> DialGoodPaths(SocketPaths& paths, DataHello& hello, const WaitLimits& limits);
  void AddDevice(const Settings& settings, const NetworkInterface& interface);
  void AddAddress(const Settings& settings, const std::vector<NetworkInterface>& interfaces,
                  const SocketAddress& address);
  Status Check(int device) const;

  EventLoop& loop_;
  const Erased<Key> key_;
  const PortRange ports_;
  const FaultPolicy faults_;
  const Sealing sealing_;
  const bool has_aes_;
  const SocketPaths::Times path_times_;
  Status viable_;
  std::vector<NetDevice> devices_;
  std::shared_ptr<SocketHelpers> helpers_;
  std::shared_ptr<ConnectionQueues> queues_ =
      std::make_shared<ConnectionQueues>(sealing_, has_aes_);
  std::vector<DataSocketConfig> data_;  // one for each device; Open fills it before any other call
  Mutex mutex_;
  std::vector<DevicePorts> ports_of_ TUTTI_GUARDED_BY(mutex_);  // one for each device
  Rma rma_{*this};
};

// An interface with several addresses is one device, under its first address.
void SocketNetImpl::AddDevice(const Settings& settings, const NetworkInterface& interface) {
  const bool known = std::any_of(devices_.begin(), devices_.end(), [&](const NetDevice& device) {
    return device.name == interface.name;
  });
  if (known) return;
  const LinkFacts link = ReadLinkFacts(interface.name);
  NetDevice described;
  described.name = interface.name;
  described.address = interface.address.HostText();
  described.speed_mbps = link.speed_mbps;
  described.max_group = kMaxNetGroup;
  devices_.push_back(std::move(described));
  data_.push_back(ChooseDataSockets(settings, link));
  DevicePorts ports;
  ports.address = interface.address;
  const MutexLock lock(mutex_);
  ports_of_.push_back(std::move(ports));
}

// Adds a device for one address, which need not be an address of an interface (127.0.0.2).
void SocketNetImpl::AddAddress(const Settings& settings,
                               const std::vector<NetworkInterface>& interfaces,
                               const SocketAddress& address) {
  NetworkInterface interface = {address.HostText(), address, {}};
  for (const NetworkInterface& each : interfaces) {
    if (each.address.family == address.family && each.address.bytes == address.bytes) {
      interface.name = each.name;
    }
  }
  interface.address.port = 0;
  AddDevice(settings, interface);
}

// The first device is the best interface by the rules of NCCL_SOCKET_IFNAME. The remaining devices
// are further interfaces that the rules admit, for other ranks of the host or for connections of
// several paths.
Status SocketNetImpl::Open(const Settings& settings, const SocketNet::Options& options) {
  TUTTI_ASSIGN(const std::vector<NetworkInterface> interfaces, ListNetworkInterfaces());
  if (options.address.valid()) {
    AddAddress(settings, interfaces, options.address);
    for (const SocketAddress& other : options.others) AddAddress(settings, interfaces, other);
  } else {
    const InterfaceWish wish = {.names = settings.socket_ifname,
                                .family = FamilyNumber(settings.socket_family),
                                .peer = {},
                                .near = options.near};
    const Result<NetworkInterface> best = ChooseInterface(interfaces, wish);
    viable_ = best.status();
    if (best.ok()) AddDevice(settings, best.value());
    const InterfaceFilter filter(settings.socket_ifname);
    for (const NetworkInterface& each : interfaces) {
      const bool wanted = filter.Admits(each.name) && !each.address.IsLoopback() &&
                          (wish.family == 0 || each.address.family == wish.family);
      if (best.ok() && wanted) AddDevice(settings, each);
    }
  }
  int threads = 0;
  for (const DataSocketConfig& data : data_) threads = std::max(threads, data.threads);
  TUTTI_ASSIGN(helpers_, SocketHelpers::Create(threads));
  for (size_t i = 0; i < devices_.size(); ++i) {
    TUTTI_INFO(kLogNet | kLogInit,
               "net Socket: device {} is {} at {}, {} Mb/s, {} data sockets, {} helper threads", i,
               devices_[i].name, devices_[i].address, devices_[i].speed_mbps, data_[i].sockets,
               data_[i].threads);
  }
  return Status::Ok();
}

Status SocketNetImpl::Check(int device) const {
  if (device >= 0 && static_cast<size_t>(device) < devices_.size()) return Status::Ok();
  return InternalError("the socket network has {} devices, not a device {}", devices_.size(),
                       device);
}

// All listeners of a device share one port, and tokens tell their connections apart.
Result<SocketAddress> SocketNetImpl::Open(int device) {
  TUTTI_TRY(Check(device));
  const std::string& name = devices_[static_cast<size_t>(device)].name;
  const MutexLock lock(mutex_);
  DevicePorts& at = ports_of_[static_cast<size_t>(device)];
  if (!at.acceptor) {
    TUTTI_ASSIGN(at.acceptor, ListenForQueues(loop_, key_, at.address, ports_, queues_, name,
                                              "the socket network"));
  }
  return at.address;
}

// A device that already listens has given out its handle, which would lack the new addresses.
void SocketNetImpl::Spread(int device, const NetSpread& others) {
  const MutexLock lock(mutex_);
  ports_of_[static_cast<size_t>(device)].others = others;
}

Result<PathAddresses> SocketNetImpl::OpenPaths(int device) {
  TUTTI_ASSIGN(const SocketAddress own, Open(device));
  PathAddresses paths = {{own}, 1};
  NetSpread others;
  {
    const MutexLock lock(mutex_);
    others = ports_of_[static_cast<size_t>(device)].others;
  }
  // An address at which listening fails is left out, since the device's own address is enough.
  const auto add = [&](const std::vector<int>& devices) {
    for (const int other : devices) {
      const Result<SocketAddress> address = Open(other);
      const bool usable = address.ok() && !address->IsLinkLocal();
      if (usable && paths.all.size() < kMostPaths) paths.all.push_back(*address);
    }
  };
  add(others.together);
  paths.together = paths.all.size();
  add(others.spare);
  return paths;
}

Result<std::unique_ptr<NetListener>> SocketNetImpl::Listen(int device) {
  TUTTI_ASSIGN(PathAddresses paths, OpenPaths(device));
  return std::unique_ptr<NetListener>(
      std::make_unique<SocketListener>(queues_, std::move(paths), helpers_, faults_));
}

// Makes all sockets of a new connection, each by its path and within `patience_ns`. After a failure
// `*path` is the path that failed.
Result<Sockets> SocketNetImpl::DialAll(SocketPaths& paths, DataHello hello,
                                       const WaitLimits& limits, int64_t patience_ns,
                                       size_t* path) {
  Sockets sockets;
  const std::vector<size_t> path_of = paths.Spread();
  for (hello.socket = 0; hello.socket <= hello.data_sockets; ++hello.socket) {
    *path = path_of[hello.socket];
    TUTTI_ASSIGN(SealedSocket socket,
                 ConnectPatiently(paths.address(*path), key_, {Purpose::kData, hello.Encode()},
                                  limits.Within(patience_ns)));
    SocketStream stream = SocketStream::Create(std::move(socket), hello.sealing);
    if (hello.socket == 0) {
      sockets.control = std::move(stream);
    } else {
      sockets.data.push_back(std::move(stream));
    }
  }
  return sockets;
}

// Leaves out paths by which the peer is not reached, as long as there are other paths.
Result<Sockets> SocketNetImpl::DialGoodPaths(SocketPaths& paths, DataHello& hello,
                                             const WaitLimits& limits) {
  for (size_t tries = 1;; ++tries) {
    // The receiver may keep some sockets of the previous attempt under the old number.
    hello.connection = RandomU64();
    const bool is_last = tries >= paths.size();
    size_t path = 0;
    Result<Sockets> sockets = DialAll(
        paths, hello, limits, is_last ? Deadline::Never().at_ns() : path_times_.patience_ns, &path);
    if (sockets.ok() || is_last || limits.Over()) return sockets;
    paths.GiveUp(path, NowNs());
  }
}

// Dials all sockets of a connection and gives it what it needs to be made again, unless
// TUTTI_RESUME_TIMEOUT_S is 0.
Result<SocketSet> SocketNetImpl::ConnectSet(int device, const NetHandle& handle, uint64_t magic,
                                            const WaitLimits& limits) {
  TUTTI_TRY(Check(device));
  const std::string& name = devices_[static_cast<size_t>(device)].name;
  TUTTI_ASSIGN(const ListenerHandle target, DecodeSocketHandle(handle, magic, name));
  // One-sided operations go over the control socket alone.
  const size_t data_sockets =
      magic == kRmaHandleMagic
          ? 0
          : DataSocketsFor(data_[static_cast<size_t>(device)], target.paths.together);
  DataHello hello;
  hello.token = target.token;
  hello.data_sockets = static_cast<uint16_t>(data_sockets);
  hello.life = faults_.resume_within_ns > 0 ? DataHello::kResumable : DataHello::kOnce;
  hello.sealing = FastestSealing(sealing_, has_aes_ && target.has_aes);
  SocketPaths paths(target.paths, data_sockets, path_times_);
  TUTTI_ASSIGN(Sockets dialed, DialGoodPaths(paths, hello, limits));
  SocketSet sockets;
  static_cast<Sockets&>(sockets) = std::move(dialed);
  sockets.peer = fmt::format("{} over {}", target.address().ToString(), name);
  sockets.faults = faults_;
  if (const std::string notice = paths.TakeNotice(); !notice.empty()) {
    TUTTI_WARN("net Socket: the connection with {} {}", sockets.peer, notice);
  }
  if (hello.life == DataHello::kResumable) {
    sockets.resumer = std::make_unique<Redialer>(std::move(paths), key_, hello);
  }
  return sockets;
}

Result<std::unique_ptr<NetSendComm>> SocketNetImpl::Connect(int device, const NetHandle& handle,
                                                            const WaitLimits& limits) {
  TUTTI_ASSIGN(SocketSet sockets, ConnectSet(device, handle, kHandleMagic, limits));
  TUTTI_ASSIGN(auto channel,
               SocketChannel::Create(std::move(sockets), SocketDirection::kSend, helpers_));
  return std::unique_ptr<NetSendComm>(std::make_unique<SocketSendComm>(std::move(channel)));
}

}  // namespace

// The network exists even without a device; IsViable then gives the reason.
Result<std::unique_ptr<Net>> SocketNet::Create(EventLoop& loop, const Key& key,
                                               const Settings& settings, const Options& options) {
  auto net = std::make_unique<SocketNetImpl>(loop, key, settings, options);
  TUTTI_TRY(net->Open(settings, options));
  return std::unique_ptr<Net>(std::move(net));
}

}  // namespace tutti
