#pragma once

// A Device is one GPU as this process uses it: its primary context, which it shares with the CUDA
// runtime and so with everybody else in the process, and the kernels, loaded before the first
// operation needs them (loading one while another spins would wait for it, and that one perhaps for
// us).
//
// Thread-safe after Open. Owned by the Process; lives as long as it.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/adasum_args.h"
#include "backend/cuda/channel_args.h"
#include "backend/cuda/copy_args.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/mesh_args.h"
#include "backend/cuda/message_args.h"
#include "backend/cuda/pinned_pool.h"
#include "backend/cuda/tree_args.h"
#include "base/datatype.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tutti::cuda {

struct LaunchShape {
  uint32_t blocks = 1;
  uint32_t threads = 1;
  // Whether it may come to the GPU before the last kernel of its stream has ended, for which it
  // then waits there: less time between the two. Where GPU and driver can do that, up to
  // kEarlyBlocks.
  bool early = false;
  // An event that happens once all blocks have begun. It is left as it is where the driver is older
  // than CUDA 12.3, and where it takes no such event: one that keeps time, or that processes share.
  // Null: none.
  Event begun = nullptr;
};

class Device {
 public:
  // Returns InvalidUsage when the library has no device code, or none for this GPU.
  static Result<std::unique_ptr<Device>> Open(const Driver& driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  Context context() const { return context_; }
  const std::string& name() const { return name_; }
  // Returns its PCI address as a number that is not 0. It is equal for one GPU in all processes of
  // a machine.
  uint64_t pci_address() const { return pci_address_; }
  // Returns a hash of its UUID, which parts of one GPU (MIG) have each for themselves.
  uint64_t identity() const { return identity_; }

  int multiprocessors() const { return multiprocessors_; }
  // Memory that may not be freed yet: `try_free`, which throws nothing, is called now and then,
  // until it says that it has. What is left in the end goes with the process. TryLateFrees leaves
  // out what another thread is trying at that moment.
  void FreeLater(std::function<bool()> try_free) const;
  void TryLateFrees() const;
  // Pinned memory for communicators on this GPU.
  PinnedPool& pinned() const { return *pinned_; }
  // Returns whether NVLink joins it to the GPU at that address, or it is that GPU itself; false
  // where the process does not see that GPU (CUDA_VISIBLE_DEVICES).
  bool ReachesByNvlink(uint64_t pci_address, uint64_t identity) const;

  // REQUIRES: the device's context is current.
  Status Launch(const MeshArgs& args, DataType type, const LaunchShape& shape, Stream stream) const;
  Status Launch(const SymmetricArgs& args, DataType type, const LaunchShape& shape,
                Stream stream) const;
  // `most_early`: early with so many blocks. `begun`, here and below: see LaunchShape.
  Status Launch(const MessageArgs& args, uint32_t most_early, Stream stream,
                Event begun = nullptr) const;
  // Copies the pieces at once, in any order.
  Status Copy(std::span<const CopyPiece> pieces, Stream stream) const;
  Status Launch(const ChannelArgs& args, DataType type, Stream stream, Event begun = nullptr) const;
  Status Launch(const TreeArgs& args, DataType type, Stream stream, Event begun = nullptr) const;
  Status Launch(const FlowArgs& args, Stream stream, Event begun = nullptr) const;
  // With as many blocks as the work is worth.
  Status Launch(AdasumArgs& args, Stream stream) const;

 private:
  Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status Describe();
  Status LoadKernels();
  Result<Function> FindKernel(const std::string& name) const;
  Status LaunchFunction(Function function, void* args, const LaunchShape& shape,
                        Stream stream) const;

  const Driver& driver_;
  const int ordinal_;
  Context context_ = nullptr;
  std::string name_;
  uint64_t pci_address_ = 0;
  uint64_t identity_ = 0;
  int multiprocessors_ = 0;
  bool knows_early_ = false;
  std::unique_ptr<PinnedPool> pinned_;
  std::vector<Module> modules_;
  mutable Mutex late_mutex_;
  mutable std::vector<std::function<bool()>> late_frees_ TUTTI_GUARDED_BY(late_mutex_);
  // The kernels of a mesh, of each protocol, those of a ring, and those of channels,
  // of which reductions in one shot and in trees have their own.
  struct Family {
    std::array<Function, kNumDataTypes> reductions = {};
    Function move = nullptr;
    Function For(MeshAlgorithm algorithm, DataType type) const {
      return Reduces(algorithm) ? reductions[static_cast<size_t>(type)] : move;
    }
  };
  Status FindFamily(const char* protocol, Family& family) const;
  std::array<Family, 3> mesh_;  // One for each Protocol.
  Family ring_, symmetric_, channel_;
  std::array<Function, kNumDataTypes> one_shot_ = {}, trees_ = {};
  Function messages_ = nullptr, copies_ = nullptr, flows_ = nullptr, adasum_ = nullptr;
};

}  // namespace tutti::cuda
