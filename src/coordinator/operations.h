#pragma once

// Operations: the movers of a process set's data, and the arithmetic on the data, after
// negotiation. A list of operations is asked in order, and the first that takes a request runs the
// request, as users of Horovod know.
//
// Every call is collective over the process set and blocks until this rank's part is done. Buffers
// are host memory, sizes are bytes unless they are called counts. Ranks are those of the set. One
// thread at a time. (Operations of a GPU, gpu_performer.h, have its memory and only queue their
// work.)

#include <cstddef>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/copy.h"
#include "base/status.h"
#include "coordinator/request.h"

namespace tutti::coordinator {

// Buffers that are reduced as one vector: inputs[i] to outputs[i], which may be the same buffer.
struct Scattered {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<size_t> counts;

  void Add(const void* input, void* output, size_t count) {
    inputs.push_back(input);
    outputs.push_back(output);
    counts.push_back(count);
  }
  void Clear() {
    inputs.clear();
    outputs.clear();
    counts.clear();
  }
};

// Says where a rank stands on its host, and its host among hosts.
struct HierarchyShape {
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;

  // Return the ranks of this rank's host, and the ranks of its place on all hosts. REQUIRES: ranks
  // are numbered host by host.
  std::vector<int> RanksOfHost() const {
    std::vector<int> ranks(static_cast<size_t>(local_size));
    std::iota(ranks.begin(), ranks.end(), cross_rank * local_size);
    return ranks;
  }
  std::vector<int> RanksAcross() const {
    std::vector<int> ranks;
    for (int host = 0; host < cross_size; ++host) ranks.push_back(host * local_size + local_rank);
    return ranks;
  }
  // Returns how many of `count` elements each rank of a host reduces between hosts.
  std::vector<size_t> PieceCounts(size_t count) const {
    const auto size = static_cast<size_t>(local_size);
    std::vector<size_t> counts(size, count / size);
    for (size_t i = 0; i < count % size; ++i) ++counts[i];
    return counts;
  }
};

class Operations;

// The operations of both levels: among the ranks of a host, and among the ranks of one place on all
// hosts.
struct TwoLevels {
  Operations* local = nullptr;
  Operations* cross = nullptr;
  HierarchyShape shape;
};

class Operations {
 public:
  virtual ~Operations() = default;
  virtual std::string_view name() const = 0;
  // Returns whether the object takes requests of this kind and size. The answer is the same on all
  // ranks.
  virtual bool Takes(const Request& request, int64_t bytes) const = 0;

  // `output` may be `input`.
  virtual Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclRedOp_t op) = 0;
  // Returns whether AllreduceScattered may be called; else fused tensors go through a buffer. The
  // answer is the same on all ranks.
  virtual bool ReducesScattered() const { return false; }
  // Ranks bring equally many elements in all; the lengths of the buffers may differ.
  virtual Status AllreduceScattered(const Scattered&, ncclDataType_t, ncclRedOp_t) {
    return InternalError("{} reduces no scattered buffers", name());
  }
  // bytes[r] bytes of each rank r, one after another.
  virtual Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) = 0;
  // Gathers as Allgather does, but puts the bytes of rank r at output + starts[r]. `input` may be
  // this rank's place in the output.
  virtual Status AllgatherAt(const void* input, void* output, const std::vector<size_t>& bytes,
                             const std::vector<size_t>& starts) {
    std::vector<std::byte> all(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
    TUTTI_TRY(Allgather(input, all.data(), bytes));
    const std::byte* from = all.data();
    for (size_t r = 0; r < bytes.size(); ++r) {
      if (bytes[r] > 0) CopyBytes(static_cast<std::byte*>(output) + starts[r], from, bytes[r]);
      from += bytes[r];
    }
    return Status::Ok();
  }
  virtual Status Broadcast(const void* input, void* output, size_t bytes, int root) = 0;
  // Blocks one after another. output_bytes[i] here equals input_bytes[this rank] on rank i.
  virtual Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                          const std::vector<size_t>& output_bytes) = 0;
  // counts[r] elements of the reduction, one rank's after another's, end on rank r.
  virtual Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                               ncclDataType_t type, ncclRedOp_t op) = 0;
  // Returns an operator that multiplies each float by `factor` and adds, for use until the next
  // call. Only where tensors cannot be scaled on the way (TensorMemory::leaves_scaling).
  virtual Result<ncclRedOp_t> ScaledSum(ncclDataType_t, double) {
    return InternalError("{} does not scale", name());
  }
  virtual Status Barrier() = 0;
  // Sends and receives at once. A negative rank means nothing in that direction.
  virtual Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                             size_t output_bytes, int from) = 0;
  // Returns the two levels of the operations, which own the levels; null for a single level.
  virtual const TwoLevels* levels() const { return nullptr; }
};

// Operations in two levels, inside hosts and across them: allreduce and allgather.
class TwoLevelOperations : public Operations {
 public:
  TwoLevelOperations(std::unique_ptr<Operations> local, std::unique_ptr<Operations> cross,
                     const HierarchyShape& shape)
      : local_(std::move(local)),
        cross_(std::move(cross)),
        shape_(shape),
        levels_{local_.get(), cross_.get(), shape} {}
  const TwoLevels* levels() const override { return &levels_; }
  std::string_view name() const override { return "hierarchical"; }
  Status Broadcast(const void*, void*, size_t, int) override { return NotTaken(); }
  Status Alltoall(const void*, const std::vector<size_t>&, void*,
                  const std::vector<size_t>&) override {
    return NotTaken();
  }
  Status Reducescatter(const void*, void*, const std::vector<size_t>&, ncclDataType_t,
                       ncclRedOp_t) override {
    return NotTaken();
  }
  Status Barrier() override { return NotTaken(); }
  Status SendReceive(const void*, size_t, int, void*, size_t, int) override { return NotTaken(); }

 protected:
  const std::unique_ptr<Operations> local_;
  const std::unique_ptr<Operations> cross_;
  const HierarchyShape shape_;

 private:
  static Status NotTaken() {
    return InternalError("hierarchical operations were given one that they do not take");
  }
  const TwoLevels levels_;
};

// Makes Tutti's own operations, over a communicator that carries nothing else and remains the
// caller's.
std::unique_ptr<Operations> MakeNcclOperations(ncclComm_t comm, int rank);

// Allreduce and allgather in two levels: inside a host, and across hosts between ranks of the same
// place on their hosts, by the operations that serve the two groups. All hosts have equally many
// ranks, and the set's ranks are numbered host by host.
//
//   host 0: rank 0, rank 1      allreduce: reduce-scatter inside each host, allreduce of each
//   host 1: rank 2, rank 3      piece across hosts, all-gather inside
//
// Adasum goes by AdasumInTwoLevels (adasum.h), which the performer calls.
struct HierarchySwitches {
  bool allreduce = false;
  bool allgather = false;
  bool adasum = false;  // never tuned, because the result differs
};
// `switches` may change between operations, on all ranks alike.
std::unique_ptr<Operations> MakeHierarchicalOperations(
    std::unique_ptr<Operations> local, std::unique_ptr<Operations> cross,
    const HierarchyShape& shape, std::shared_ptr<const HierarchySwitches> switches);

}  // namespace tutti::coordinator
