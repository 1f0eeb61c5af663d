#include "backend/host/mesh_primitives.h"

#include "base/copy.h"

namespace tutti {

// Scales the input on its way into the slot, hence the receiver combines the chunk without scaling.
void HostMeshPrimitives::SendInput(int peer, size_t in, size_t n) {
  if (n == 0 || wait_.failed()) return;
  const SendLink& link = links_.sends[static_cast<size_t>(peer)];
  const size_t bytes = n * work_.elem_bytes;
  std::byte* const slot = AcquireSlot(wait_, link, bytes);
  if (slot == nullptr) return;
  const void* const source = Input(in);
  if (reduce_.scale)
    reduce_.Apply(slot, &source, 1, n, true, false);
  else
    CopyBytes(slot, source, bytes);
  link.fifo->Publish(bytes, work_.op_tag);
}

void HostMeshPrimitives::RecvOutput(int peer, size_t out, size_t n) {
  if (n == 0 || wait_.failed()) return;
  const RecvLink& link = links_.recvs[static_cast<size_t>(peer)];
  const size_t bytes = n * work_.elem_bytes;
  const std::byte* const chunk = AwaitSlice(wait_, link, bytes, work_.op_tag);
  if (chunk == nullptr) return;
  CopyBytes(Output(out), chunk, bytes);
  link.fifo->Release();
}

// The chunks stay in their FIFOs until ReleaseAll, and the reduction reads them there.
bool HostMeshPrimitives::AwaitAll(size_t in, size_t n) {
  for (int r = 0; r < num_ranks(); ++r) {
    const auto at = static_cast<size_t>(r);
    const void* const data =
        r == rank_ ? Input(in)
                   : AwaitSlice(wait_, links_.recvs[at], n * work_.elem_bytes, work_.op_tag);
    if (data == nullptr && r != rank_) return false;
    links_.sources[at] = data;
  }
  return true;
}

void HostMeshPrimitives::ReleaseAll() {
  for (const RecvLink& link : links_.recvs)
    if (link.fifo != nullptr) link.fifo->Release();
}

// The result is written after all inputs have come, and every rank that reduces these elements
// combines them in the order of the ranks.
void HostMeshPrimitives::Reduce(uint64_t, size_t in, size_t out, size_t n) {
  if (n == 0 || wait_.failed() || !AwaitAll(in, n)) return;
  reduce_.Combine(Output(out), links_.sources.data(), num_ranks(), rank_, n);
  ReleaseAll();
}

// Reduces a part. Sends the result to rank `target`, straight into a slot of its FIFO, or to all
// ranks if `target` is negative. For all ranks the inputs are released first, and their senders can
// go on while the copies are made.
void HostMeshPrimitives::ReducePush(uint64_t, size_t in, size_t out, size_t n, uint64_t,
                                    int target) {
  if (n == 0 || wait_.failed() || !AwaitAll(in, n)) return;
  const size_t bytes = n * work_.elem_bytes;
  if (target >= 0) {
    const SendLink& link = links_.sends[static_cast<size_t>(target)];
    std::byte* const slot = AcquireSlot(wait_, link, bytes);
    if (slot == nullptr) return;
    reduce_.Combine(slot, links_.sources.data(), num_ranks(), rank_, n);
    link.fifo->Publish(bytes, work_.op_tag);
    ReleaseAll();
    return;
  }
  std::byte* const result = Output(out);
  reduce_.Combine(result, links_.sources.data(), num_ranks(), rank_, n);
  ReleaseAll();
  for (int i = 1; i < num_ranks(); ++i) {
    const SendLink& link = links_.sends[static_cast<size_t>((rank_ + i) % num_ranks())];
    std::byte* const slot = AcquireSlot(wait_, link, bytes);
    if (slot == nullptr) return;
    CopyBytes(slot, result, bytes);
    link.fifo->Publish(bytes, work_.op_tag);
  }
}

}  // namespace tutti
