#pragma once

// Net: the interface to a network that joins ranks of different hosts. Its shape is that of NCCL's
// network plugins, and sockets, verbs and external plugins all implement it.
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
// NetDevice::max_group buffers, and groups are filled in the order of their posting. Within a group
// a message goes to the buffer with the message's tag. A connection uses either the tag 0 only or
// tags other than 0 only. With the tag 0 every group has one buffer, and a sender may be granted
// buffers ahead.
//
// Set-up of a connection may wait, with a deadline and an abort flag. No later call waits.
//
// rma.h has one-sided operations, memory.h memory. net_contract.h tests every network's
// promises.
//
// Threads: Net, its listeners and their set-up calls may be used from any thread. A comm is used by
// one thread at a time (proxy connections ensure this), except Shutdown, which any thread may call.

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

// The number of requests for which any network has room on one connection. The number equals the
// slots of a FIFO (connection/fifo.h), since a chunk in flight occupies a slot at either end. A
// network may have room for more requests (NetDevice::max_requests).
inline constexpr uint64_t kNetWindow = 8;

// The most receives of a group in any network.
inline constexpr int kMaxNetGroup = 8;

// The longest message. The constant bounds lengths from the wire and is far above any slot's size.
inline constexpr size_t kMaxNetMessageBytes = size_t{1} << 30;

// Names a listener, for a rank that will connect to the listener. The handle is opaque, has a fixed
// size and is sent over the bootstrap.
using NetHandle = std::array<std::byte, 128>;

// Describes a way into the network and its abilities: an interface, or ports of a NIC.
struct NetDevice {
  std::string name;        // "eth0", "mlx5_0:1"
  std::string address;     // human-readable
  int64_t speed_mbps = 0;  // 0: unknown
  int64_t latency_ns =
      0;  // The time of one way through the device and its driver; 0 where it is unknown.
  uint64_t guid = 0;  // equal for all ports of one NIC; 0: unknown
  int port = 0;       // the NIC's port, from 1 on; 0: none
  // Folders in sysfs of the PCI devices of this device's ports, for the topology. The entry of a
  // port is empty where the port is on no PCI bus or its PCI device is unknown.
  std::vector<std::string> pci_paths = {};

  int max_group = 1;                   // the most receives in a group, up to kMaxNetGroup
  uint64_t max_requests = kNetWindow;  // the most requests in flight on one connection
  bool needs_registration = false;  // sends and receives must name the registration of their memory
  bool takes_gpu_memory = false;    // takes memory of GPUs by address
  bool takes_dmabuf = false;
  bool registers_memory = false;  // Net::Register works
  // Says that connections register memory of Net::Register for the price of a look-up.
  bool shares_registrations = false;
  // Says that received bytes may reach GPU memory after Test has reported them. Iflush tells when
  // the bytes have arrived.
  bool needs_flush = false;
};

// A message to be sent. The memory must stay unchanged until the request is done.
struct NetSend {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t tag = 0;     // selects a buffer of the receiver's group
  uint32_t op_tag = 0;  // handed to the receiver unchanged
  // the registration of the data, where the device needs registrations
  NetMemory* memory = nullptr;
};

// A buffer for one message. The network may write to bytes behind the message, up to `capacity`.
struct NetReceive {
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint32_t tag = 0;
  NetMemory* memory = nullptr;
};

// The length and the op_tag of a received message.
struct NetReceived {
  size_t bytes = 0;
  uint32_t op_tag = 0;
};

// An operation under way. The comm owns the request. The request is valid from the call that began
// it until Test has returned true; `received` stays valid until the next call that begins a
// request.
struct NetRequest {
  // The messages of a receive, one entry for each buffer of the group, in the order of the group.
  std::array<NetReceived, kMaxNetGroup> received = {};
};

// A descriptor to be watched in epoll, and the events to watch.
struct NetWait {
  int fd = -1;
  uint32_t events = 0;
};

// Tells the thread that drives a comm how to spend its time when the thread has nothing else to do.
enum class NetIdle : uint8_t {
  kWait,      // sleep until a descriptor is ready; without descriptors no outside event helps
  kProgress,  // call Progress again at once, because something has happened meanwhile
  kPoll,      // call Progress again after a pause, because the network has no descriptors
};

// Tells how soon a comm wants to be driven while nothing is under way on it. An error on one of its
// descriptors always calls for driving at once.
enum class NetCare : uint8_t {
  kNone,
  kSeldom,  // once a second, because the descriptors differ from those of AppendFds
  kSoon,    // soon, because of a reconnection or of news for the other end
};

// Names the devices over which the connections of a rank may run, besides the rank's own device.
struct NetSpread {
  std::vector<int> together;  // carry data at all times
  std::vector<int> spare;     // carry data while none of the other devices can be used
};

class NetComm {
 public:
  virtual ~NetComm() = default;

  // Makes memory known to the network. A network that takes memory without preparation returns a
  // NetMemory that only remembers the region. Fails with SystemError and advice when the system
  // refuses, for example at a limit on locked memory. Fails with InvalidUsage for a kind of memory
  // that the device does not take.
  virtual Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) = 0;

  // Returns whether the op_tag of a message reaches the receiver. Otherwise the receiver sees the
  // op_tag 0, and the caller must write its op_tag into the message.
  virtual bool CarriesOpTag() const { return true; }

  // Moves as much data as possible without a wait. Returns true when something moved. After a
  // failure every call fails in the same way.
  virtual Result<bool> Progress() = 0;
  // Returns true once the request is done and its buffers are free. The request then belongs to the
  // comm again. Requests may be tested in any order.
  virtual Result<bool> Test(NetRequest& request) = 0;
  // Says how to wait until Progress can achieve more, and appends the descriptors to wait for.
  // REQUIRES: Progress was called since the last request was begun.
  virtual NetIdle PrepareToWait(std::vector<NetWait>& waits) = 0;
  // Appends every descriptor that PrepareToWait may ever name.
  virtual void AppendFds(std::vector<int>& fds) const = 0;
  // Makes the next Progress notice a broken connection even while nothing is under way.
  virtual void LookClosely() {}
  virtual NetCare Care() const { return NetCare::kNone; }
  // Breaks the connection. Later calls fail at this end, and at the other end as soon as it has
  // something under way. May be called from any thread at any time; never waits.
  virtual void Shutdown() = 0;
  // Returns a human-readable name of the other end: "10.0.0.2:41000 over eth0".
  virtual std::string_view peer() const = 0;
};

class NetSendComm : public NetComm {
 public:
  // Begins to send a message. Returns null when the receiver has not granted a buffer with this tag
  // yet, or the comm has no room for a further request. REQUIRES: bytes <= kMaxNetMessageBytes.
  virtual Result<NetRequest*> Isend(const NetSend& message) = 0;
  // Returns whether the peer's host has all sent bytes, so that nothing is lost if this process
  // ends.
  virtual bool Drained() const = 0;
  // Returns how many of the sent bytes the peer's host does not have yet, in networks with such a
  // count. The count lets a wait for Drained tell a slow peer from a stuck peer.
  virtual size_t Undelivered() const { return Drained() ? 0 : 1; }
};

class NetRecvComm : public NetComm {
 public:
  // Returns whether the caller may grant buffers for messages before it knows of any message.
  virtual bool ReceivesAhead() const { return true; }
  // Begins to receive the next group of messages, one for each buffer, and grants the buffers to
  // the sender. Returns null without room for a further request. A message longer than its buffer
  // breaks the connection. REQUIRES: 1 <= group.size() <= max_group, and the tags of a group
  // differ.
  virtual Result<NetRequest*> Irecv(std::span<const NetReceive> group) = 0;
  // Begins to make the content of these buffers of GPU memory visible to the GPU, where the device
  // needs such a step (NetDevice::needs_flush). Returns null without room for a further request.
  virtual Result<NetRequest*> Iflush(std::span<const NetReceive> buffers) = 0;
  // Says whether the caller waits for further messages after the next message. A caller of
  // ExpectMore must heed Care as well. The network may then acknowledge several messages to the
  // sender at once, and may acknowledge a single message with the next call of Progress. Before the
  // first call of ExpectMore, the network has acknowledged every message by the time Test reports
  // it.
  virtual void ExpectMore(bool /*more*/) {}
};

// Accepts the connections of ranks that hold its handle. The destructor turns later ones away.
class NetListener {
 public:
  virtual ~NetListener() = default;
  virtual const NetHandle& handle() const = 0;
  // Returns the next connection. Connections wait in a bounded queue until Accept takes them. Only
  // one thread at a time may call Accept.
  virtual Result<std::unique_ptr<NetRecvComm>> Accept(const WaitLimits& limits) = 0;
};

class Net {
 public:
  virtual ~Net() = default;

  // Returns the name by which NCCL_NET selects this network: "Socket".
  virtual std::string_view name() const = 0;
  virtual const std::vector<NetDevice>& devices() const = 0;
  // Returns ok when this network can be used here, and otherwise the reason against it.
  virtual Status IsViable() const = 0;

  virtual Result<std::unique_ptr<NetListener>> Listen(int device) = 0;
  // Connects to a listener. The peer need not be in Accept, but its listener must live.
  virtual Result<std::unique_ptr<NetSendComm>> Connect(int device, const NetHandle& handle,
                                                       const WaitLimits& limits) = 0;
  // Registers memory with the device itself, or finds out that the device refuses the memory.
  // Connections can afterwards register any part of the memory without a refusal. REQUIRES:
  // NetDevice::registers_memory.
  virtual Result<std::unique_ptr<NetMemory>> Register(int /*device*/, const NetRegion& /*region*/) {
    return InternalError("the network {} registers memory with connections only", name());
  }
  // Names further devices over which connections of `device` may run, in a network that can spread
  // a connection over several devices. REQUIRES: nothing listens at `device` yet, and all devices
  // are among devices().
  virtual void Spread(int /*device*/, const NetSpread& /*others*/) {}
  // Returns the one-sided operations of this network, or null for a network without them.
  virtual NetRma* rma() { return nullptr; }
  // Returns the name of the cipher that hides data on their way, or "" where data travel as they
  // are. A rank without instructions for AES makes its peers use ChaCha20-Poly1305 with it.
  virtual std::string_view cipher() const { return ""; }
};

}  // namespace tutti
