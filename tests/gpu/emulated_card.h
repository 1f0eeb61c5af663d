#pragma once

// Runs a program of this folder over the emulated mlx5 card (tests/fakecard). The card consists of
// threads of the program. Kernels write the card's queues themselves (GIN direct), in memory of
// their GPU. The card reads the queues, writes completions and moves bytes between GPUs by CUDA's
// copies, by way of pinned memory. With EMULATED_CARD_QUEUES=host in the environment the card
// refuses queues in memory of GPUs, and the queues are in pinned memory. kernel_cases.h includes
// this header where KERNEL_CASES_OVER_EMULATED_CARD is defined. All ranks are threads.
//
// When a step nearly reaches its time limit, the state of the card's queues is printed, on the
// card's side and on the kernels' side.

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "fakecard/fake_mlx5.h"
#include "fakeverbs/fake_verbs.h"
#include "kernel_cases.h"

namespace emulated_card {

inline void Ask(const char* name, const char* value) { setenv(name, value, /*overwrite=*/1); }

// Sets the library's environment, before the library is first called.
inline void ChooseByEnvironment() {
  Ask("NCCL_GIN_TYPE", "3");
  Ask("NCCL_NET", "Socket");
  Ask("NCCL_GIN_ERROR_QUERY_SEC", "1");
  // Both libraries are linked already, and are found by these names.
  Ask("TUTTI_IBVERBS", "libfakeverbs.so");
  Ask("TUTTI_MLX5", "libfakemlx5.so");
  Ask("FAKE_VERBS", "fake0=10.77.0.1");
  // The card copies in CUDA's order. The card reaches memory of GPUs by its address.
  Ask("NCCL_GDR_FLUSH_DISABLE", "1");
#ifdef __CUDACC__
  Ask("NCCL_DMABUF_ENABLE", "0");
#endif
}

#ifdef __CUDACC__

constexpr int kMostDevices = 16;
constexpr size_t kStageBytes = 256 << 10;
constexpr size_t kRegisterBytes = 1 << 20;

inline bool IsFar(const void* at) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess) return false;
  return attributes.type == cudaMemoryTypeDevice;
}

// Copies by a stream of the GPU that has the memory. Called on any thread; the thread's device
// stays the same.
class Copier {
 public:
  void Prepare() {
    CHECK_CUDA(cudaHostAlloc(&stage_, kStageBytes, cudaHostAllocPortable));
    int devices = 0, before = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaGetDevice(&before));
    for (int i = 0; i < devices && i < kMostDevices; ++i) {
      CHECK_CUDA(cudaSetDevice(i));
      CHECK_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
      // CUDA loads its copy kernels now, and not while kernels wait.
      void* scratch = nullptr;
      CHECK_CUDA(cudaMalloc(&scratch, 4096));
      for (const size_t bytes : {1, 8, 4096}) {
        Copy(scratch, stage_, bytes);
        Copy(stage_, scratch, bytes);
      }
    }
    CHECK_CUDA(cudaSetDevice(before));
  }
  void Copy(void* to, const void* from, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    int before = 0;
    CHECK_CUDA(cudaGetDevice(&before));
    for (size_t at = 0; at < bytes; at += kStageBytes) {
      const size_t piece = std::min(kStageBytes, bytes - at);
      Move(stage_, static_cast<const char*>(from) + at, piece);
      Move(static_cast<char*>(to) + at, stage_, piece);
    }
    CHECK_CUDA(cudaSetDevice(before));
  }

 private:
  void Move(void* to, const void* from, size_t bytes) {
    if (to == from) return;
    cudaPointerAttributes of_to = {}, of_from = {};
    CHECK_CUDA(cudaPointerGetAttributes(&of_to, to));
    CHECK_CUDA(cudaPointerGetAttributes(&of_from, from));
    const bool is_far = of_to.type == cudaMemoryTypeDevice;
    if (!is_far && of_from.type != cudaMemoryTypeDevice) {
      std::memcpy(to, from, bytes);
      return;
    }
    const int device = is_far ? of_to.device : of_from.device;
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaMemcpyAsync(to, from, bytes,
                               is_far ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                               streams_[device]));
    CHECK_CUDA(cudaStreamSynchronize(streams_[device]));
  }

  std::mutex mutex_;
  void* stage_ = nullptr;
  cudaStream_t streams_[kMostDevices] = {};
};
inline Copier card_copies, watch_copies;
inline void CopyForCard(void* to, const void* from, size_t bytes) {
  card_copies.Copy(to, from, bytes);
}
inline void CopyForWatch(void* to, const void* from, size_t bytes) {
  watch_copies.Copy(to, from, bytes);
}
// Lets the card and its registers be reached, for a process whose ranks come next.
inline void ReachGpus() {
  void* registers = nullptr;
  CHECK_CUDA(
      cudaHostAlloc(&registers, kRegisterBytes, cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(registers, 0, kRegisterBytes);
  fakemlx5::PutRegistersInto(registers, kRegisterBytes);
  card_copies.Prepare();
  watch_copies.Prepare();
  fakemlx5::ReachFarMemory({IsFar, CopyForCard});
}

#else

inline bool IsFar(const void*) { return false; }
inline void CopyForWatch(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void ReachGpus() {}

#endif

// -------------------------------------------------------------------------------------------------
// The watch
// -------------------------------------------------------------------------------------------------

struct Watched {
  std::mutex mutex;
  ncclDevComm comms[kernel_cases::kMostRanks] = {};
  bool present[kernel_cases::kMostRanks] = {};
};
inline Watched watched;

inline void WatchRank(int rank, const ncclDevComm* comm) {
  const std::lock_guard<std::mutex> lock(watched.mutex);
  watched.present[rank] = comm != nullptr;
  if (comm != nullptr) watched.comms[rank] = *comm;
}

inline void Print(const std::string& line) {
  const std::string whole = "    " + line + "\n";
  if (write(1, whole.data(), whole.size()) < 0) return;
}

// Prints how far the kernels of a rank have come with their queues.
inline void PrintKernelsSide(const ncclDevComm& comm) {
  using tutti::device::GdakiContext;
  using tutti::device::mlx5::QueuePair;
  for (uint32_t c = 0; c < comm.ginContextCount; ++c) {
    GdakiContext context;
    CopyForWatch(&context, static_cast<const GdakiContext*>(comm.ginHandles[0]) + c,
                 sizeof(context));
    for (int i = 0; i < 2 * comm.nRanks; ++i) {
      QueuePair pair;
      const int peer = i / 2;
      CopyForWatch(&pair, (i % 2 == 0 ? context.gdqp : context.companion_gdqp) + peer,
                   sizeof(pair));
      if (pair.reserved == 0) continue;
      char text[256];
      std::snprintf(text, sizeof(text),
                    "rank %d, context %u, %s of rank %d, queue %#x: reserved %llu ready %llu rung "
                    "%llu done %llu failed %llu lock %d",
                    comm.rank, c, i % 2 == 0 ? "main" : "companion", peer, pair.number,
                    static_cast<unsigned long long>(pair.reserved),
                    static_cast<unsigned long long>(pair.ready),
                    static_cast<unsigned long long>(pair.rung),
                    static_cast<unsigned long long>(pair.completions.done),
                    static_cast<unsigned long long>(pair.failed), pair.lock);
      Print(text);
    }
    for (int i = 0; i < comm.ginSignalCount && i < 16; ++i) {
      uint64_t value = 0;
      CopyForWatch(&value, context.signals_table.buffer + context.signals_table.offset + i,
                   sizeof(value));
      if (value != 0)
        Print("rank " + std::to_string(comm.rank) + ", context " + std::to_string(c) + ": signal " +
              std::to_string(i) + " is " + std::to_string(value));
    }
  }
}

inline void PrintAll() {
  Print("");
  // DescribeQueues comes first, because Complaints waits for the library's lock, and a stuck thread
  // may hold this lock.
  for (const std::string& line : fakemlx5::DescribeQueues()) Print(line);
  for (const std::string& complaint : fakemlx5::Complaints()) Print("complaint: " + complaint);
  const std::lock_guard<std::mutex> lock(watched.mutex);
  for (int rank = 0; rank < kernel_cases::kMostRanks; ++rank)
    if (watched.present[rank]) PrintKernelsSide(watched.comms[rank]);
}

// Starts the watching thread, which ends with the process.
inline void Begin() {
  ReachGpus();
  const char* const queues = std::getenv("EMULATED_CARD_QUEUES");
  if (queues != nullptr && std::string(queues) == "host")
    fakeverbs::RefuseCalls("umem_reg_far", EOPNOTSUPP, /*times=*/1 << 30);
  std::thread([] {
    long printed = 0;
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const long begun = kernel_cases::step_begun;
      const long most = static_cast<long>(kernel_cases::CaseSeconds()) * 3 / 4;
      if (begun == 0 || begun == printed || kernel_cases::SecondsNow() - begun < most) continue;
      printed = begun;
      PrintAll();
    }
  }).detach();
}

// Prints where the queues of a device communicator lie; ends the program where its kernels do not
// drive the card.
inline void TellQueues(const ncclDevComm& comm) {
  if (comm.ginConnectionCount == 0 || comm.ginNetDeviceTypes[0] != NCCL_NET_DEVICE_GIN_GDAKI) {
    std::printf("failed: kernels do not drive the card; NCCL_DEBUG=INFO says why\n");
    std::_Exit(1);
  }
  tutti::device::GdakiContext context;
  tutti::device::mlx5::QueuePair pair;
  CopyForWatch(&context, comm.ginHandles[0], sizeof(context));
  CopyForWatch(&pair, context.gdqp, sizeof(pair));
  Print(std::string("queues of the card lie in memory of the ") +
        (IsFar(pair.entries) ? "GPU" : "host"));
}

// Returns the mistakes of kernels with the card since the last call; empty without mistakes.
inline std::string WhatWasWrong() {
  std::string all;
  for (const std::string& complaint : fakemlx5::Complaints()) all += complaint + "; ";
  return all;
}

}  // namespace emulated_card
