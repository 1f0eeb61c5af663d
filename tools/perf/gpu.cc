#include "perf/gpu.h"

namespace tutti::tools {
namespace {

constexpr unsigned kNonBlockingStream = 1;
constexpr int kThreadLocalCapture = 1;

cuda::DeviceAddress AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::Open(int index) {
  TUTTI_ASSIGN(const cuda::Driver* const driver, cuda::Driver::Find());
  if (driver->num_devices() == 0) return InvalidUsage("this machine shows no GPU");
  std::unique_ptr<Gpu> gpu(new Gpu(*driver));
  const int device = index % driver->num_devices();
  cuda::Context context = nullptr;
  TUTTI_TRY(driver->Check(driver->PrimaryContextRetain(&context, device), "opening a GPU"));
  gpu->device_ = device;
  TUTTI_TRY(driver->Check(driver->ContextSetCurrent(context), "choosing a GPU"));
  TUTTI_TRY(driver->Check(driver->StreamCreate(&gpu->stream_, kNonBlockingStream),
                          "making a CUDA stream"));
  return gpu;
}

Gpu::~Gpu() {
  DropGraph();
  if (stream_ != nullptr) driver_.StreamDestroy(stream_);
  if (device_ >= 0) driver_.PrimaryContextRelease(device_);
}

Status Gpu::Synchronize() {
  return driver_.Check(driver_.StreamSynchronize(stream_), "waiting for the GPU");
}

Result<char*> Gpu::Allocate(size_t bytes) {
  cuda::DeviceAddress address = 0;
  TUTTI_TRY(driver_.Check(driver_.MemAlloc(&address, bytes),
                          fmt::format("allocating {} bytes on the GPU", bytes)));
  return reinterpret_cast<char*>(address);
}

Result<char*> Gpu::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  TUTTI_TRY(driver_.Check(driver_.MemHostAlloc(&memory, bytes, cuda::kPinnedForAll),
                          fmt::format("pinning {} bytes of the host", bytes)));
  return static_cast<char*>(memory);
}

void Gpu::FreePinned(char* memory) { driver_.MemFreeHost(memory); }

void Gpu::Free(char* memory) { driver_.MemFree(AddressOf(memory)); }

Status Gpu::Set(char* to, int byte, size_t bytes) {
  if (bytes == 0) return {};
  TUTTI_TRY(
      driver_.Check(driver_.MemsetBytes(AddressOf(to), static_cast<unsigned char>(byte), bytes),
                    "filling GPU memory"));
  // Wait for the filling here, because the stream of operations does not wait for the default
  // stream.
  return driver_.Check(driver_.StreamSynchronize(nullptr), "filling GPU memory");
}

Status Gpu::Upload(char* to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  TUTTI_TRY(
      driver_.Check(driver_.MemcpyToDevice(AddressOf(to), from, bytes), "copying to the GPU"));
  return driver_.Check(driver_.StreamSynchronize(nullptr), "copying to the GPU");
}

Status Gpu::Download(void* to, const char* from, size_t bytes) {
  if (bytes == 0) return {};
  return driver_.Check(driver_.MemcpyToHost(to, AddressOf(from), bytes), "copying from the GPU");
}

Status Gpu::Capture(const std::function<Status()>& issue) {
  DropGraph();
  TUTTI_TRY(driver_.Check(driver_.StreamBeginCapture(stream_, kThreadLocalCapture),
                          "beginning to capture a graph"));
  const Status issued = issue();
  cuda::Graph graph = nullptr;
  const Status ended =
      driver_.Check(driver_.StreamEndCapture(stream_, &graph), "capturing a graph");
  TUTTI_TRY(issued);
  TUTTI_TRY(ended);
  const Status made =
      driver_.Check(driver_.GraphInstantiate(&graph_, graph, 0), "making a graph runnable");
  driver_.GraphDestroy(graph);
  return made;
}

Status Gpu::LaunchGraph() {
  return driver_.Check(driver_.GraphLaunch(graph_, stream_), "launching a graph");
}

void Gpu::DropGraph() {
  if (graph_ != nullptr) driver_.GraphExecDestroy(graph_);
  graph_ = nullptr;
}

}  // namespace tutti::tools
