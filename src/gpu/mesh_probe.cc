// Proves that windows work before an operation relies on them. A mapping may be granted and yet
// lead nowhere or to the wrong place: with an IOMMU that is switched on, with switches that
// reorder, or in a virtual machine that shows GPUs as neighbours although they are none.

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "backend/cuda/own_stream.h"
#include "base/clock.h"
#include "gpu/mesh.h"

namespace tutti {
namespace {

// Names a protocol of the mesh and the bytes of each message of its probe. Messages by Simple take
// several blocks.
struct ProbeOf {
  Protocol protocol;
  size_t bytes;
};
constexpr ProbeOf kProbes[] = {
    {Protocol::kLL, 1 << 10}, {Protocol::kLL128, 32 << 10}, {Protocol::kSimple, 96 << 10}};
constexpr size_t kMostProbeBytes = kProbes[2].bytes;
constexpr size_t kFewestProbeBytes = 256;
// The longest wait of a probe: for the kernels of late ranks, and for code to be loaded.
constexpr double kPatienceS = 10;

uint8_t PatternAt(size_t from, size_t to, size_t i) {
  return static_cast<uint8_t>((from * 131 + to * 17 + i) * 0x9E3779B1u >> 13);
}

// StreamEnd waits for the end of a stream's work, with a deadline.
class StreamEnd {
 public:
  StreamEnd(const cuda::Driver& driver, cuda::Stream stream, cuda::OwnEvent event)
      : driver_(driver), stream_(stream), event_(std::move(event)) {}
  // Waits until the stream is done. Returns Timeout when the deadline passes or `abort_flag` (may
  // be null) rises.
  Status Await(Deadline deadline, const std::atomic<bool>* abort_flag) {
    TUTTI_TRY(driver_.Check(driver_.EventRecord(event_.get(), stream_), "recording an event"));
    while (true) {
      const int result = driver_.EventQuery(event_.get());
      if (result != cuda::kNotReady) return driver_.Check(result, "waiting for the GPU");
      if (deadline.Passed()) return Timeout("no answer");
      if (abort_flag != nullptr && abort_flag->load()) return Timeout("given up");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  const cuda::OwnEvent event_;
};

// Describes the trial of a protocol, with as many bytes as the protocol can carry here. Where there
// are few blocks, a larger message would go by another protocol.
struct Trial {
  Plan plan;
  size_t bytes = 0;
};
// Returns nothing where the protocol can carry no message.
std::optional<Trial> TrialOf(PlanContext context, const ProbeOf& probe) {
  context.allowed_protocols.fill(Bit(probe.protocol));
  context.mesh.costs.messages_bytes_per_us = 1;  // Makes the planner choose the mesh.
  for (size_t bytes = probe.bytes; bytes >= kFewestProbeBytes; bytes /= 2) {
    const Plan plan = MakePlan(context, {.collective = Collective::kAlltoAll, .count = bytes});
    if (plan.protocol == probe.protocol && plan.row->id != MeshAlgorithm::kMessages)
      return Trial{plan, bytes};
  }
  return {};
}

}  // namespace

struct GpuMesh::ProbePlace {
  const GpuPeers& peers;
  const cuda::OwnStream& stream;
  StreamEnd finish;
  cuda::MappedMemory memory;
};

GpuMesh::Probed GpuMesh::Probe(const GpuPeers& peers, std::string_view fault) {
  Probed probed;
  Status sent = ProbeProtocols(peers, fault, probed);
  if (!sent.ok()) probed.windows = std::move(sent);
  return probed;
}

Status GpuMesh::ProbeProtocols(const GpuPeers& peers, std::string_view fault, Probed& probed) {
  const auto& driver = device().driver();
  const cuda::ManagingScope scope(driver, device().context());
  const auto n = static_cast<size_t>(args_.num_ranks);
  TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(device()));
  // The memory does not come from cuMemAlloc, because freeing such memory waits for everything that
  // runs on the GPU.
  TUTTI_ASSIGN(cuda::MappedMemory memory,
               cuda::MappedMemory::Create(device(), 2 * n * kMostProbeBytes, nullptr));
  TUTTI_ASSIGN(cuda::OwnEvent event, cuda::MakeEvent(device()));
  ProbePlace place{peers, stream, StreamEnd(driver, stream.get(), std::move(event)),
                   std::move(memory)};
  const bool all = fault == "both" || fault == (IsOnGpu(windows_.place()) ? "peer" : "host");
  // A fault is noted, and the remaining protocols are probed nevertheless, because the other ranks
  // wait for their data.
  for (const ProbeOf& probe : kProbes) {
    const bool is_ll128 = probe.protocol == Protocol::kLL128;
    if (is_ll128 && planner_.context().mesh.ll128_slot_bytes == 0) continue;
    const std::optional<Trial> trial = TrialOf(planner_.context(), probe);
    if (!trial) {
      if (is_ll128) probed.ll128 = InvalidUsage("no message fits it");
      continue;
    }
    const bool corrupt = all || (is_ll128 && fault == "ll128");
    Result<Arrived> arrived = ProbeProtocol(place, trial->plan, trial->bytes, corrupt);
    if (!arrived.ok()) {
      // A kernel that ignores the abort word keeps its memory until the process ends.
      if (stuck_) new cuda::MappedMemory(std::move(place.memory));
      return std::move(arrived).status();
    }
    Status& first = is_ll128 ? probed.ll128 : probed.windows;
    if (first.ok()) first = std::move(arrived->wrong);
  }
  return Status::Ok();
}

// Sends known data by an AlltoAll of one protocol and compares the received data. `corrupt` spoils
// a byte for the next rank, for tests of the probe.
Result<GpuMesh::Arrived> GpuMesh::ProbeProtocol(ProbePlace& place, const Plan& plan, size_t bytes,
                                                bool corrupt) {
  Arrived found_wrong;
  const auto n = static_cast<size_t>(args_.num_ranks);
  const auto me = static_cast<size_t>(args_.rank);
  std::vector<uint8_t> data(n * bytes), found(n * bytes);
  for (size_t r = 0; r < n; ++r)
    for (size_t i = 0; i < bytes; ++i) data[r * bytes + i] = PatternAt(me, r, i);
  if (corrupt) data[(me + 1) % n * bytes + bytes / 2] ^= 4;
  const cuda::DeviceAddress in = place.memory.address(), out = in + n * bytes;
  TUTTI_TRY(place.stream.CopyIn(in, data.data(), n * bytes));
  TUTTI_TRY(place.stream.Clear(out, n * bytes));
  CollectiveTask task;
  task.collective = Collective::kAlltoAll;
  task.send = reinterpret_cast<const void*>(in);
  task.recv = reinterpret_cast<void*>(out);
  task.count = bytes;
  TUTTI_TRY(LaunchKernel(task, plan, place.stream.get()));
  if (Status arrived =
          place.finish.Await(Deadline::AfterSeconds(kPatienceS), place.peers.abort_flag);
      !arrived.ok()) {
    queue_->Abort();
    if (arrived.code() != Code::kTimeout) return arrived;
    Status ended = place.finish.Await(Deadline::AfterSeconds(kPatienceS), nullptr);
    stuck_ = ended.code() == Code::kTimeout;
    TUTTI_TRY(std::move(ended));
    return SystemError("after {} s not all that other GPUs wrote into its window has arrived",
                       kPatienceS);
  }
  TUTTI_TRY(place.stream.CopyOut(found.data(), out, n * bytes));
  for (size_t r = 0; r < n; ++r) {
    for (size_t i = 0; i < bytes; ++i) {
      const uint8_t expected = PatternAt(r, me, i), got = found[r * bytes + i];
      if (got == expected || !found_wrong.wrong.ok()) continue;
      found_wrong.wrong = SystemError(
          "of {} bytes that {} wrote into its window, byte {} reads {:#04x} and "
          "should be {:#04x}",
          bytes, place.peers.NameOf(r), i, got, expected);
    }
  }
  return found_wrong;
}

}  // namespace tutti
