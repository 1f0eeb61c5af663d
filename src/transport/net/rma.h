#pragma once

// One-sided operations over a network: put, put with signal, get, atomics. The other end takes
// no part in them but for registering the memory. Device-initiated networking and the one-sided
// calls of the API stand on this interface.
//
//   origin                                            target
//   NetRma::Connect(device, handle) → NetRmaComm      NetRmaListener::Accept() → NetRmaComm
//                 ◀───────── bootstrap ───────────    Register(region)->remote_key()
//   Iput(data, {key, offset}) ─── bytes ────────────▶ memory[offset]
//                  signal ────────────────────────── ▶ signal word += value
//
// A comm joins two ranks; both ends may begin operations. Whether the network's NIC or the
// target's process writes the bytes, the rules are the same:
//
// - Operations of one comm may complete in any order, except that a signal is added to its word
//   only after the bytes of its own put are visible at the target, and a strong signal only after
//   all puts and signals that were begun earlier on the comm are visible there.
// - A reader at the target that has loaded a signal's value with acquire order sees those bytes.
// - Signals and atomics that reach the same word of a target, over whatever comms of one device
//   there, are one step each to one another.
// - A request that Test has reported as done says that its local buffer may be used again (for a
//   get or an atomic: that the bytes have come). Only Iflush says that puts and signals have arrived.
// - An operation that reaches outside the range of its key, or names a key that the target has not
//   given out, changes nothing there and breaks the comm, with a sentence at both ends.
//
// Threads: as net.h. A target whose network needs its processor (sockets) serves the operations of
// its peers within Progress.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "transport/net/memory.h"
#include "transport/net/net.h"

namespace tutti {

// The part of a local registration that an operation reads or writes.
struct NetLocal {
  NetMemory* memory = nullptr;
  uint64_t offset = 0;
};

// The part of the target's registration that an operation reaches.
struct NetRemote {
  NetRemoteKey key = {};
  uint64_t offset = 0;
};

// Adds `value` to the 64-bit word at `word`, which is aligned to 8 bytes.
struct NetSignal {
  NetRemote word;
  uint64_t value = 0;
  bool strong = false;
};

// Changes the 64-bit word at `word`, which is aligned to 8 bytes, and fetches what it was before.
struct NetAtomic {
  enum class Kind : uint8_t {
    kAdd,             // adds `operand`
    kCompareAndSwap,  // puts `operand` in its place, if it is `compare`
  };

  NetRemote word;
  Kind kind = Kind::kAdd;
  uint64_t operand = 0;
  uint64_t compare = 0;
};

class NetRmaComm : public NetComm {
 public:
  // Every call returns null when the comm can take no further request now: call Progress and try
  // again. REQUIRES: bytes <= kMaxNetMessageBytes, and the ranges lie within their registrations.

  // Begins to copy `bytes` bytes to the target, and to add `signal` there afterwards unless it is
  // null. `bytes` may be 0: a signal alone.
  virtual Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                                   const NetSignal* signal) = 0;
  // Begins to copy `bytes` bytes of the target here.
  virtual Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) = 0;
  // Begins to change a word of the target and to copy here, into 8 bytes, what it was before.
  virtual Result<NetRequest*> Iatomic(NetLocal before, const NetAtomic& atomic) = 0;
  // Is done once all that was begun before it on this comm is visible at the target.
  virtual Result<NetRequest*> Iflush() = 0;
};

class NetRmaListener {
 public:
  virtual ~NetRmaListener() = default;
  virtual const NetHandle& handle() const = 0;
  virtual Result<std::unique_ptr<NetRmaComm>> Accept(const WaitLimits& limits) = 0;
};

// The one-sided half of a network, atomic operations among it: signals are made of them, so that a
// network whose devices have none has no such half. Belongs to its Net.
class NetRma {
 public:
  virtual ~NetRma() = default;
  virtual Result<std::unique_ptr<NetRmaListener>> Listen(int device) = 0;
  virtual Result<std::unique_ptr<NetRmaComm>> Connect(int device, const NetHandle& handle,
                                                      const WaitLimits& limits) = 0;
};

}  // namespace tutti
