#pragma once

// The primitives of kernels/mesh.h for reductions, on host memory. Every rank has a FIFO to every
// peer, in shared memory or in front of the network. Ranks of several hosts reduce in the order of
// the ranks by these primitives: the inputs of a part meet at one rank, out of the FIFOs of all
// ranks, and the sum is rounded once.
//
// A part of a piece is one chunk of a FIFO. The FIFO announces each chunk, and both ends count the
// same chunks in the same order. Rounds therefore need no number, and Publish and Wait do nothing.
//
// The executing thread owns the object for one operation. The FIFOs belong to the communicator.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "backend/host/wait_context.h"
#include "kernels/mesh.h"

namespace tutti {

// One rank's connections with its peers, by rank. The rank's own entries are empty.
struct MeshLinks {
  std::vector<SendLink> sends;
  std::vector<RecvLink> recvs;
  std::vector<const void*> sources;  // room for a pointer to each rank's data
};

class HostMeshPrimitives {
 public:
  HostMeshPrimitives(WaitContext& wait, const HostWork& work, int rank, MeshLinks& links)
      : wait_(wait), work_(work), reduce_(work.reduce), rank_(rank), links_(links) {
    reduce_.round_scaled = true;
  }

  int rank() const { return rank_; }
  int num_ranks() const { return static_cast<int>(links_.sends.size()); }
  uint64_t TakeRounds(uint64_t) { return 0; }
  void Publish(uint64_t) {}
  void Wait(uint64_t) {}

  // `parts`: a MeshPart for each rank.
  template <class Parts>
  void Push(uint64_t, const Parts& parts) {
    for (int i = 1; i < num_ranks(); ++i) {
      const int peer = (rank_ + i) % num_ranks();
      const MeshPart part = parts(peer);
      SendInput(peer, part.at, part.size);
    }
  }
  void Fetch(uint64_t, const MeshParts& parts) {
    for (int i = 1; i < num_ranks(); ++i) {
      const int peer = (rank_ + i) % num_ranks();
      const MeshPart part = parts(peer);
      RecvOutput(peer, part.at, part.size);
    }
  }
  void Reduce(uint64_t, size_t in, size_t out, size_t n);
  void ReducePush(uint64_t, size_t in, size_t out, size_t n, uint64_t, int target);

 private:
  const std::byte* Input(size_t at) const { return work_.input + at * work_.elem_bytes; }
  std::byte* Output(size_t at) const { return work_.output + at * work_.elem_bytes; }
  void SendInput(int peer, size_t in, size_t n);
  void RecvOutput(int peer, size_t out, size_t n);
  // Waits for a chunk of n elements from every peer, and stores a pointer to rank r's data in
  // sources[r]. Returns false when the wait failed.
  bool AwaitAll(size_t in, size_t n);
  void ReleaseAll();

  WaitContext& wait_;
  const HostWork& work_;
  // Makes a rank round its scaled input before adding it, as it rounds the inputs that it sends.
  // Several ranks may reduce the same elements, and all of them must add the same bits.
  ReduceSpec reduce_;
  const int rank_;
  MeshLinks& links_;
};
static_assert(MeshReductionPrimitives<HostMeshPrimitives>);

}  // namespace tutti
