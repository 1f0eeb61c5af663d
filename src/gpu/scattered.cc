// AllReduce of many buffers that count as one (tuttiAllReduceMany). What does not lie in one piece
// is packed: small vectors cost no operation each, and ranks may cut their elements as they like,
// since what they send one another does not show it.

#include <algorithm>

#include "gpu/mesh.h"

namespace tutti {
namespace {

// Packed at a time, in memory that the first such operation allocates.
constexpr size_t kPackBytes = 32 << 20;

}  // namespace

// As LaunchCollective, but nothing that only this rank's cuts show has a part in it.
Status GpuMesh::LaunchOwn(const Task& task, cuda::Stream stream) {
  if (args_.num_ranks == 1) return LaunchAlone(task, stream);
  return LaunchChosen(task,
                      ChooseMesh(context_, task.collective, task.count, task.elem_bytes(),
                                 Buffers::kOwn, OrderFor(task)),
                      task.count, stream);
}

Status GpuMesh::LaunchScattered(const Task& task, cuda::Stream stream) {
  const ScatteredBuffers& buffers = *task.scattered;
  const size_t elem = task.elem_bytes(), most = kPackBytes / elem;
  Task plain = task;
  plain.scattered = nullptr;
  if (buffers.inputs.size() > 1 && pack_.data() == nullptr) {
    TUTTI_ASSIGN(pack_, cuda::MappedMemory::Create(device(), kPackBytes, nullptr));
    pack_bytes_ = pack_.size();
  }
  std::byte* const pack = pack_.data();
  std::vector<cuda::CopyPiece> in, out;
  for (size_t begin = 0; begin < task.count; begin += plain.count) {
    plain.count = std::min(most, task.count - begin);
    in.clear();
    out.clear();
    buffers.ForEachStretch(begin, plain.count,
                           [&](size_t i, size_t at, size_t count, size_t before) {
                             std::byte* const packed = pack + before * elem;
                             in.push_back({packed, buffers.inputs[i] + at * elem, count * elem});
                             out.push_back({buffers.outputs[i] + at * elem, packed, count * elem});
                           });
    if (in.size() == 1) {
      plain.send = in[0].from;
      plain.recv = out[0].to;
      TUTTI_TRY(LaunchOwn(plain, stream));
      continue;
    }
    plain.send = plain.recv = pack;
    TUTTI_TRY(device().Copy(in, stream));
    TUTTI_TRY(LaunchOwn(plain, stream));
    TUTTI_TRY(device().Copy(out, stream));
  }
  return Status::Ok();
}

}  // namespace tutti
