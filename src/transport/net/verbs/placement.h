#pragma once

// The queue pairs of an end of a connection, and the ports on which they lie (stripes.h). A merged
// device has several ports, perhaps of several NICs. The number of a port in the connection never
// changes: the ends give out keys of buffers for all ports, so that any port can replace any port
// at any time.
//
// Threads: one at a time.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/net/verbs/completion_queues.h"
#include "transport/net/verbs/port_choice.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/queue_pair.h"
#include "transport/net/verbs/setup.h"
#include "transport/net/verbs/stripes.h"

namespace tutti {

// Says where the queue pairs of an end lie.
PairPlaces PlacesOf(const VerbsEnd& end);

class Placement {
 public:
  // A queue pair, and the number of its port.
  struct Pair {
    std::unique_ptr<QueuePair> pair;
    size_t port = 0;
  };
  // `loopback_depth` is the number of reads under way at once on a loop-back. `ports` and
  // `completions` must outlive this object.
  Placement(const PortSet& ports, size_t pairs, const QueuePairDepths& depths,
            uint32_t loopback_depth, CompletionQueues& completions);

  size_t size() const { return pairs_.size(); }
  QueuePair& pair(size_t index) const { return *pairs_[index].pair; }
  size_t port_of(size_t index) const { return pairs_[index].port; }
  std::vector<uint32_t> Numbers() const;
  // Returns the number of the first packet that this end sends over each queue pair.
  uint32_t first_packet() const { return first_packet_; }

  // Returns the loop-backs: queue pairs that are joined with themselves, by which each NIC in use
  // reads back its own data from GPU memory. Empty before MakeLoopbacks.
  std::span<const Pair> loopbacks() const { return loopbacks_; }
  // Returns whether the loop-backs carry reads, as they do even while the queue pairs are lost, if
  // only the peer has seen the loss.
  bool loops() const { return loops_; }
  Status MakeLoopbacks();
  // Takes notice of a failed loop-back.
  void LoseLoopbacks() { loops_ = false; }

  // Puts all queue pairs and loop-backs on usable ports, with nothing posted and new packet
  // numbers. The places match the peer's `offer`, which may be null.
  Status Place(const VerbsEnd* offer, int losses_in_a_row);
  // Stops the queue pairs, and the loop-backs too with `all`.
  Status Stop(bool all);

  // Returns whether some port can be used now: a port is active, its NIC sound, and all memory is
  // registered with the NIC.
  bool AnyActive() const { return Active().any(); }
  // Leaves a port out until further ports have been tried, because the peer did not answer.
  void Suspect(size_t port) { choice_.Suspect(port); }
  // Leaves out for good the spares whose NICs have refused `memory`. Fails where queue pairs lie on
  // such a spare.
  Status BarRefusing(const VerbsMemory& memory);
  // Returns why the queue pairs should move: a port in use has gone down while a usable port
  // exists, or a port that had to be left is usable again. Ok where the queue pairs should stay.
  Status CheckPorts();
  // Returns the first failure of a queue pair that a NIC has reported.
  Status PairFault(const VerbsNic& nic) const;

  struct Source {
    size_t port = 0;
    bool is_loopback = false;
  };
  // Returns the queue pair of a completion of the last Poll.
  Source SourceOf(const ibv_wc& completion) const;

  // Returns "mlx5_0 (10.0.0.1)", and the same for all ports in use.
  std::string Where(size_t port) const;
  std::string PortsInUse() const;
  // Returns the description of a port for the peer, but for the key of the table.
  VerbsEnd::Port Describe(size_t port) const;

 private:
  PortFlags Active() const;
  Status PlaceLoopbacks();
  Status Put(Pair& pair, size_t port, const QueuePairDepths& depths);

  const PortSet& ports_;
  const QueuePairDepths depths_;
  const uint32_t loopback_depth_;
  CompletionQueues& completions_;
  std::vector<Pair> pairs_;
  uint32_t first_packet_ = 0;
  std::vector<Pair> loopbacks_;
  bool loops_ = false;
  PortChoice choice_;
  PortFlags barred_;           // spares whose NICs do not have all of the memory
  uint32_t seen_changes_ = 0;  // the events of ports at the last CheckPorts
};

}  // namespace tutti
