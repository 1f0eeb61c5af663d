#pragma once

// The kernels of the mesh, and the functions of their blocks. Each family has one function:
// reductions of an element type, and moving bytes, each by the mesh, round a ring, or between
// registered buffers. The function selects the algorithm and the primitives by the kernel's
// arguments.

#include "backend/cuda/device/kernel.h"
#include "backend/cuda/mesh_args.h"
#include "backend/cuda/mesh_ll.h"
#include "backend/cuda/mesh_ll128.h"
#include "backend/cuda/mesh_ring.h"
#include "backend/cuda/mesh_simple.h"
#include "backend/cuda/mesh_symmetric.h"
#include "kernels/mesh.h"
#include "kernels/rank_order.h"
#include "kernels/ring.h"
#include "kernels/symmetric.h"

namespace tutti::cuda {

// The alignment of parts in a piece, in bytes, which keeps whole lines aligned.
inline constexpr size_t kPartUnit = 16;
// The number of chunks from which the blocks of an operation begin out of step, by quarters of a
// chunk (Piece). AlltoAll and ReduceScatter of 16 MiB between four H200s gained a tenth.
inline constexpr size_t kStaggerChunks = 2;

template <class T>
TUTTI_HD MeshShape ShapeOf(const MeshArgs& args, uint32_t block) {
  MeshShape shape;
  shape.begin = static_cast<size_t>(block) * args.block_elems;
  shape.count = ClampChunk(shape.begin, args.block_elems, args.count);
  shape.stride = args.stride;
  shape.chunk_elems = shape.first_elems = args.chunk_elems;
  // Two-shot operations read and write in every step, and gain nothing by being out of step. (The
  // condition is spelled out: with IsTwoShot, nvcc 13.0 generates other code than the measured
  // code.)
  const bool two_shot = args.algorithm == MeshAlgorithm::kAllReduceTwoShot ||
                        args.algorithm == MeshAlgorithm::kReduceTwoShot ||
                        args.algorithm == MeshAlgorithm::kBroadcastTwoShot;
  if (args.protocol == Protocol::kSimple && !two_shot && !IsRing(args.algorithm) &&
      args.block_elems >= kStaggerChunks * args.chunk_elems) {
    constexpr size_t kUnit = kPartUnit / sizeof(T);
    const size_t units = args.chunk_elems / kUnit * (block % 4 + 1) / 4;
    shape.first_elems = (units == 0 ? 1 : units) * kUnit;
  }
  shape.root = args.root;
  return shape;
}

template <class T, template <class> class Primitives>
TUTTI_HD void RunReduction(const MeshArgs& args, uint32_t block) {
  Primitives<T> p(args, block);
  const MeshShape shape = ShapeOf<T>(args, block);
  constexpr size_t kUnit = kPartUnit / sizeof(T);
  if (args.algorithm == MeshAlgorithm::kAllReduceTwoShot ||
      args.algorithm == MeshAlgorithm::kReduceTwoShot) {
    const int root = args.algorithm == MeshAlgorithm::kReduceTwoShot ? args.root : -1;
    kernels::MeshTwoShotReduction(p, shape, root, kUnit);
  } else {
    const auto which =
        args.algorithm == MeshAlgorithm::kReduceScatter   ? kernels::MeshReduction::kScatter
        : args.algorithm == MeshAlgorithm::kReduceOneShot ? kernels::MeshReduction::kRoot
                                                          : kernels::MeshReduction::kAll;
    kernels::MeshOneShotReduction(p, shape, which);
  }
  p.Finish();
}

template <template <class> class Primitives>
TUTTI_HD void RunMove(const MeshArgs& args, uint32_t block) {
  Primitives<uint8_t> p(args, block);
  const MeshShape shape = ShapeOf<uint8_t>(args, block);
  if (args.algorithm == MeshAlgorithm::kBroadcastTwoShot) {
    kernels::MeshTwoShotBroadcast(p, shape, kPartUnit);
  } else {
    const auto move = args.algorithm == MeshAlgorithm::kAllGather  ? kernels::MeshMove::kAllGather
                      : args.algorithm == MeshAlgorithm::kAlltoAll ? kernels::MeshMove::kAlltoAll
                      : args.algorithm == MeshAlgorithm::kScatter  ? kernels::MeshMove::kScatter
                      : args.algorithm == MeshAlgorithm::kGather   ? kernels::MeshMove::kGather
                                                                   : kernels::MeshMove::kBroadcast;
    kernels::MeshExchange(p, shape, move);
  }
  p.Finish();
}

template <class T>
TUTTI_HD void RunRingReduction(const MeshArgs& args, uint32_t block) {
  const MeshShape mesh = ShapeOf<T>(args, block);
  RingPrimitives<T> p(args, block, mesh.begin);
  const RingView ring = {args.ring_index, args.num_ranks, args.ring};
  const WorkShape shape = {mesh.count, args.chunk_elems, args.root};
  if (args.algorithm == MeshAlgorithm::kAllReduceRing)
    kernels::RingAllReduce(p, ring, shape);
  else if (args.algorithm == MeshAlgorithm::kReduceScatterRing)
    kernels::RingReduceScatter(p, ring, kernels::StridedParts{mesh.count, args.stride}, shape);
  else if (args.algorithm == MeshAlgorithm::kReduceRankChain)
    kernels::RankOrderReduce(p, args.rank, args.num_ranks, shape, kRingSlots);
  else
    kernels::ChainReduce(p, ring, shape);
  p.Finish();
}

TUTTI_HD void RunRingMove(const MeshArgs& args, uint32_t block) {
  const MeshShape mesh = ShapeOf<uint8_t>(args, block);
  RingPrimitives<uint8_t> p(args, block, mesh.begin);
  const RingView ring = {args.ring_index, args.num_ranks, args.ring};
  const WorkShape shape = {mesh.count, args.chunk_elems, args.root};
  if (args.algorithm == MeshAlgorithm::kAllGatherRing) {
    const size_t own = static_cast<size_t>(args.rank) * args.stride;
    KeepsOwnPart<RingPrimitives<uint8_t>> keeping(p, own, args.input == args.output + own);
    kernels::RingAllGather(keeping, ring, kernels::StridedParts{mesh.count, args.stride}, shape);
  } else {
    kernels::ChainBroadcast(p, ring, shape, args.input == args.output);
  }
  p.Finish();
}

template <class T>
TUTTI_HD void RunSymmetricReduction(const SymmetricArgs& args, uint32_t block) {
  SymmetricPrimitives<T> p(args, block);
  const bool to_all = args.algorithm == MeshAlgorithm::kAllReduceSymmetric;
  kernels::SymmetricReduction(p, ShapeOf<T>(args, block), to_all, kPartUnit / sizeof(T));
  p.Finish();
}

TUTTI_HD void RunSymmetricMove(const SymmetricArgs& args, uint32_t block) {
  SymmetricPrimitives<uint8_t> p(args, block);
  kernels::SymmetricAllGather(p, ShapeOf<uint8_t>(args, block));
  p.Finish();
}

}  // namespace tutti::cuda

// The entries of kernels, defined in the files of device/ for each element type.
#define TUTTI_KERNEL(name, ...) TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLLLines, 2, __VA_ARGS__)
// The LL lines of all peers at once take many registers, and small messages need few blocks.
#define TUTTI_LL_KERNEL(name, ...) TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLLLines, 1, __VA_ARGS__)
#define TUTTI_LL128_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLL128Threads, 1, __VA_ARGS__)
#define TUTTI_SYMMETRIC_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, SymmetricArgs, tutti::kLL128Threads, 1, __VA_ARGS__)

#define TUTTI_REDUCTION(name, T)                                                        \
  TUTTI_LL_KERNEL(tutti_ll_##name, RunReduction<T, tutti::cuda::LLPrimitives>)          \
  TUTTI_LL128_KERNEL(tutti_ll128_##name, RunReduction<T, tutti::cuda::LL128Primitives>) \
  TUTTI_KERNEL(tutti_simple_##name, RunReduction<T, tutti::cuda::SimplePrimitives>)     \
  TUTTI_KERNEL(tutti_ring_##name, RunRingReduction<T>)                                  \
  TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_##name, RunSymmetricReduction<T>)
