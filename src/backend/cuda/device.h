#pragma once

// A Device is one GPU in this process: its primary context, and the kernels. All code of the
// process that uses the CUDA runtime shares the primary context. The kernels are loaded before the
// first operation: loading a kernel while another kernel spins would wait for the spinning kernel,
// which may in turn wait for this rank.
//
// Thread-safe after Open. The Process owns its devices for its whole life.

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
  // Says whether the kernel may come to the GPU before the last kernel of its stream has ended. The
  // kernel then waits on the GPU for that end, and less time passes between the two kernels. This
  // takes effect where the GPU and the driver support it, and up to kEarlyBlocks blocks.
  bool early = false;
  // An event that happens once all blocks have begun; null: none. The event is left unchanged where
  // the driver is older than CUDA 12.3. The driver also refuses events that keep time or that
  // processes share, and leaves them unchanged.
  Event begun = nullptr;
};

class Device {
 public:
  // Returns InvalidUsage when Tutti has no device code, or none for this GPU.
  static Result<std::unique_ptr<Device>> Open(const Driver& driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  Context context() const { return context_; }
  const std::string& name() const { return name_; }
  // Returns the GPU's PCI address as a number other than 0, equal in all processes of a machine.
  uint64_t pci_address() const { return pci_address_; }
  // Returns a hash of the GPU's UUID. Each part of a partitioned GPU (MIG) has its own UUID.
  uint64_t identity() const { return identity_; }

  int multiprocessors() const { return multiprocessors_; }
  // Frees memory later. `try_free`, which must not throw, is called now and then until it returns
  // true. Memory that remains at the end goes with the process. TryLateFrees leaves out functions
  // that another thread is trying at that moment.
  void FreeLater(std::function<bool()> try_free) const;
  void TryLateFrees() const;
  // Returns pinned memory for communicators on this GPU.
  PinnedPool& pinned() const { return *pinned_; }
  // Returns whether NVLink joins this GPU to the GPU at the given address, or both are the same
  // GPU. Returns false where the process does not see the other GPU (CUDA_VISIBLE_DEVICES).
  bool ReachesByNvlink(uint64_t pci_address, uint64_t identity) const;

  // REQUIRES: the device's context is current.
  Status Launch(const MeshArgs& args, DataType type, const LaunchShape& shape, Stream stream) const;
  Status Launch(const SymmetricArgs& args, DataType type, const LaunchShape& shape,
                Stream stream) const;
  // The kernel may be early with up to `most_early` blocks. For `begun`, see LaunchShape.
  Status Launch(const MessageArgs& args, uint32_t most_early, Stream stream,
                Event begun = nullptr) const;
  // Copies the pieces at once, in any order.
  Status Copy(std::span<const CopyPiece> pieces, Stream stream) const;
  Status Launch(const ChannelArgs& args, DataType type, Stream stream, Event begun = nullptr) const;
  Status Launch(const TreeArgs& args, DataType type, Stream stream, Event begun = nullptr) const;
  Status Launch(const FlowArgs& args, Stream stream, Event begun = nullptr) const;
  // Launches as many blocks as the work is worth.
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
  // The kernels of a mesh, for each protocol; of a ring; and of channels, where one-shot and tree
  // reductions have their own.
  struct Family {
    std::array<Function, kNumDataTypes> reductions = {};
    Function move = nullptr;
    Function For(MeshAlgorithm algorithm, DataType type) const {
      return Reduces(algorithm) ? reductions[static_cast<size_t>(type)] : move;
    }
  };
  Status FindFamily(const char* protocol, Family& family) const;
  std::array<Family, 3> mesh_;  // one for each Protocol
  Family ring_, symmetric_, channel_;
  std::array<Function, kNumDataTypes> one_shot_ = {}, trees_ = {};
  Function messages_ = nullptr, copies_ = nullptr, flows_ = nullptr, adasum_ = nullptr;
};

}  // namespace tutti::cuda
