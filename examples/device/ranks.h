// The shared part of the examples: ranks that are threads of this program, memory of their devices,
// and the end of the program at the first error.

#ifndef TUTTI_EXAMPLES_DEVICE_RANKS_H_
#define TUTTI_EXAMPLES_DEVICE_RANKS_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "nccl_device.h"

#define CHECK(call)                                                              \
  do {                                                                           \
    const ncclResult_t check_result = (call);                                    \
    if (check_result != ncclSuccess) {                                           \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                \
                   ncclGetErrorString(check_result), ncclGetLastError(nullptr)); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

#ifdef __CUDACC__
// Ends the program if a call of CUDA has failed.
inline void CheckCuda(cudaError_t result, const char* doing) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(result));
  std::exit(1);
}
#endif

// Gives the calling thread the device of its rank: on a machine with GPUs rank r has GPU r.
inline void ChooseDevice([[maybe_unused]] int rank) {
#ifdef __CUDACC__
  CheckCuda(cudaSetDevice(rank), "choosing the GPU of a rank");
#endif
}

// Runs body(rank, communicator) on `num_ranks` threads, each of which is a rank.
template <typename Body>
void RunRanks(int num_ranks, const Body& body) {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ChooseDevice(rank);
      ncclComm_t comm;
      CHECK(ncclCommInitRank(&comm, num_ranks, id, rank));
      body(rank, comm);
      CHECK(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Memory of the rank's device that all ranks can reach: a window.
struct SharedBuffer {
  SharedBuffer(ncclComm_t in_comm, size_t in_bytes) : comm(in_comm), bytes(in_bytes) {
    CHECK(ncclMemAlloc(&memory, bytes));
    CHECK(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  }
  SharedBuffer(const SharedBuffer&) = delete;
  ~SharedBuffer() {
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
  }
  void Write(const void* from) { Copy(memory, from); }
  // Waits for the kernels of this rank first. While a copy into ordinary memory waits for a kernel,
  // CUDA lets no other thread copy, and the kernel may wait for a copy by the library.
  void Read(void* to) {
#ifdef __CUDACC__
    CheckCuda(cudaDeviceSynchronize(), "waiting for the kernels");
#endif
    Copy(to, memory);
  }

  ncclComm_t comm;
  size_t bytes;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;

 private:
  void Copy(void* to, const void* from) {
#ifdef __CUDACC__
    CheckCuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copying");
#else
    std::memcpy(to, from, bytes);
#endif
  }
};

// Ends the program unless kernels reach the memory of all ranks.
inline void CheckAllReachable(const ncclCommProperties_t& properties) {
  if (properties.deviceApiSupport && properties.nLsaTeams == 1) return;
  std::fprintf(stderr, "kernels of these ranks do not reach one another's memory\n");
  std::exit(1);
}

// Returns the abilities of a communicator. Ends the program unless its kernels can put to all
// ranks.
inline ncclCommProperties_t PropertiesWithGin(ncclComm_t comm) {
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  if (properties.ginType == NCCL_GIN_TYPE_NONE) {
    std::fprintf(stderr, "kernels of these ranks cannot put to all others\n");
    std::exit(1);
  }
  return properties;
}

#endif  // TUTTI_EXAMPLES_DEVICE_RANKS_H_
