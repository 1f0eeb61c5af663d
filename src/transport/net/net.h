#pragma once

// Net: the interface by which ranks of different hosts are joined. The shape is that of NCCL's
// network plugins, so that verbs and external plugins can stand behind the same interface as TCP
// sockets do.
//
//   receiving rank                                    sending rank
//   Listen(device) → NetListener
//     handle() ──────────── bootstrap ──────────────▶ Connect(device, handle) → NetSendComm
//     Accept() → NetRecvComm
//
//   Irecv(slot) ─── grants the slot ─────────────────▶ Isend(chunk): null until a slot is granted
//   Progress(), Test() ◀──────── chunk ─────────────── Progress(), Test()
//
// A connection carries chunks in one direction, in order. Setting one up may wait (with a deadline
// and an abort flag); once it stands no call ever waits.
//
// Threads: Net, its listeners and their set-up calls may be used from any thread. A comm is used by
// one thread at a time (proxy connections see to that), except Shutdown, which may come from any.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sys/tcp.h"

namespace tutti {

// The slots that a receiver grants by opening a connection, and the most requests in flight on one:
// as many as a FIFO has slots (connection/fifo.h), since a chunk in flight occupies one at either
// end.
inline constexpr uint64_t kNetWindow = 8;

// No chunk is longer: a bound for what is read from the wire, far above any slot.
inline constexpr size_t kMaxNetChunkBytes = size_t{1} << 30;

// Names a listener so that a rank can connect to it: opaque, of fixed size, sent over the
// bootstrap.
using NetHandle = std::array<std::byte, 128>;

// One way into the network: an interface, later a NIC.
struct NetDevice {
  std::string name;        // "eth0"
  std::string address;     // as a person writes it
  int64_t speed_mbps = 0;  // 0: unknown
};

// A chunk on its way. Belongs to the comm; valid from Isend or Irecv until Test has returned true,
// and its numbers until the next Isend or Irecv.
struct NetRequest {
  size_t bytes = 0;     // receiving: what came
  uint32_t op_tag = 0;  // passed through unchanged
};

// A descriptor to be watched in epoll, and for what.
struct NetWait {
  int fd = -1;
  uint32_t events = 0;
};

class NetComm {
 public:
  virtual ~NetComm() = default;

  // Moves what can be moved now. Returns true when something moved. After a failure every call
  // fails alike.
  virtual Result<bool> Progress() = 0;
  // Returns true once the request is done and its buffer free to use; the request then belongs to
  // the comm again. Requests are done in the order of their beginning and must be tested in that
  // order.
  virtual Result<bool> Test(NetRequest& request) = 0;
  // Appends what must happen before Progress can achieve more. Nothing is appended when no outside
  // event could help.
  virtual void AppendWaits(std::vector<NetWait>& waits) const = 0;
  // Appends every descriptor that AppendWaits may ever name.
  virtual void AppendFds(std::vector<int>& fds) const = 0;
  // Breaks the connection: both ends' later calls fail. Any thread, any time, never waits.
  virtual void Shutdown() = 0;
  // Returns the other end, as a person writes it: "10.0.0.2:41000 over eth0".
  virtual std::string_view peer() const = 0;
};

class NetSendComm : public NetComm {
 public:
  // Begins to send `bytes` bytes, which must stay unchanged until the request is done. Null when
  // the receiver has granted no slot yet, or kNetWindow requests are in flight. REQUIRES: bytes <=
  // kMaxNetChunkBytes.
  virtual Result<NetRequest*> Isend(const std::byte* data, size_t bytes, uint32_t op_tag) = 0;
  // Returns whether the peer's host has all that was sent: then nothing is lost if this process
  // ends.
  virtual bool Drained() const = 0;
};

class NetRecvComm : public NetComm {
 public:
  // Begins to receive the next chunk, of at most `capacity` bytes, and grants the sender a slot for
  // it. Null when kNetWindow requests are in flight. A longer chunk breaks the connection.
  virtual Result<NetRequest*> Irecv(std::byte* data, size_t capacity) = 0;
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
};

}  // namespace tutti
