#pragma once

// Carries out single operations of the kernels of hosts: checks the operands (operands.h), and
// copies, or begins a one-sided operation of the network. Has no state but the staging words of
// values. Any thread may call, one at a time for each queue.

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

  // Returns the connection to the queue's rank, or null where there is none. A rank of the LSA team
  // has a connection only for the operations that need the network.
  RmaConnection* ConnectionOf(uint32_t queue) const;
  // Returns whether an operation needs the network: its rank is outside the LSA team, or a signal
  // lies in a window whose words processors must not change (RemoteWindows::ProcessorsAdd).
  bool NeedsNetwork(uint32_t queue, const device::GinOperation& operation) const;

  // Returns whether a flush tells the end of operations of the network toward a rank of the team. A
  // plugin may have no flush, and then promises no order.
  bool ConfirmsInTeam(uint32_t queue) const;

  enum class Step { kDone, kUnderWay, kNoRoom };
  struct Begun {
    Step step = Step::kDone;
    NetRequest* request = nullptr;  // of the operation under way
  };
  // Begins an operation. Fails, with nothing changed, where the operands are invalid. REQUIRES: the
  // caller is inside the queue's connection, if the queue has a connection.
  Result<Begun> Begin(const Position& at, const device::GinOperation& operation);
  // Returns the error that Begin would return, as far as it is known in advance.
  Status Check(const Position& at, const device::GinOperation& operation) const;

 private:
  using Place = RemoteWindows::Place;

  Result<Reached> FindAll(const Position& at, const device::GinOperation& operation) const;
  Begun Put(int peer, const device::GinOperation& operation, const Reached& reached);
  Result<Begun> PutOverNetwork(const Position& at, const device::GinOperation& operation,
                               const Reached& reached);
  // Stores the value of an operation in memory that the network can read until the operation is
  // done.
  Range StageValue(const Position& at, const device::GinOperation& operation) const;
  Result<Begun> Get(int peer, const device::GinOperation& operation, const Reached& reached);

  RemoteWindows* const remote_;
};

}  // namespace tutti
