#pragma once

// One-sided operations over a network: put, put with signal, get, atomics. The other end only
// registers memory and takes no further part. Device-initiated networking and the one-sided calls
// of the API use this interface.
//
//   origin                                            target
//   NetRma::Connect(device, handle) → NetRmaComm      NetRmaListener::Accept() → NetRmaComm
//                 ◀───────── bootstrap ───────────    Register(region)->remote_key()
//   Iput(data, {key, offset}) ─── bytes ────────────▶ memory[offset]
//                  signal ────────────────────────── ▶ signal word += value
//
// A comm joins two ranks, and both ends may begin operations. The rules below hold whether the
// network's NIC or the target's process writes the bytes:
//
// - Operations of one comm may complete in any order, except for signals. A signal is added to its
//   word only after the bytes of its own put are visible at the target. A strong signal is added
//   only after all earlier puts and signals of the comm are visible at the target.
// - A reader at the target that loads a signal's value with acquire order also sees the bytes of
//   the signal's put.
// - Signals and atomics on one word of a target are atomic with respect to each other, over all
//   comms of one device of the target. Whether they are also atomic with additions by the target's
//   processors depends on the network (NetRma::AtomicWithProcessors). Where they are not, processors
//   must not add to a word to which the network adds.
// - Test reports a request as done when the request's local buffer may be used again. For a get or
//   an atomic this means that the bytes have come. Only Iflush says that puts and signals have
//   arrived.
// - An operation outside the range of its key, or with a key that the target has not given out,
//   changes nothing at the target and breaks the comm, with an error message at both ends.
//
// Threads: as in net.h. A target whose network needs the target's processor (sockets) serves its
// peers' operations within Progress.

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

// Changes the 64-bit word at `word`, aligned to 8 bytes, and fetches the word's previous value.
struct NetAtomic {
  enum class Kind : uint8_t {
    kAdd,             // adds `operand`
    kCompareAndSwap,  // stores `operand` if the word equals `compare`
  };

  NetRemote word;
  Kind kind = Kind::kAdd;
  uint64_t operand = 0;
  uint64_t compare = 0;
};

class NetRmaComm : public NetComm {
 public:
  // Every call returns null when the comm can take no further request now; the caller then calls
  // Progress and tries again. REQUIRES: bytes <= kMaxNetMessageBytes, and the ranges lie within
  // their registrations.

  // Begins to copy `bytes` bytes to the target, and to add `signal` there afterwards unless
  // `signal` is null. `bytes` may be 0 for a signal alone.
  virtual Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                                   const NetSignal* signal) = 0;
  // Begins to copy `bytes` bytes from the target to this rank.
  virtual Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) = 0;
  // Begins to change a word of the target and to copy the word's previous 8 bytes to `before`.
  virtual Result<NetRequest*> Iatomic(NetLocal before, const NetAtomic& atomic) = 0;
  // Begins a request that ends once all earlier operations of the comm are visible at the target.
  virtual Result<NetRequest*> Iflush() = 0;
};

class NetRmaListener {
 public:
  virtual ~NetRmaListener() = default;
  virtual const NetHandle& handle() const = 0;
  virtual Result<std::unique_ptr<NetRmaComm>> Accept(const WaitLimits& limits) = 0;
};

// The one-sided half of a network. Signals are made of atomic operations, hence a network whose
// devices have no atomics has no NetRma. The Net owns its NetRma.
class NetRma {
 public:
  virtual ~NetRma() = default;
  virtual Result<std::unique_ptr<NetRmaListener>> Listen(int device) = 0;
  // A rank may connect to a listener of its own. Does not wait for the listener's Accept.
  virtual Result<std::unique_ptr<NetRmaComm>> Connect(int device, const NetHandle& handle,
                                                      const WaitLimits& limits) = 0;
  // Returns whether signals and atomics on words of this host are atomic with additions by its
  // processors.
  virtual bool AtomicWithProcessors() const = 0;
};

}  // namespace tutti
