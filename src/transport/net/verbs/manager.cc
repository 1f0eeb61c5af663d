#include "transport/net/verbs/manager.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <sodium.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "sys/network_interface.h"
#include "sys/random.h"
#include "sys/tcp.h"

namespace tutti {
namespace {

// Functions of librdmacm: the member, the symbol behind "rdma_", the result, the parameters.
#define TUTTI_MANAGER_CALLS(X)                                                   \
  X(create_event_channel, rdma_event_channel*, ())                               \
  X(destroy_event_channel, void, (rdma_event_channel*))                          \
  X(create_id, int, (rdma_event_channel*, rdma_cm_id**, void*, rdma_port_space)) \
  X(destroy_id, int, (rdma_cm_id*))                                              \
  X(bind_addr, int, (rdma_cm_id*, sockaddr*))                                    \
  X(resolve_addr, int, (rdma_cm_id*, sockaddr*, sockaddr*, int))                 \
  X(resolve_route, int, (rdma_cm_id*, int))                                      \
  X(connect, int, (rdma_cm_id*, rdma_conn_param*))                               \
  X(listen, int, (rdma_cm_id*, int))                                             \
  X(accept, int, (rdma_cm_id*, rdma_conn_param*))                                \
  X(reject, int, (rdma_cm_id*, const void*, uint8_t))                            \
  X(get_cm_event, int, (rdma_event_channel*, rdma_cm_event**))                   \
  X(ack_cm_event, int, (rdma_cm_event*))                                         \
  X(event_str, const char*, (rdma_cm_event_type))                                \
  X(get_src_port, uint16_t, (rdma_cm_id*))

struct ManagerCalls {
#define TUTTI_MANAGER_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  TUTTI_MANAGER_CALLS(TUTTI_MANAGER_MEMBER)
#undef TUTTI_MANAGER_MEMBER
};

// The time for the manager to look up the peer's address, and again for the way to the address.
constexpr int kResolveMs = 2000;

// The private data of a request for a connection.
struct Proof {
  std::array<std::byte, 16> token;
  uint32_t pair;  // the index of the queue pair, big-endian
};
static_assert(sizeof(Proof) == 20);

SocketAddress AddressOf(const Gid& gid, uint16_t port) {
  SocketAddress address;
  address.port = port;
  if (gid.IsIpv4()) {
    address.family = 4;
    std::copy(gid.bytes.end() - 4, gid.bytes.end(), address.bytes.begin());
  } else {
    address.family = 6;
    address.bytes = gid.bytes;
  }
  return address;
}

Gid GidOf(const SocketAddress& address) {
  Gid gid;
  gid.type = GidType::kRoceV2;
  gid.bytes = address.bytes;
  if (address.family == 4) {
    gid.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::copy_n(address.bytes.begin(), 4, gid.bytes.end() - 4);
  }
  return gid;
}

// The parameters of either end: a single read at a time, by which the sending end proves arrival.
rdma_conn_param Wish(uint32_t queue_pair) {
  rdma_conn_param wish = {};
  wish.responder_resources = wish.initiator_depth = 1;
  wish.qp_num = queue_pair;
  return wish;
}

// A channel of events, and the ids whose events come over the channel.
class Events {
 public:
  explicit Events(std::shared_ptr<const ManagerCalls> calls) : calls_(std::move(calls)) {}
  ~Events() {
    for (rdma_cm_id* const id : ids_) calls_->destroy_id(id);
    if (channel_) calls_->destroy_event_channel(channel_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  const ManagerCalls& calls() const { return *calls_; }
  int fd() const { return channel_->fd; }

  Status Open() {
    errno = 0;
    channel_ = calls_->create_event_channel();
    if (!channel_) return ErrnoError(errno, "the RDMA connection manager cannot be reached");
    const int flags = fcntl(fd(), F_GETFL);
    if (flags < 0 || fcntl(fd(), F_SETFL, flags | O_NONBLOCK) != 0)
      return ErrnoError(errno, "preparing the RDMA connection manager failed");
    return Status::Ok();
  }

  Result<rdma_cm_id*> MakeId(const SocketAddress& at) {
    rdma_cm_id* id = nullptr;
    if (calls_->create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0)
      return ErrnoError(errno, "the RDMA connection manager makes no connections");
    ids_.push_back(id);
    sockaddr_storage storage = {};
    at.ToSockaddr(storage);
    if (calls_->bind_addr(id, reinterpret_cast<sockaddr*>(&storage)) != 0)
      return ErrnoError(errno, fmt::format("no RDMA device is at {}", at.HostText()));
    return id;
  }
  void Keep(rdma_cm_id* id) { ids_.push_back(id); }
  // Returns the next event, which the caller must acknowledge; null without an event.
  Result<rdma_cm_event*> Next() {
    rdma_cm_event* event = nullptr;
    if (calls_->get_cm_event(channel_, &event) == 0) return event;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return nullptr;
    return ErrnoError(errno, "the RDMA connection manager's events cannot be read");
  }

 private:
  const std::shared_ptr<const ManagerCalls> calls_;
  rdma_event_channel* channel_ = nullptr;
  std::vector<rdma_cm_id*> ids_;
};

// The part that both ends share: the joined queue pairs, and the first failure.
class Pairs : public ManagedPairs {
 public:
  Pairs(std::shared_ptr<const ManagerCalls> calls, const std::vector<uint32_t>& pairs)
      : events_(std::move(calls)) {
    for (const uint32_t number : pairs) pairs_.push_back({number, nullptr, false});
  }

  const ManagedAddress& address() const override { return address_; }
  int fd() const override { return events_.fd(); }
  bool joined() const override {
    return std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.joined; });
  }
  Status Progress() override {
    while (failure_.ok()) {
      Result<rdma_cm_event*> next = events_.Next();
      if (!next.ok()) {
        failure_ = std::move(next).status();
      } else if (!*next) {
        return Status::Ok();
      } else {
        failure_ = TakeEvent(**next);
      }
    }
    return failure_;
  }

 protected:
  struct Pair {
    uint32_t number = 0;
    rdma_cm_id* id = nullptr;
    bool joined = false;
  };

  // Handles and acknowledges an event that only the derived class's end gets.
  virtual Status GoOn(rdma_cm_event& event, Pair* pair) = 0;

  Pair* Find(const rdma_cm_id* id) {
    const auto found =
        std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.id == id; });
    return found == pairs_.end() ? nullptr : &*found;
  }
  Status Describe(const rdma_cm_event& event, const Pair& pair) const {
    const int error = event.status < 0 ? -event.status : 0;
    return RemoteError("joining queue pair {} failed: {}{}", pair.number,
                       events_.calls().event_str(event.event),
                       error != 0 ? fmt::format(" ({})", std::strerror(error)) : "");
  }

  ManagedAddress address_;
  Events events_;
  std::vector<Pair> pairs_;

 private:
  Status TakeEvent(rdma_cm_event& event) {
    Pair* const pair = Find(event.id);
    Status taken;
    switch (event.event) {
      case RDMA_CM_EVENT_ESTABLISHED:
        if (pair) pair->joined = true;
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        if (pair) taken = RemoteError("the other end's queue pair is gone");
        break;
      case RDMA_CM_EVENT_ADDR_ERROR:
      case RDMA_CM_EVENT_ROUTE_ERROR:
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_REJECTED:
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (pair) taken = Describe(event, *pair);
        break;
      default:
        return GoOn(event, pair);
    }
    events_.calls().ack_cm_event(&event);
    return taken;
  }

  Status failure_;
};

class AwaitedPairs final : public Pairs {
 public:
  using Pairs::Pairs;

  Status Begin() override { return InternalError("this end awaits queue pairs"); }
  Status Listen(const Gid& at) {
    TUTTI_TRY(events_.Open());
    address_.token = Random<decltype(address_.token)>();
    TUTTI_ASSIGN(rdma_cm_id* const listener, events_.MakeId(AddressOf(at, 0)));
    if (events_.calls().listen(listener, static_cast<int>(pairs_.size())) != 0)
      return ErrnoError(errno, fmt::format("awaiting queue pairs at {} failed", at.ToString()));
    address_.port = ntohs(events_.calls().get_src_port(listener));
    return Status::Ok();
  }

 private:
  // Takes a request with the right token. Requests without the token are refused and change
  // nothing.
  Status GoOn(rdma_cm_event& event, Pair* /*pair*/) override {
    const ManagerCalls& calls = events_.calls();
    rdma_cm_id* const id = event.id;
    const bool asks = event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
    Pair* const wanted = asks ? Named(event.param.conn) : nullptr;
    calls.ack_cm_event(&event);
    if (!asks) return Status::Ok();
    if (!wanted) {
      calls.reject(id, nullptr, 0);
      calls.destroy_id(id);
      return Status::Ok();
    }
    events_.Keep(id);
    wanted->id = id;
    rdma_conn_param wish = Wish(wanted->number);
    if (calls.accept(id, &wish) == 0) return Status::Ok();
    return ErrnoError(errno, fmt::format("joining queue pair {} failed", wanted->number));
  }

  Pair* Named(const rdma_conn_param& request) {
    Proof proof;
    if (!request.private_data || request.private_data_len < sizeof(proof)) return nullptr;
    std::memcpy(&proof, request.private_data, sizeof(proof));
    const size_t pair = ntohl(proof.pair);
    const bool holds =
        sodium_memcmp(proof.token.data(), address_.token.data(), proof.token.size()) == 0;
    return holds && pair < pairs_.size() && !pairs_[pair].id ? &pairs_[pair] : nullptr;
  }
};

class ConnectingPairs final : public Pairs {
 public:
  using Pairs::Pairs;

  Status Prepare(const Gid& from, const Gid& to, const ManagedAddress& address) {
    token_ = address.token;
    there_ = AddressOf(to, address.port);
    TUTTI_TRY(events_.Open());
    for (Pair& pair : pairs_) {
      TUTTI_ASSIGN(pair.id, events_.MakeId(AddressOf(from, 0)));
    }
    return Status::Ok();
  }
  // Begins to connect all queue pairs. Progress does the remaining steps.
  Status Begin() override {
    if (std::exchange(begun_, true)) return RemoteError("it awaits its queue pairs twice");
    sockaddr_storage storage = {};
    there_.ToSockaddr(storage);
    for (const Pair& pair : pairs_) {
      auto* const there = reinterpret_cast<sockaddr*>(&storage);
      if (events_.calls().resolve_addr(pair.id, nullptr, there, kResolveMs) != 0)
        return ErrnoError(errno, fmt::format("{} cannot be reached", there_.HostText()));
    }
    return Status::Ok();
  }

 private:
  Status GoOn(rdma_cm_event& event, Pair* pair) override {
    const ManagerCalls& calls = events_.calls();
    const rdma_cm_event_type type = event.event;
    calls.ack_cm_event(&event);
    if (!pair) return Status::Ok();
    int failed = 0;
    if (type == RDMA_CM_EVENT_ADDR_RESOLVED) {
      failed = calls.resolve_route(pair->id, kResolveMs);
    } else if (type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
      const Proof proof = {token_, htonl(static_cast<uint32_t>(pair - pairs_.data()))};
      rdma_conn_param wish = Wish(pair->number);
      wish.private_data = &proof;
      wish.private_data_len = sizeof(proof);
      failed = calls.connect(pair->id, &wish);
    }
    if (failed == 0) return Status::Ok();
    return ErrnoError(errno, fmt::format("joining queue pair {} failed", pair->number));
  }

  std::array<std::byte, 16> token_ = {};
  SocketAddress there_;
  bool begun_ = false;
};

class LoadedManager final : public RdmaManager {
 public:
  explicit LoadedManager(const ManagerCalls& calls)
      : calls_(std::make_shared<const ManagerCalls>(calls)) {}

  // An id that is bound to an address has the device behind the address's interface.
  Result<std::vector<Gid>> AddressesOf(std::string_view device, uint8_t port) const override {
    TUTTI_ASSIGN(const std::vector<NetworkInterface> interfaces, ListNetworkInterfaces());
    Events events(calls_);
    TUTTI_TRY(events.Open());
    std::vector<Gid> found;
    for (const NetworkInterface& interface : interfaces) {
      const SocketAddress& address = interface.address;
      if (address.IsLoopback() || address.IsLinkLocal()) continue;
      const Result<rdma_cm_id*> id = events.MakeId(address);
      if (!id.ok() || !(*id)->verbs || device != (*id)->verbs->device->name ||
          (*id)->port_num != port) {
        continue;
      }
      Gid gid = GidOf(address);
      gid.index = static_cast<uint32_t>(found.size());
      found.push_back(gid);
    }
    return found;
  }

  Result<std::unique_ptr<ManagedPairs>> Listen(const Gid& at,
                                               const std::vector<uint32_t>& pairs) const override {
    auto made = std::make_unique<AwaitedPairs>(calls_, pairs);
    TUTTI_TRY(made->Listen(at));
    return std::unique_ptr<ManagedPairs>(std::move(made));
  }

  Result<std::unique_ptr<ManagedPairs>> PrepareToConnect(
      const Gid& from, const Gid& to, const ManagedAddress& address,
      const std::vector<uint32_t>& pairs) const override {
    auto made = std::make_unique<ConnectingPairs>(calls_, pairs);
    TUTTI_TRY(made->Prepare(from, to, address));
    return std::unique_ptr<ManagedPairs>(std::move(made));
  }

 private:
  const std::shared_ptr<const ManagerCalls> calls_;
};

}  // namespace

Result<std::shared_ptr<const RdmaManager>> RdmaManager::Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    return SystemError("{} cannot be loaded: {}", file, why ? why : "no reason given");
  }
  ManagerCalls calls;
#define TUTTI_MANAGER_FIND(name, result, parameters)                                  \
  calls.name = reinterpret_cast<decltype(calls.name)>(dlsym(library, "rdma_" #name)); \
  if (!calls.name) return SystemError("{} lacks the function rdma_{}", file, #name);
  TUTTI_MANAGER_CALLS(TUTTI_MANAGER_FIND)
#undef TUTTI_MANAGER_FIND
  return std::shared_ptr<const RdmaManager>(std::make_shared<LoadedManager>(calls));
}

}  // namespace tutti
