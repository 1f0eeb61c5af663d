// Launches operations of GPUs between registered buffers (registry.h).

#include "gpu/mesh.h"

namespace tutti {

const void* GpuMesh::Register(ReachedWindow window) {
  if (args_.num_ranks == 1 || window.parts.empty()) return nullptr;
  const MutexLock lock(launch_mutex_);
  return registry_.Add(window.own, std::move(window.parts));
}

Status GpuMesh::Forget(const void* token) {
  if (token == nullptr) return Status::Ok();
  // Launched kernels may still read the buffers of other ranks, which are mapped here.
  TUTTI_TRY(queue_->Drain());
  const MutexLock lock(launch_mutex_);
  registry_.Remove(token);
  return Status::Ok();
}

// Returns the registered buffers that peers access in a collective. An AllReduce needs both buffers
// registered, a ReduceScatter only its input, and an AllGather only its output.
GpuMesh::SharedBuffers GpuMesh::FindShared(const CollectiveTask& task) const {
  const bool scatters = task.collective == Collective::kReduceScatter;
  const bool gathers = task.collective == Collective::kAllGather;
  SharedBuffers shared;
  if (registry_.empty() || !(scatters || gathers || task.collective == Collective::kAllReduce))
    return shared;
  const BufferSizes bytes = SizesOf(task, args_.rank, args_.num_ranks);
  if (!gathers) shared.input = registry_.Find(task.send, bytes.send);
  if (!scatters) shared.output = registry_.Find(task.recv, bytes.recv);
  // A rank that reads the input of another rank directly does not know the factor of the other
  // rank.
  shared.complete = (gathers || shared.input != nullptr) &&
                    (scatters || shared.output != nullptr) &&
                    !(task.is_reduction() && task.op.pre_multiply);
  return shared;
}

// Launches a collective over registered buffers. registered_ gets a mark of the buffers, and the
// comparison of calls thereby shows ranks that use different buffers.
Status GpuMesh::LaunchSymmetric(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) {
  const SharedBuffers shared = FindShared(task);
  cuda::SymmetricArgs args;
  static_cast<cuda::MeshArgs&>(args) = args_;
  SetArgs(task, plan, args);
  uint32_t mark = 1;
  if (shared.input != nullptr) mark = shared.input->Mark(mark, task.send);
  if (shared.output != nullptr) mark = shared.output->Mark(mark, task.recv);
  registered_ = mark | 1;
  for (int r = 0; r < args.num_ranks; ++r) {
    if (shared.input != nullptr) args.inputs[r] = shared.input->At(r, task.send);
    if (shared.output != nullptr) args.outputs[r] = shared.output->At(r, task.recv);
  }
  return device().Launch(args, task.type, ShapeOf(plan, task), stream);
}

}  // namespace tutti
