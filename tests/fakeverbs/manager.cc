// The stand-in for librdmacm. What a TCP connection carries elsewhere, the request for a connection
// and its answer, goes over a Unix socket here, which a process that awaits queue pairs has at its
// address and port; the bytes of queue pairs that are joined go from NIC to NIC as all others do.
//
// A channel's descriptor is an epoll set of such sockets and of an eventfd that is readable while
// events wait. What has come is looked at when an event is asked for, so that no thread is needed.

#include "state.h"

#if __has_include(<rdma/rdma_cma.h>)

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "queue_pairs.h"

namespace fakeverbs {
namespace {

constexpr size_t kMostPrivate = 255;
constexpr int kStrangerWaitsMs = 20'000;

// What the two ends of a connection tell each other.
struct Greeting {
  bool accepts = true;
  uint32_t pair = 0;
  std::array<uint8_t, 16> gid = {};
  uint8_t private_bytes = 0;
  std::array<std::byte, kMostPrivate> private_data = {};
};

enum class Step : uint8_t {
  kNew,
  kBound,
  kListening,
  kResolved,   // The other end's address is known.
  kRouted,     // So is the way there.
  kAsking,     // It has asked for a connection.
  kArriving,   // Somebody has connected and not said what for.
  kRequested,  // It has a request to accept or to reject.
  kJoined,
  kEnded,
};

}  // namespace

struct ManagedChannel;

struct ManagedId {
  rdma_cm_id id = {};  // first: a pointer to it is one to this
  ibv_context context = {};
  ManagedChannel* channel = nullptr;
  ManagedId* listener = nullptr;  // for those that it has not handed out yet
  Device* device = nullptr;
  std::string address;
  uint16_t port = 0;
  Step step = Step::kNew;
  std::string there;  // the name of the other end's socket
  int fd = -1;
  Greeting request;
  uint32_t pair = 0;  // the key of the queue pair
  int unacknowledged = 0;
};

struct ManagedEvent {
  rdma_cm_event event = {};  // first
  Greeting said;
};

struct ManagedChannel {
  rdma_event_channel channel = {};  // first
  int wake = -1;
  std::deque<std::unique_ptr<ManagedEvent>> events;
};

struct ManagerState {
  std::map<ManagedChannel*, std::unique_ptr<ManagedChannel>> channels;
  std::map<ManagedId*, std::unique_ptr<ManagedId>> ids;
  std::vector<std::unique_ptr<ManagedEvent>> taken;
  std::vector<ManagerFault> faults;
  uint16_t next_port = 0;
  uint16_t awaited_port = 0;
};

namespace {

// All of these REQUIRE that the state's lock is held.

ManagerState& TheManager() {
  State& s = TheState();
  if (!s.manager) {
    s.manager = std::make_shared<ManagerState>();
    s.manager->next_port = static_cast<uint16_t>(s.random());
  }
  return *s.manager;
}

ManagedId& Of(rdma_cm_id* id) { return *reinterpret_cast<ManagedId*>(id); }
ManagedChannel& Of(rdma_event_channel* channel) {
  return *reinterpret_cast<ManagedChannel*>(channel);
}

int Fails(int error) {
  errno = error;
  return -1;
}

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

uint16_t PortIn(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in*>(address)->sin_port
                   : reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
}

std::string SocketName(const std::string& address, uint16_t port) {
  return "tutti-fake-manager." + std::to_string(getuid()) + "." + address + "." +
         std::to_string(port);
}

sockaddr_un SocketAddress(const std::string& name, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());  // an abstract name begins with a zero
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

void Watch(const ManagedId& id) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = const_cast<ManagedId*>(&id);
  if (epoll_ctl(id.channel->channel.fd, EPOLL_CTL_ADD, id.fd, &event) != 0)
    Violation("the connection manager cannot watch a socket");
}

void CloseSocket(ManagedId& id) {
  if (id.fd < 0) return;
  epoll_ctl(id.channel->channel.fd, EPOLL_CTL_DEL, id.fd, nullptr);
  close(id.fd);
  id.fd = -1;
}

ManagedEvent& Tell(ManagedId& id, rdma_cm_event_type type, int status = 0) {
  ManagedChannel& channel = *id.channel;
  auto event = std::make_unique<ManagedEvent>();
  event->event.id = &id.id;
  event->event.event = type;
  event->event.status = status;
  channel.events.push_back(std::move(event));
  const uint64_t one = 1;
  if (write(channel.wake, &one, sizeof(one)) < 0) Violation("an event of the manager is lost");
  return *channel.events.back();
}

// Returns what a test wants to become of a step: the errno value of its failure, or 0 for no event
// at all; nothing where it is to succeed.
std::optional<int> TakeFault(const char* step) {
  for (ManagerFault& fault : TheManager().faults) {
    if (fault.step != step || fault.times == 0 || fault.skip-- > 0) continue;
    fault.skip = 0;
    --fault.times;
    return fault.error;
  }
  return std::nullopt;
}

// Tells what has become of a step.
void TellStep(ManagedId& id, const char* step, rdma_cm_event_type done, rdma_cm_event_type failed) {
  const std::optional<int> fault = TakeFault(step);
  if (!fault) {
    Tell(id, done);
  } else if (*fault != 0) {
    Tell(id, failed, -*fault);
  }
}

// Returns the queue pair of this number on the id's device that can be joined, or null.
Qp* PairToJoin(const ManagedId& id, uint32_t number) {
  for (const auto& entry : TheState().pairs) {
    Qp& pair = *entry.second;
    const bool is_it = pair.qp.qp_num == number && pair.context->device == id.device;
    if (is_it && pair.qp.state == IBV_QPS_INIT && pair.managed == nullptr) return &pair;
  }
  return nullptr;
}

Greeting GreetingOf(const Qp& pair) {
  Greeting greeting;
  greeting.pair = pair.qp.qp_num;
  greeting.gid = GidOf(PortOf(pair));
  return greeting;
}

void Join(ManagedId& id, Qp& pair, const Greeting& other) {
  pair.remote = other.pair;
  pair.expected_packet = pair.next_packet = 0;
  pair.route = {};
  pair.route.is_global = 1;
  memcpy(pair.route.grh.dgid.raw, other.gid.data(), other.gid.size());
  pair.qp.state = IBV_QPS_RTS;
  pair.managed = &id;
  id.pair = pair.key;
  id.step = Step::kJoined;
}

Qp* JoinedPair(const ManagedId& id) {
  const auto found = TheState().pairs.find(id.pair);
  return id.pair != 0 && found != TheState().pairs.end() && found->second->managed == &id
             ? found->second.get()
             : nullptr;
}

// The connection has ended: so has its queue pair.
void End(ManagedId& id) {
  CloseSocket(id);
  id.step = Step::kEnded;
  Qp* const pair = JoinedPair(id);
  if (!pair) return;
  pair->managed = nullptr;
  if (pair->qp.state == IBV_QPS_RTS) Fail(*pair);
}

void Erase(ManagedId& id) {
  std::erase_if(id.channel->events, [&](const auto& each) { return each->event.id == &id.id; });
  CloseSocket(id);
  TheManager().ids.erase(&id);
}

void Arrive(ManagedId& listener) {
  const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  auto made = std::make_unique<ManagedId>();
  ManagedId& id = *made;
  id.channel = listener.channel;
  id.listener = &listener;
  id.device = listener.device;
  id.address = listener.address;
  id.port = listener.port;
  id.context = listener.context;
  id.id.verbs = &id.context;
  id.id.channel = &listener.channel->channel;
  id.id.port_num = listener.id.port_num;
  id.step = Step::kArriving;
  id.fd = fd;
  TheManager().ids[&id] = std::move(made);
  Watch(id);
}

// Takes what has come over the socket of an id.
void Serve(ManagedId& id) {
  if (id.step == Step::kListening) return Arrive(id);
  Greeting greeting;
  const ssize_t got = recv(id.fd, &greeting, sizeof(greeting), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got == sizeof(greeting) && id.step == Step::kArriving) {
    id.request = greeting;
    id.step = Step::kRequested;
    ManagedEvent& event = Tell(id, RDMA_CM_EVENT_CONNECT_REQUEST);
    event.said = greeting;
    event.event.param.conn.private_data = event.said.private_data.data();
    event.event.param.conn.private_data_len = greeting.private_bytes;
    event.event.param.conn.qp_num = greeting.pair;
    return;
  }
  if (got == sizeof(greeting) && id.step == Step::kAsking && greeting.accepts) {
    const auto pair = TheState().pairs.find(id.pair);
    if (pair != TheState().pairs.end() && pair->second->qp.state == IBV_QPS_INIT) {
      Join(id, *pair->second, greeting);
      Tell(id, RDMA_CM_EVENT_ESTABLISHED);
      return;
    }
  }
  const Step before = id.step;
  End(id);
  if (before == Step::kArriving) return Erase(id);
  if (before == Step::kAsking) {
    Tell(id, RDMA_CM_EVENT_REJECTED, got > 0 ? -ECONNREFUSED : -ECONNRESET);
  } else if (before == Step::kJoined) {
    Tell(id, RDMA_CM_EVENT_DISCONNECTED);
  }
}

void Serve(ManagedChannel& channel) {
  std::array<epoll_event, 16> ready;
  const int count = epoll_wait(channel.channel.fd, ready.data(), ready.size(), 0);
  for (int i = 0; i < count; ++i) {
    auto* const id = static_cast<ManagedId*>(ready[static_cast<size_t>(i)].data.ptr);
    // One that an earlier turn has erased is there no more.
    if (id && TheManager().ids.count(id) != 0) Serve(*id);
  }
}

}  // namespace

std::string InterfaceAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* each = all; each && found.empty(); each = each->ifa_next) {
    const bool usable = each->ifa_addr && each->ifa_addr->sa_family == AF_INET &&
                        (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (usable) found = TextOf(each->ifa_addr);
  }
  freeifaddrs(all);
  return found;
}

void FailManager(const ManagerFault& fault) {
  const Lock lock(TheState().mutex);
  TheManager().faults.push_back(fault);
}

void CutConnection(uint32_t queue_pair) {
  State& s = TheState();
  const Lock lock(s.mutex);
  for (const auto& entry : s.pairs) {
    const Qp& pair = *entry.second;
    if (pair.qp.qp_num != queue_pair || !pair.managed) continue;
    shutdown(pair.managed->fd, SHUT_RDWR);
    return;
  }
  Violation("a test cuts the connection of a queue pair that has none");
}

void RemoveDevice(const std::string& device) {
  const Lock lock(TheState().mutex);
  for (const auto& entry : TheManager().ids) {
    ManagedId& id = *entry.second;
    if (!id.device || id.device->spec.name != device || id.listener) continue;
    End(id);
    Tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL);
  }
}

uint16_t AwaitedPort() {
  const Lock lock(TheState().mutex);
  return TheManager().awaited_port;
}

bool StrangerIsRefused(uint16_t port, const std::string& secret) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = SocketAddress(SocketName(InterfaceAddress(), port), length);
  Greeting greeting;
  greeting.private_bytes = static_cast<uint8_t>(std::min(secret.size(), kMostPrivate));
  memcpy(greeting.private_data.data(), secret.data(), greeting.private_bytes);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      send(fd, &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
    Violation("nothing awaits queue pairs at this port");
  }
  pollfd entry = {fd, POLLIN, 0};
  Greeting answer;
  const bool accepted = poll(&entry, 1, kStrangerWaitsMs) == 1 &&
                        recv(fd, &answer, sizeof(answer), 0) == sizeof(answer) && answer.accepts;
  close(fd);
  return entry.revents != 0 && !accepted;
}

void LeaveManaged(Qp& pair) {
  if (!pair.managed) return;
  if (pair.managed->fd >= 0) shutdown(pair.managed->fd, SHUT_RDWR);
  pair.managed = nullptr;
}

void ResetManager() {
  if (TheState().manager) TheManager().faults.clear();
}

int ManagedObjectsAlive() {
  const std::shared_ptr<ManagerState>& manager = TheState().manager;
  return manager ? static_cast<int>(manager->channels.size() + manager->ids.size()) : 0;
}

void CloseManagerInChild(ManagerState& manager) {
  for (const auto& entry : manager.ids) close(entry.second->fd);
  for (const auto& entry : manager.channels) {
    close(entry.second->wake);
    close(entry.second->channel.fd);
  }
}

}  // namespace fakeverbs

using namespace fakeverbs;  // NOLINT: all of it is for these functions

extern "C" {

rdma_event_channel* rdma_create_event_channel(void) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_create_event_channel")) {
    errno = error;
    return nullptr;
  }
  auto made = std::make_unique<ManagedChannel>();
  ManagedChannel& channel = *made;
  channel.channel.fd = epoll_create1(EPOLL_CLOEXEC);
  channel.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event = {};
  event.events = EPOLLIN;
  if (epoll_ctl(channel.channel.fd, EPOLL_CTL_ADD, channel.wake, &event) != 0)
    Violation("the connection manager cannot watch its events");
  TheManager().channels[&channel] = std::move(made);
  return &channel.channel;
}

void rdma_destroy_event_channel(rdma_event_channel* which) {
  State& s = TheState();
  const Lock lock(s.mutex);
  ManagedChannel& channel = Of(which);
  for (const auto& entry : TheManager().ids) {
    if (entry.second->channel == &channel) Violation("a channel of events goes before its ids");
  }
  close(channel.wake);
  close(channel.channel.fd);
  TheManager().channels.erase(&channel);
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space space) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_create_id")) return Fails(error);
  if (space != RDMA_PS_TCP) return Fails(EINVAL);
  auto made = std::make_unique<ManagedId>();
  ManagedId& mine = *made;
  mine.channel = &Of(channel);
  mine.id.channel = channel;
  mine.id.context = context;
  mine.id.ps = space;
  *id = &mine.id;
  TheManager().ids[&mine] = std::move(made);
  return 0;
}

// As librdmacm does, which waits until the events that were taken have been acknowledged.
int rdma_destroy_id(rdma_cm_id* which) {
  State& s = TheState();
  const Lock lock(s.mutex);
  ManagedId& id = Of(which);
  if (id.unacknowledged > 0) Violation("an id is destroyed, and an event of it not acknowledged");
  std::vector<ManagedId*> arriving;
  for (const auto& entry : TheManager().ids) {
    if (entry.second->listener == &id) arriving.push_back(entry.first);
  }
  for (ManagedId* const each : arriving) Erase(*each);
  End(id);
  Erase(id);
  return 0;
}

int rdma_bind_addr(rdma_cm_id* which, sockaddr* address) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_bind_addr")) return Fails(error);
  ManagedId& id = Of(which);
  const std::string text = TextOf(address);
  for (const auto& device : s.devices) {
    const auto& ports = device->spec.ports;
    const auto port = std::find_if(ports.begin(), ports.end(),
                                   [&](const PortSpec& each) { return each.address == text; });
    if (port == ports.end()) continue;
    id.device = device.get();
    id.address = text;
    id.port = PortIn(address);
    id.context.device = &device->device;
    id.id.verbs = &id.context;
    id.id.port_num = static_cast<uint8_t>(port - ports.begin() + 1);
    id.step = Step::kBound;
    return 0;
  }
  return Fails(ENODEV);
}

int rdma_listen(rdma_cm_id* which, int) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_listen")) return Fails(error);
  ManagedId& id = Of(which);
  if (id.step != Step::kBound) return Fails(EINVAL);
  id.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool any = id.port == 0;
  for (int tried = 0; tried < (any ? 1 << 16 : 1); ++tried) {
    if (any) id.port = std::max<uint16_t>(1, ++TheManager().next_port);
    socklen_t length = 0;
    const sockaddr_un address = SocketAddress(SocketName(id.address, id.port), length);
    if (bind(id.fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) continue;
    if (listen(id.fd, SOMAXCONN) != 0) break;
    id.step = Step::kListening;
    TheManager().awaited_port = id.port;
    Watch(id);
    return 0;
  }
  close(id.fd);
  id.fd = -1;
  return Fails(EADDRINUSE);
}

__be16 rdma_get_src_port(rdma_cm_id* which) {
  const Lock lock(TheState().mutex);
  return htons(Of(which).port);
}

int rdma_resolve_addr(rdma_cm_id* which, sockaddr*, sockaddr* there, int) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_resolve_addr")) return Fails(error);
  ManagedId& id = Of(which);
  if (id.step != Step::kBound) return Fails(EINVAL);
  id.there = SocketName(TextOf(there), PortIn(there));
  id.step = Step::kResolved;
  TellStep(id, "address", RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR);
  return 0;
}

int rdma_resolve_route(rdma_cm_id* which, int) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_resolve_route")) return Fails(error);
  ManagedId& id = Of(which);
  if (id.step != Step::kResolved) return Fails(EINVAL);
  id.step = Step::kRouted;
  TellStep(id, "route", RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR);
  return 0;
}

// As siw's does, connects within the call.
int rdma_connect(rdma_cm_id* which, rdma_conn_param* wish) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_connect")) return Fails(error);
  ManagedId& id = Of(which);
  Qp* const pair = PairToJoin(id, wish->qp_num);
  if (id.step != Step::kRouted || !pair) return Fails(EINVAL);
  id.step = Step::kAsking;
  if (const std::optional<int> fault = TakeFault("connect")) {
    if (*fault != 0) Tell(id, RDMA_CM_EVENT_UNREACHABLE, -*fault);
    return 0;
  }
  id.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = 0;
  const sockaddr_un address = SocketAddress(id.there, length);
  Greeting greeting = GreetingOf(*pair);
  greeting.private_bytes = wish->private_data_len;
  memcpy(greeting.private_data.data(), wish->private_data, wish->private_data_len);
  if (connect(id.fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      send(id.fd, &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
    close(id.fd);
    id.fd = -1;
    return Fails(ECONNREFUSED);
  }
  id.pair = pair->key;
  Watch(id);
  return 0;
}

int rdma_accept(rdma_cm_id* which, rdma_conn_param* wish) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_accept")) return Fails(error);
  ManagedId& id = Of(which);
  Qp* const pair = PairToJoin(id, wish->qp_num);
  if (id.step != Step::kRequested || !pair) return Fails(EINVAL);
  if (const std::optional<int> fault = TakeFault("accept")) {
    if (*fault != 0) Tell(id, RDMA_CM_EVENT_CONNECT_ERROR, -*fault);
    return 0;
  }
  Join(id, *pair, id.request);
  pair->silent = true;
  const Greeting greeting = GreetingOf(*pair);
  // One that has gone meanwhile is noticed when the socket is looked at.
  [[maybe_unused]] const ssize_t sent = send(id.fd, &greeting, sizeof(greeting), MSG_NOSIGNAL);
  Tell(id, RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

int rdma_reject(rdma_cm_id* which, const void*, uint8_t) {
  State& s = TheState();
  const Lock lock(s.mutex);
  ManagedId& id = Of(which);
  if (id.step != Step::kRequested) return Fails(EINVAL);
  Greeting greeting;
  greeting.accepts = false;
  [[maybe_unused]] const ssize_t sent = send(id.fd, &greeting, sizeof(greeting), MSG_NOSIGNAL);
  End(id);
  return 0;
}

// Never waits, as with a descriptor that does not block.
int rdma_get_cm_event(rdma_event_channel* which, rdma_cm_event** event) {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (const int error = Refusal("rdma_get_cm_event")) return Fails(error);
  ManagedChannel& channel = Of(which);
  if ((fcntl(which->fd, F_GETFL) & O_NONBLOCK) == 0) Violation("events are awaited by blocking");
  Serve(channel);
  if (channel.events.empty()) {
    uint64_t times = 0;
    [[maybe_unused]] const ssize_t emptied = read(channel.wake, &times, sizeof(times));
    return Fails(EAGAIN);
  }
  std::unique_ptr<ManagedEvent> first = std::move(channel.events.front());
  channel.events.pop_front();
  ManagedId& id = Of(first->event.id);
  ++id.unacknowledged;
  id.listener = nullptr;  // It is the caller's now.
  *event = &first->event;
  TheManager().taken.push_back(std::move(first));
  return 0;
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  State& s = TheState();
  const Lock lock(s.mutex);
  --Of(event->id).unacknowledged;
  std::erase_if(TheManager().taken, [&](const auto& each) { return &each->event == event; });
  return 0;
}

const char* rdma_event_str(rdma_cm_event_type type) {
  switch (type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return "address resolution error";
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return "route resolution error";
    case RDMA_CM_EVENT_CONNECT_ERROR:
      return "connection error";
    case RDMA_CM_EVENT_UNREACHABLE:
      return "unreachable";
    case RDMA_CM_EVENT_REJECTED:
      return "rejected";
    case RDMA_CM_EVENT_DISCONNECTED:
      return "disconnected";
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return "device removal";
    default:
      return "some event";
  }
}

}  // extern "C"

#else

namespace fakeverbs {

std::string InterfaceAddress() { return ""; }
void FailManager(const ManagerFault&) {}
void CutConnection(uint32_t) {}
void RemoveDevice(const std::string&) {}
uint16_t AwaitedPort() { return 0; }
bool StrangerIsRefused(uint16_t, const std::string&) { return false; }
void LeaveManaged(Qp&) {}
void ResetManager() {}
int ManagedObjectsAlive() { return 0; }
void CloseManagerInChild(ManagerState&) {}

}  // namespace fakeverbs

#endif
