#pragma once

// Carries out single operations of the kernels of hosts: checks what they name (operands.h), and
// copies, or begins a one-sided operation of the network. Has no state of its own but the
// staging words of values; any thread may call, one at a time for each queue.

#include <utility>

#include "base/status.h"
#include "gin/operands.h"
#include "transport/net/net.h"
#include "window/remote_windows.h"

namespace tutti {

class GinExecutor : public GinOperands {
 public:
  // `remote` is null where the LSA team is all ranks.
  GinExecutor(Parts parts, RemoteWindows* remote)
      : GinOperands(std::move(parts)), remote_(remote) {}

  // Returns the connection to the queue's rank; null where that is reached by load and store.
  RmaConnection* ConnectionOf(uint32_t queue) const;

  enum class Step { kDone, kUnderWay, kNoRoom };
  struct Begun {
    Step step = Step::kDone;
    NetRequest* request = nullptr;  // It belongs to the operation that is under way.
  };
  // Begins an operation. Fails where it names what is not there; then it has changed nothing.
  // REQUIRES: the caller is inside the queue's connection, if it has one.
  Result<Begun> Begin(const Position& at, const device::GinOperation& operation);
  // Returns how Begin would fail; ok where it would not, as far as that can be known.
  Status Check(const Position& at, const device::GinOperation& operation) const;

 private:
  using Place = RemoteWindows::Place;

  Begun Put(int peer, const device::GinOperation& operation, const Reached& reached);
  Result<Begun> PutOverNetwork(const Position& at, const device::GinOperation& operation,
                               const Reached& reached);
  // Keeps the value of an operation where the network can read it until it is done.
  Range StageValue(const Position& at, const device::GinOperation& operation) const;
  Result<Begun> Get(int peer, const device::GinOperation& operation, const Reached& reached);

  RemoteWindows* const remote_;
};

}  // namespace tutti
