// A stand-in for the CUDA driver. The memory of its "GPUs" is memory of this machine, their streams
// are threads, and their kernels are the library's own sources compiled for the host, with a thread
// for each block. A program that finds the stand-in under the name libcuda.so.1 takes the machine
// for a machine with GPUs. Everything above the driver can thus be tested without a GPU. This file
// has devices, contexts, modules and launches; fake_memory.cc, fake_streams.cc and fake_graphs.cc
// have the rest.
//
// The stand-in cannot show the memory order of real GPUs, blocks of more than one thread, and time.
//
//   TUTTI_FAKE_GPUS=n          the number of devices (4)
//   TUTTI_FAKE_NO_PEER=1       no device may map another's memory
//   TUTTI_FAKE_PCIE=1          no NVLink between them
//   TUTTI_FAKE_MULTIPROCESSORS=n   of each device (4), or of one device with _0, _1 … at the end
//   TUTTI_FAKE_COMPUTE_1=8     the compute capability of device 1 (9: as an H100)
//   TUTTI_FAKE_VERSION=11080   the version that the driver reports
//   TUTTI_FAKE_MEMORY=bytes    the memory of a device; further memory is refused
//   TUTTI_FAKE_MIG=1           all devices are parts of one GPU, at one PCI address
//   TUTTI_FAKE_PAGEABLE=1      devices read ordinary memory of the host, as on coherent machines
//   TUTTI_FAKE_NO_DMABUF=1     memory is not lent to NICs
//   TUTTI_FAKE_HOST_BEGINS=1   the driver tells where mapped memory of the host begins
//   TUTTI_FAKE_WRITES_ORDERING=100   kernels see writes of NICs in the order of their completions
//   TUTTI_FAKE_STICKY=n        the n-th launch and all later calls fail, as after a bad access

#include "fake_state.h"

namespace fake {
namespace {

void RunBlocks(const FakeFunction& function, const std::vector<std::byte>& args, uint32_t blocks) {
  State& s = TheState();
  const void* const owned = function.owns(args.data());
  {
    std::lock_guard lock(s.mutex);
    if (!s.working.insert(owned).second) ++s.overlaps;
  }
  std::vector<std::thread> threads;
  for (uint32_t b = 1; b < blocks; ++b)
    threads.emplace_back([&, b] { function.run(args.data(), b); });
  function.run(args.data(), 0);
  for (std::thread& thread : threads) thread.join();
  std::lock_guard lock(s.mutex);
  s.working.erase(owned);
}

// Makes the record of the event that a launch records when its kernel begins, if the launch has an
// event.
int ReadBegunEvent(const LaunchConfig& config, Work& begun) {
  for (unsigned i = 0; i < config.num_attributes; ++i) {
    if (config.attributes[i].id != kBegunEvent) continue;
    void* handle = nullptr;
    std::memcpy(&handle, config.attributes[i].value, sizeof(handle));
    const EventRef event = EventOf(handle);
    if (event->keeps_time) return kNotSupported;
    ++TheState().begun_events;
    const FakeStream::Capture capture = StreamOf(config.stream).capture();
    {
      std::lock_guard lock(event->mutex);
      event->capture = capture;
      if (capture) event->reached = ++event->recorded;
    }
    if (!capture) begun = Record(event);
  }
  return kSuccess;
}

}  // namespace
}  // namespace fake

using namespace fake;  // NOLINT: all of it is for these functions

extern "C" {

int cuInit(unsigned) { return TheState().devices.empty() ? 100 : kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Number("TUTTI_FAKE_VERSION", 13000));
  return kSuccess;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kNoPeerAccess   ? "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : "CUDA_ERROR_OF_THE_FAKE";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "said by the fake driver";
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return DeviceOf(ordinal) ? kSuccess : kInvalidDevice;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(TheState().devices.size());
  return kSuccess;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  snprintf(name, static_cast<size_t>(bytes), "fake GPU %d", device);
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const long multiprocessors =
      Number(("TUTTI_FAKE_MULTIPROCESSORS_" + std::to_string(device)).c_str(),
             Number("TUTTI_FAKE_MULTIPROCESSORS", 4));
  const long compute = Number(("TUTTI_FAKE_COMPUTE_" + std::to_string(device)).c_str(), 9);
  *value = attribute == 75                 ? static_cast<int>(compute)
           : attribute == 16               ? static_cast<int>(multiprocessors)
           : attribute == kStreamsUseWords ? Number("TUTTI_FAKE_NO_WORDS", 0) == 0
           : attribute == 88               ? Number("TUTTI_FAKE_PAGEABLE", 0) != 0
           : attribute == 110 || attribute == 124
               ? Number("TUTTI_FAKE_NO_DMABUF", 0) == 0  // NICs may reach its memory
           : attribute == 118 ? Number("TUTTI_FAKE_WRITES_ORDERING", 0)
           : attribute == 33  ? (Number("TUTTI_FAKE_MIG", 0) == 0 ? device + 1 : 1)
                              : 0;
  return kSuccess;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(device + 1);
  return kSuccess;
}
int cuDeviceGetByPCIBusId(int* device, const char* name) {
  unsigned domain = 0, bus = 0;
  if (sscanf(name, "%x:%x:", &domain, &bus) != 2 || DeviceOf(static_cast<int>(bus) - 1) == nullptr)
    return kInvalidDevice;
  *device = static_cast<int>(bus) - 1;
  return kSuccess;
}
int cuDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = Number("TUTTI_FAKE_PCIE", 0) == 0;
  return kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = Number("TUTTI_FAKE_NO_PEER", 0) == 0;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = DeviceOf(device);
  return *context ? kSuccess : kInvalidDevice;
}
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxGetCurrent(void** context) {
  *context = Current();
  return kSuccess;
}
int cuCtxGetDevice(int* device) {
  if (!Current()) return 201;
  *device = Current()->number;
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  contexts.clear();
  if (context) contexts.push_back(static_cast<FakeDevice*>(context));
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(static_cast<FakeDevice*>(context));
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = Current();
  contexts.pop_back();
  return kSuccess;
}
int cuCtxSynchronize() {
  if (Broken()) return kIllegalAddress;
  if (const int refused = Refused()) return refused;
  {  // In any mode, captured work cannot be waited for.
    std::lock_guard lock(TheState().mutex);
    for (FakeStream* stream : Current()->streams) {
      const auto capture = stream->capture();
      if (!capture) continue;
      capture->invalid = true;
      return kCaptureUnsupported;
    }
  }
  AwaitDevice(/*all=*/true);
  return kSuccess;
}
int cuModuleLoadData(void** module, const void*) {
  if (const int refused = Refused()) return refused;
  *module = &TheState();
  return kSuccess;
}
int cuModuleUnload(void*) { return Refused(); }
int cuModuleGetFunction(void** function, void*, const char* name) {
  const auto found = TheState().functions.find(std::string_view(name));
  if (found == TheState().functions.end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 32;
  return kSuccess;
}
int cuLaunchKernelEx(const tutti::cuda::LaunchConfig* config, void* function, void** parameters,
                     void**) {
  void* const stream = config->stream;
  ++TheState().launches;
  if (Broken()) return kIllegalAddress;
  if (!IsStreamOfCurrentDevice(stream)) return kInvalidHandle;
  if (FailsNow(launches_to_failure)) return kOutOfMemory;
  const auto& kernel = *static_cast<FakeFunction*>(function);
  std::vector<std::byte> args(kernel.args_bytes);
  std::memcpy(args.data(), parameters[0], kernel.args_bytes);
  std::atomic<uint32_t>& most_blocks = TheState().most_blocks;
  for (uint32_t most = most_blocks; most < config->grid[0];)
    if (most_blocks.compare_exchange_weak(most, config->grid[0])) break;
  Work begun = nullptr;
  if (const int refused = ReadBegunEvent(*config, begun)) return refused;
  StreamOf(stream).Queue([&kernel, args = std::move(args), blocks = config->grid[0], begun] {
    if (begun) begun();
    RunBlocks(kernel, args, blocks);
  });
  return kSuccess;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  StreamOf(stream).Queue([=] { function(data); });
  return kSuccess;
}

// Functions for tests, which a driver does not have.
int tuttiFakeOverlaps() { return TheState().overlaps; }
int tuttiFakeRunningKernels() {
  std::lock_guard lock(TheState().mutex);
  return static_cast<int>(TheState().working.size());
}
// The bytes of the largest copy between memory of devices and of the host since the last call.
size_t tuttiFakeLargestCrossing() { return TheState().largest_crossing.exchange(0); }
int tuttiFakeBegunEvents() { return TheState().begun_events.exchange(0); }
uint32_t tuttiFakeMostBlocks() { return TheState().most_blocks.exchange(0); }
void tuttiFakeFailNextLaunch() { launches_to_failure = 1; }
void tuttiFakeFailLaunch(int number) { launches_to_failure = number; }

}  // extern "C"
