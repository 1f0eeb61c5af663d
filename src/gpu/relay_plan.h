#pragma once

// How an operation on GPU memory is cut into chunks that pass through a slot of pinned host memory.
// A chunk says what the GPU copies in, what the host's communicator does in the slot, and what the
// GPU copies out. These are pure functions of the call, so that all ranks cut alike.

#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/relay_args.h"
#include "base/status.h"
#include "operations/operations.h"
#include "plan/task.h"

namespace tutti {

// A slot must hold two pieces of messages, and an element of each part of a collective.
inline constexpr size_t kRelayMessageBytes = 512 << 10;

struct RelayChunk {
  std::vector<cuda::CopyPiece> in, out;
  std::vector<Task> tasks;  // One collective, or messages, that work in the slot.
};

class RelayPlan {
 public:
  // The rank that the plan is for, and the number of channels, each of which has its own order.
  struct Place {
    int rank = 0;
    int num_ranks = 1;
    size_t slot_bytes = 0;
    size_t channels = 1;
  };
  // Plans a collective other than AlltoAllV that has something to do. Channels take chunks in turn.
  RelayPlan(const Task& task, const Place& place);
  // Plans the messages of one group, without those of the rank to itself.
  //
  // On a channel, all ranks walk through all messages in one order: by their number within their
  // pair, then by the distance from sender to receiver, then by their pieces. A slot takes as many
  // of a rank's pieces as it holds, one after another in that order; the rank's two pieces of one
  // place, one sent and one received, stay together. So the first piece of all that is not through
  // yet is in hand at both of its ends, and nothing waits in a circle, however differently ranks
  // fill their slots. Which channel takes a piece follows from the same three numbers.
  RelayPlan(std::span<const IssuedTask> tasks, const Place& place);

  size_t num_chunks(size_t channel) const;
  RelayChunk Chunk(size_t channel, size_t number, std::byte* slot) const;

 private:
  // A piece of a message, by its place in the order of all.
  struct Transfer {
    size_t message, distance, piece;
    size_t task;  // An index of sends_and_receives_.
    size_t begin, count;
    bool SamePlace(const Transfer& other) const {
      return message == other.message && distance == other.distance && piece == other.piece;
    }
  };
  using Batches = std::vector<std::vector<Transfer>>;
  Batches FillSlots(const std::vector<Transfer>& transfers) const;
  void AddParts(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const;
  void AddVariable(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const;
  void AddWhole(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const;
  RelayChunk Messages(const std::vector<Transfer>& transfers, std::byte* slot) const;

  Place place_;
  // These are used for a collective.
  size_t num_chunks_ = 1;  // over all channels
  Task task_;
  size_t chunk_elems_ = 1;  // of each part
  // These are used for messages.
  std::vector<Task> sends_and_receives_;
  std::vector<Batches> batches_;  // by channel
};

}  // namespace tutti
