// The proof that windows work, before an operation rests on them. A mapping may be granted and yet
// lead nowhere or to the wrong place: an IOMMU that is on, switches that reorder, a virtual machine
// that shows GPUs as neighbours which are none.

#include <fmt/format.h>

#include <thread>

#include "backend/cuda/own_stream.h"
#include "base/clock.h"
#include "comm/gpu_mesh.h"

namespace tutti {
namespace {

// A form of the mesh, and of how many bytes each message is in it: those in bulk go by several blocks.
struct ProbeOf {
  MeshForm form;
  size_t bytes;
};
constexpr ProbeOf kProbes[] = {
    {MeshForm::kLines, 1 << 10}, {MeshForm::kWideLines, 32 << 10}, {MeshForm::kBulk, 96 << 10}};
constexpr size_t kMostProbeBytes = kProbes[2].bytes;
// Kernels of ranks that come a little later; loading code and clocks that rise are in it.
constexpr double kPatienceS = 10;
constexpr unsigned kEventWithoutTiming = 2;
constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

uint8_t PatternAt(size_t from, size_t to, size_t i) {
  return static_cast<uint8_t>((from * 131 + to * 17 + i) * 0x9E3779B1u >> 13);
}

// An event on a stream, for waits that end.
class Finish {
 public:
  Finish(const cuda::Driver& driver, cuda::Stream stream) : driver_(driver), stream_(stream) {}
  ~Finish() {
    if (event_ != nullptr) driver_.EventDestroy(event_);
  }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;
  Status Open() {
    return driver_.Check(driver_.EventCreate(&event_, kEventWithoutTiming), "making an event");
  }
  // Until the stream is done: Timeout when that takes too long.
  Status Await(Deadline deadline) {
    TUTTI_TRY(driver_.Check(driver_.EventRecord(event_, stream_), "recording an event"));
    while (true) {
      const int result = driver_.EventQuery(event_);
      if (result != kNotReady) return driver_.Check(result, "waiting for the GPU");
      if (deadline.Passed()) return Timeout("no answer");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  cuda::Event event_ = nullptr;
};

}  // namespace

Status GpuMesh::Probe(const GpuPeers& peers, bool corrupt) {
  const auto& driver = device().driver();
  const cuda::ContextScope scope(driver, device().context());
  const auto n = static_cast<size_t>(args_.num_ranks);
  const auto me = static_cast<size_t>(args_.rank);
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(device()));
  Finish finish(driver, stream.get());
  TUTTI_TRY(finish.Open());
  // Not by cuMemAlloc: to free that would wait for all that runs on the GPU.
  TUTTI_ASSIGN(const cuda::MappedMemory memory,
               cuda::MappedMemory::Create(device(), 2 * n * kMostProbeBytes, nullptr));
  Status wrong;  // the first; the others go on and would wait for a rank that stops here
  for (const auto [form, bytes] : kProbes) {
    if (form == MeshForm::kWideLines && context_.wide_slot_bytes == 0) continue;
    MeshContext context = context_;
    context.allowed_forms.fill(Bit(form));
    context.messages_bytes_per_us = 1;  // rather a mesh
    const MeshChoice choice = ChooseMesh(context, Collective::kAlltoAll, bytes, 1);
    std::vector<uint8_t> data(n * bytes), found(n * bytes);
    for (size_t r = 0; r < n; ++r)
      for (size_t i = 0; i < bytes; ++i) data[r * bytes + i] = PatternAt(me, r, i);
    if (corrupt) data[(me + 1) % n * bytes + bytes / 2] ^= 4;
    const cuda::DeviceAddress in = memory.address(), out = in + n * bytes;
    TUTTI_TRY(stream.CopyIn(in, data.data(), n * bytes));
    TUTTI_TRY(stream.Clear(out, n * bytes));
    Task task;
    task.collective = Collective::kAlltoAll;
    task.send = reinterpret_cast<const void*>(in);
    task.recv = reinterpret_cast<void*>(out);
    task.count = bytes;
    TUTTI_TRY(LaunchChosen(task, choice, bytes, stream.get()));
    if (Status arrived = finish.Await(Deadline::AfterSeconds(kPatienceS)); !arrived.ok()) {
      queue_->Abort();
      if (arrived.code() != Code::kTimeout) return arrived;
      TUTTI_TRY(finish.Await(Deadline::AfterSeconds(kPatienceS)));
      return SystemError("after {} s not all that other GPUs wrote into its window has arrived",
                         kPatienceS);
    }
    TUTTI_TRY(stream.CopyOut(found.data(), out, n * bytes));
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < bytes; ++i) {
        const uint8_t expected = PatternAt(r, me, i), got = found[r * bytes + i];
        if (got == expected || !wrong.ok()) continue;
        wrong = SystemError(
            "of {} bytes that {} wrote into its window, byte {} reads {:#04x} and "
            "should be {:#04x}",
            bytes, RankName(static_cast<int>(r), peers.peers[r]), i, got, expected);
      }
    }
  }
  return wrong;
}

}  // namespace tutti
