#pragma once

// Net: the interface by which ranks of different hosts are joined. The shape is that of NCCL's
// network plugins, so that sockets, verbs and external plugins stand behind the same interface.
//
//   receiving rank                                    sending rank
//   Listen(device) → NetListener
//     handle() ──────────── bootstrap ──────────────▶ Connect(device, handle) → NetSendComm
//     Accept() → NetRecvComm
//
//   Irecv(buffers) ─── grants them ──────────────────▶ Isend(buffer): null until it is granted
//   Progress(), Test() ◀──────── message ───────────── Progress(), Test()
//
// A connection carries messages in one direction. Receives form groups of up to
// NetDevice::max_group buffers, filled in the order in which the groups were posted; within a group
// a message goes to the buffer that has its tag. A connection either has no use for tags (all are
// 0, and all groups are of one buffer, so that a sender may be granted buffers ahead), or has tags
// other than 0 only. Setting a connection up may wait (with a deadline and an abort flag); once it
// stands no call ever waits.
//
// Operations that the other end takes no part in are in rma.h; memory is in memory.h. What every
// network promises is tested by net_contract_test.h.
//
// Threads: Net, its listeners and their set-up calls may be used from any thread. A comm is used by
// one thread at a time (proxy connections see to that), except Shutdown, which may come from any.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sys/tcp.h"
#include "transport/net/memory.h"

namespace tutti {

class NetRma;

// The requests that any network has room for on one connection: as many as a FIFO has slots
// (connection/fifo.h), since a chunk in flight occupies one at either end. A network may have room
// for more (NetDevice::max_requests).
inline constexpr uint64_t kNetWindow = 8;

// The most receives of a group in any network.
inline constexpr int kMaxNetGroup = 8;

// No message is longer: a bound for what is read from the wire, far above any slot.
inline constexpr size_t kMaxNetMessageBytes = size_t{1} << 30;

// Names a listener so that a rank can connect to it: opaque, of fixed size, sent over the
// bootstrap.
using NetHandle = std::array<std::byte, 128>;

// Describes one way into the network, and what it can do: an interface, or ports of a NIC.
struct NetDevice {
  std::string name;        // "eth0", "mlx5_0:1"
  std::string address;     // It is as a person writes it.
  int64_t speed_mbps = 0;  // 0: unknown
  int64_t latency_ns =
      0;              // The device and its driver take so long one way; 0 where it is not known.
  uint64_t guid = 0;  // All ports of one NIC have the same; 0 where it has none.
  int port = 0;       // The NIC's port, from 1 on; 0 where it has none.
  // The folders in sysfs of the PCI devices that its ports belong to, for the topology; one of a
  // port that is on no PCI bus, or of which it is not known, is empty.
  std::vector<std::string> pci_paths = {};

  int max_group = 1;                   // the most receives in a group, up to kMaxNetGroup
  uint64_t max_requests = kNetWindow;  // So many can be in flight on one connection.
  bool needs_registration = false;  // sends and receives must say where their memory is registered
  bool takes_gpu_memory = false;    // It takes memory of GPUs by address.
  bool takes_dmabuf = false;
  bool registers_memory = false;  // Net::Register serves it.
  // What connections register within memory that Net::Register has taken costs a look-up.
  bool shares_registrations = false;
  // Received bytes may reach GPU memory after Test has reported them; Iflush says when they have.
  bool needs_flush = false;
};

// A message to be sent. The memory must stay unchanged until the request is done.
struct NetSend {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t tag = 0;             // chooses the buffer among those of the receiver's group
  uint32_t op_tag = 0;          // handed to the receiver unchanged
  NetMemory* memory = nullptr;  // the registration that the data lies in, where the device needs it
};

// A buffer for one message. Bytes behind the message, up to `capacity`, may be written to.
struct NetReceive {
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint32_t tag = 0;
  NetMemory* memory = nullptr;
};

// Says what came into a buffer.
struct NetReceived {
  size_t bytes = 0;
  uint32_t op_tag = 0;
};

// An operation under way. Belongs to the comm; valid from the call that began it until Test has
// returned true, and what it received until the next call that begins one.
struct NetRequest {
  // Receiving: one for each buffer of the group, in the order in which they were given.
  std::array<NetReceived, kMaxNetGroup> received = {};
};

// A descriptor to be watched in epoll, and for what.
struct NetWait {
  int fd = -1;
  uint32_t events = 0;
};

// Says what the thread that drives a comm does when it has nothing else to do.
enum class NetIdle : uint8_t {
  kWait,      // sleep until a descriptor is ready; none was named: no outside event could help
  kProgress,  // call Progress again at once, because something has happened meanwhile
  kPoll,      // call Progress again after a pause, because the network has no descriptors
};

// Says how soon a comm on which nothing is under way wants to be driven, besides when one of its
// descriptors reports an error.
enum class NetCare : uint8_t {
  kNone,
  kSeldom,  // Once a second, because its descriptors are not those that AppendFds named.
  kSoon,    // Soon, because it is being made again, or has something to say to the other end.
};

// Says by which devices the connections of a rank may go besides its own.
struct NetSpread {
  std::vector<int> together;  // These carry data at all times.
  std::vector<int> spare;     // These do so while none of the others can be used.
};

class NetComm {
 public:
  virtual ~NetComm() = default;

  // Makes memory known to the network. Networks that take memory as it is return a NetMemory that
  // only remembers the region. SystemError, with what to try, when the system refuses (a limit on
  // locked memory, say); InvalidUsage for a kind of memory that the device does not take.
  virtual Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) = 0;

  // Returns whether the op_tag of a message reaches the receiver. Where it does not, it is received
  // as 0, and the caller puts it into the message.
  virtual bool CarriesOpTag() const { return true; }

  // Moves what can be moved now. Returns true when something moved. After a failure every call
  // fails alike.
  virtual Result<bool> Progress() = 0;
  // Returns true once the request is done and its buffers free to use; the request then belongs to
  // the comm again. Requests may be tested in any order.
  virtual Result<bool> Test(NetRequest& request) = 0;
  // Says what to do until Progress can achieve more, and appends the descriptors to wait for.
  // REQUIRES: Progress was called since the last request was begun.
  virtual NetIdle PrepareToWait(std::vector<NetWait>& waits) = 0;
  // Appends every descriptor that PrepareToWait may ever name.
  virtual void AppendFds(std::vector<int>& fds) const = 0;
  // Makes the next Progress notice that the connection broke, though nothing is under way on it.
  virtual void LookClosely() {}
  virtual NetCare Care() const { return NetCare::kNone; }
  // Breaks the connection: later calls fail here, and at the other end as soon as it has something
  // under way. Any thread, any time, never waits.
  virtual void Shutdown() = 0;
  // Returns the other end, as a person writes it: "10.0.0.2:41000 over eth0".
  virtual std::string_view peer() const = 0;
};

class NetSendComm : public NetComm {
 public:
  // Begins to send a message. Null when the receiver has not granted a buffer with this tag yet, or
  // the comm has no room for a further request. REQUIRES: bytes <= kMaxNetMessageBytes.
  virtual Result<NetRequest*> Isend(const NetSend& message) = 0;
  // Returns whether the peer's host has all that was sent: then nothing is lost if this process
  // ends.
  virtual bool Drained() const = 0;
  // Returns how many of the bytes that were sent the peer's host does not have yet, for networks
  // that can count them; so that a wait for Drained can tell a slow peer from one that is stuck.
  virtual size_t Undelivered() const { return Drained() ? 0 : 1; }
};

class NetRecvComm : public NetComm {
 public:
  // Returns whether buffers may be granted before it is known that messages will come for them.
  virtual bool ReceivesAhead() const { return true; }
  // Begins to receive the next group of messages, one for each buffer, and grants the sender these
  // buffers. Null when the comm has no room for a further request. A message that is longer than
  // its buffer breaks the connection. REQUIRES: 1 <= group.size() <= max_group, and the tags of a
  // group differ.
  virtual Result<NetRequest*> Irecv(std::span<const NetReceive> group) = 0;
  // Begins to make what lies in these buffers of GPU memory visible to the GPU, where the device
  // needs that (NetDevice::needs_flush). Null when the comm has no room for a further request.
  virtual Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) = 0;
  // Says whether the caller waits for a message besides the next that comes; it heeds Care as well.
  // The network may then tell the sender of several messages at once, and of a single one with the
  // next call of Progress. Until this is called, it has told when Test says that one is there.
  virtual void ExpectMore(bool /*more*/) {}
};

// Waits for the connections of ranks that hold its handle. Destroying it turns away those that come
// later.
class NetListener {
 public:
  virtual ~NetListener() = default;
  virtual const NetHandle& handle() const = 0;
  // Returns the next connection; those that come before they are asked for wait in a bounded queue.
  // One thread at a time.
  virtual Result<std::unique_ptr<NetRecvComm>> Accept(const WaitLimits& limits) = 0;
};

class Net {
 public:
  virtual ~Net() = default;

  // Returns the name by which NCCL_NET selects this network: "Socket".
  virtual std::string_view name() const = 0;
  virtual const std::vector<NetDevice>& devices() const = 0;
  // Returns ok when this network can be used here, and else why not.
  virtual Status IsViable() const = 0;

  virtual Result<std::unique_ptr<NetListener>> Listen(int device) = 0;
  // Does not need the peer to be in Accept: it is enough that its listener lives.
  virtual Result<std::unique_ptr<NetSendComm>> Connect(int device, const NetHandle& handle,
                                                       const WaitLimits& limits) = 0;
  // Registers memory with the device itself, or finds out that it is refused: connections that
  // register what lies within are refused no more. REQUIRES: NetDevice::registers_memory.
  virtual Result<std::unique_ptr<NetMemory>> Register(int /*device*/, const NetRegion& /*region*/) {
    return InternalError("the network {} registers memory with connections only", name());
  }
  // Says by which other devices connections of `device` may go, in a network that can spread one
  // over several. REQUIRES: nothing listens at `device` yet, and all devices are among devices().
  virtual void Spread(int /*device*/, const NetSpread& /*others*/) {}
  // Returns the one-sided operations of this network, or null where it has none.
  virtual NetRma* rma() { return nullptr; }
};

}  // namespace tutti
