#pragma once

// The kernel of a relay: see relay_args.h.

#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/mesh_primitives.h"
#include "backend/cuda/relay_args.h"

namespace tutti::cuda {

class RelayBlock {
 public:
  TUTTI_HD RelayBlock(const RelayArgs& args, uint32_t block)
      : args_(args), box_(args.boxes[args.box_of_block[block]]), first_(block == 0) {}

  TUTTI_HD void Run() {
    uint64_t done = LoadFlagAcquire(&box_.done);
    // Every thread has read it before the first one counts on.
    Lanes::Sync();
    if (first_) {
      TUTTI_UNROLL_BY(1)
      for (uint32_t i = 0; i < args_.num_first; ++i) Copy(args_.first[i]);
    }
    if (Lanes::index() == 0) box_.operation = args_.operation;
    Say(++done);
    bool last = false;
    while (!last && Await(done + 1)) {
      last = box_.last != 0;
      TUTTI_UNROLL_BY(1)
      for (uint32_t i = 0; i < box_.num_pieces; ++i) {
        Copy(box_.pieces[i]);
        Lanes::Sync();
      }
      Say(++done);
    }
  }

 private:
  TUTTI_HD static void Copy(const CopyPiece& piece) {
    CopyByBlock(piece.to, piece.from, piece.bytes);
  }
  // Tells the host that what all threads have done so far is there.
  TUTTI_HD void Say(uint64_t done) {
    Lanes::Sync();
    if (Lanes::index() == 0) {
      FenceSystem();
      StoreFlag(&box_.done, done);
    }
  }
  // Waits for the command of that number. Returns false when the communicator has been aborted.
  TUTTI_HD bool Await(uint64_t number) {
    bool failed = false;
    if (Lanes::index() == 0) {
      TUTTI_UNROLL_BY(1)
      for (uint32_t polls = 1; LoadFlagAcquire(&box_.number) != number; ++polls) {
        Lanes::Relax();
        // Both words lie in the host's memory: looking at the second each time would halve the
        // pace.
        if (polls % 64 == 0 && IsRaised(args_.abort_word)) {
          failed = true;
          break;
        }
      }
    }
    return !Lanes::SyncAny(failed);
  }
  const RelayArgs& args_;
  RelayBox& box_;
  const bool first_;
};

TUTTI_HD void RunRelay(const RelayArgs& args, uint32_t block) { RelayBlock(args, block).Run(); }

}  // namespace tutti::cuda
