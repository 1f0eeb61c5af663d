#include "fake_kernels.h"

#include "backend/cuda/adasum_kernel.h"
#include "backend/cuda/channel_mesh.h"
#include "backend/cuda/channel_ring.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/flow_kernel.h"
#include "backend/cuda/mesh_kernel.h"
#include "backend/cuda/message_kernel.h"
#include "backend/cuda/tree_kernel.h"

namespace fake {
namespace {

using namespace tutti::cuda;  // NOLINT: the kernels
using Functions = std::map<std::string, FakeFunction, std::less<>>;

const void* Owns(const MeshArgs& args) { return args.windows[args.rank]; }
const void* Owns(const MessageArgs& args) { return args.windows[args.rank]; }
const void* Owns(const CopyArgs&) { return nullptr; }
const void* Owns(const AdasumArgs& args) { return &args; }  // nothing of a communicator
const void* Owns(const ChannelArgs& args) { return args.common.given_up; }
const void* Owns(const FlowArgs& args) { return args.common.given_up; }
const void* Owns(const TreeArgs& args) { return args.common.given_up; }

template <class Args, class F>
FakeFunction Kernel(F f) {
  return {[f](const void* args, uint32_t block) { f(*static_cast<const Args*>(args), block); },
          sizeof(Args), [](const void* args) { return Owns(*static_cast<const Args*>(args)); }};
}

template <class T>
void AddType(Functions& functions, const std::string& name) {
  functions["tutti_ll_" + name] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunReduction<T, LLPrimitives>(a, b); });
  functions["tutti_ll128_" + name] = Kernel<MeshArgs>(
      [](const MeshArgs& a, uint32_t b) { RunReduction<T, LL128Primitives>(a, b); });
  functions["tutti_simple_" + name] = Kernel<MeshArgs>(
      [](const MeshArgs& a, uint32_t b) { RunReduction<T, SimplePrimitives>(a, b); });
  functions["tutti_symmetric_" + name] = Kernel<SymmetricArgs>(
      [](const SymmetricArgs& a, uint32_t b) { RunSymmetricReduction<T>(a, b); });
  functions["tutti_ring_" + name] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunRingReduction<T>(a, b); });
  functions["tutti_" + name + "_channel"] =
      Kernel<ChannelArgs>([](const ChannelArgs& a, uint32_t b) { RunChannelReduction<T>(a, b); });
  functions["tutti_" + name + "_oneshot"] =
      Kernel<ChannelArgs>([](const ChannelArgs& a, uint32_t b) { RunOneShotReduction<T>(a, b); });
  functions["tutti_" + name + "_tree"] =
      Kernel<TreeArgs>([](const TreeArgs& a, uint32_t b) { RunTree<T>(a, b); });
}

}  // namespace

Functions MakeFunctions() {
  Functions functions;
  AddType<int8_t>(functions, "i8");
  AddType<uint8_t>(functions, "u8");
  AddType<int32_t>(functions, "i32");
  AddType<uint32_t>(functions, "u32");
  AddType<int64_t>(functions, "i64");
  AddType<uint64_t>(functions, "u64");
  AddType<Half>(functions, "f16");
  AddType<float>(functions, "f32");
  AddType<double>(functions, "f64");
  AddType<Bfloat>(functions, "bf16");
  AddType<E4m3>(functions, "e4m3");
  AddType<E5m2>(functions, "e5m2");
  functions["tutti_ll_move"] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunMove<LLPrimitives>(a, b); });
  functions["tutti_ll128_move"] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunMove<LL128Primitives>(a, b); });
  functions["tutti_simple_move"] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunMove<SimplePrimitives>(a, b); });
  functions["tutti_symmetric_move"] =
      Kernel<SymmetricArgs>([](const SymmetricArgs& a, uint32_t b) { RunSymmetricMove(a, b); });
  functions["tutti_ring_move"] =
      Kernel<MeshArgs>([](const MeshArgs& a, uint32_t b) { RunRingMove(a, b); });
  functions["tutti_move_channel"] =
      Kernel<ChannelArgs>([](const ChannelArgs& a, uint32_t b) { RunChannelMove(a, b); });
  functions["tutti_flows"] =
      Kernel<FlowArgs>([](const FlowArgs& a, uint32_t b) { RunFlows(a, b); });
  functions["tutti_messages"] =
      Kernel<MessageArgs>([](const MessageArgs& a, uint32_t b) { RunMessages(a, b); });
  functions["tutti_copies"] =
      Kernel<CopyArgs>([](const CopyArgs& a, uint32_t b) { RunCopies(a, b); });
  functions["tutti_adasum"] =
      Kernel<AdasumArgs>([](const AdasumArgs& a, uint32_t b) { RunAdasum(a, b); });
  return functions;
}

}  // namespace fake
