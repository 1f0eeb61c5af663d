// Checks and then measures the device API on GPUs of one machine: barriers, an AllReduce and an
// exchange of small elements inside kernels. The source serves any library with NCCL's device API,
// and the same program measures Tutti and NCCL:
//
//   nvcc -std=c++17 -O3 -arch=native -I INCLUDE device_bench.cu -L LIBRARY -lnccl -o device_bench
//   LD_LIBRARY_PATH=LIBRARY ./device_bench [GPUS]
//
// INCLUDE has nccl.h and nccl_device.h of 2.28 or later, of either maker. The library and the
// headers need not have the same maker. Prints lines "name size microseconds", the median of
// several launches on the slowest GPU.

#include <nccl.h>
#include <nccl_device.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const ncclResult_t result_ = (call);                                                       \
    if (result_ != ncclSuccess) {                                                              \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result_), \
                   ncclGetLastError(nullptr));                                                 \
      std::exit(1);                                                                            \
    }                                                                                          \
  } while (0)
#define CHECK_CUDA(call)                                                                    \
  do {                                                                                      \
    const cudaError_t result_ = (call);                                                     \
    if (result_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(result_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

namespace {

constexpr int kMostBlocks = 32;
constexpr int kMostElements = 1024;  // of an exchange, for each rank
constexpr size_t kBufferBytes = size_t{16} << 20;

// A barrier of threads that meet again and again.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}
  void Wait() {
    const int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_ = 0;
      ++round_;
    } else {
      while (round_.load() == round) std::this_thread::yield();
    }
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

__global__ void Barriers(ncclDevComm comm, int count) {
  ncclCoopCta cta;
  ncclLsaBarrierSession<ncclCoopCta> barrier(cta, comm, ncclTeamTagLsa(), blockIdx.x);
  for (int i = 0; i < count; ++i) barrier.sync(cta, cuda::memory_order_acq_rel);
}

// Sums `vectors` of 4 floats: every rank reads its share of all inputs and writes the sums to all.
template <int kRanks>
__device__ void SumShare(const ncclDevComm& comm, ncclWindow_t in, ncclWindow_t out,
                         size_t vectors) {
  const size_t threads = size_t{blockDim.x} * gridDim.x * kRanks;
  const size_t first =
      threadIdx.x + size_t{blockDim.x} * (blockIdx.x + size_t{gridDim.x} * comm.lsaRank);
  const float4* inputs[kRanks];
  float4* outputs[kRanks];
#pragma unroll
  for (int peer = 0; peer < kRanks; ++peer) {
    inputs[peer] = static_cast<const float4*>(ncclGetLsaPointer(in, 0, peer));
    outputs[peer] = static_cast<float4*>(ncclGetLsaPointer(out, 0, peer));
  }
  for (size_t i = first; i < vectors; i += threads) {
    float4 parts[kRanks];
#pragma unroll
    for (int peer = 0; peer < kRanks; ++peer) parts[peer] = inputs[peer][i];
    float4 sum = parts[0];
#pragma unroll
    for (int peer = 1; peer < kRanks; ++peer) {
      sum.x += parts[peer].x;
      sum.y += parts[peer].y;
      sum.z += parts[peer].z;
      sum.w += parts[peer].w;
    }
#pragma unroll
    for (int peer = 0; peer < kRanks; ++peer) outputs[peer][i] = sum;
  }
}

__global__ void AllReduces(ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, size_t vectors,
                           int count) {
  ncclCoopCta cta;
  ncclLsaBarrierSession<ncclCoopCta> barrier(cta, comm, ncclTeamTagLsa(), blockIdx.x);
  for (int i = 0; i < count; ++i) {
    barrier.sync(cta, cuda::memory_order_acq_rel);
    if (comm.lsaSize == 2) SumShare<2>(comm, in, out, vectors);
    if (comm.lsaSize == 4) SumShare<4>(comm, in, out, vectors);
    if (comm.lsaSize == 8) SumShare<8>(comm, in, out, vectors);
    barrier.sync(cta, cuda::memory_order_acq_rel);
  }
}

// Every rank sends `elements` numbers to all other ranks, `count` times.
__global__ void Exchanges(ncclDevComm comm, ncclLLA2AHandle handle, int elements, int count,
                          unsigned* wrong) {
  ncclCoopCta cta;
  const int ranks = comm.lsaSize, all = ranks * elements;
  for (int round = 0; round < count; ++round) {
    ncclLLA2ASession<ncclCoopCta> exchange(cta, comm, ncclTeamLsa(comm), handle, blockIdx.x, all);
    for (int i = threadIdx.x; i < all; i += blockDim.x) {
      const int peer = i / elements;
      exchange.send(peer, comm.lsaRank * elements + i % elements,
                    round * 1000003u + comm.lsaRank * 4099u + peer * 17u + i % elements);
    }
    for (int i = threadIdx.x; i < all; i += blockDim.x) {
      const int peer = i / elements;
      const unsigned expected = round * 1000003u + peer * 4099u + comm.lsaRank * 17u + i % elements;
      if (exchange.recv<unsigned>(i) != expected) atomicAdd(wrong, 1u);
    }
    exchange.endEpoch(cta);
  }
}

struct Rank {
  int number = 0;
  int ranks = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* memory[2] = {};
  ncclWindow_t windows[2] = {};
  ncclDevComm devcomm;
  ncclLLA2AHandle exchange;
  unsigned* wrong = nullptr;
};

void Open(Rank& rank, const ncclUniqueId& id) {
  CHECK_CUDA(cudaSetDevice(rank.number));
  CHECK(ncclCommInitRank(&rank.comm, rank.ranks, id, rank.number));
  CHECK_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  for (int i = 0; i < 2; ++i) {
    CHECK(ncclMemAlloc(&rank.memory[i], kBufferBytes));
    CHECK(ncclCommWindowRegister(rank.comm, rank.memory[i], kBufferBytes, &rank.windows[i],
                                 NCCL_WIN_COLL_SYMMETRIC));
    if (rank.windows[i] == nullptr) {
      std::fprintf(stderr, "rank %d has no window\n", rank.number);
      std::exit(1);
    }
  }
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements_t requirements;
  std::memset(&requirements, 0, sizeof(requirements));
#endif
  requirements.lsaBarrierCount = kMostBlocks;
  ncclDevResourceRequirements_t element;
  std::memset(&element, 0, sizeof(element));
  CHECK(ncclLLA2ACreateRequirement(1,
                                   ncclLLA2ACalcSlots(rank.ranks * kMostElements, sizeof(unsigned)),
                                   &rank.exchange, &element));
  requirements.resourceRequirementsList = &element;
  CHECK(ncclDevCommCreate(rank.comm, &requirements, &rank.devcomm));
  CHECK_CUDA(cudaMalloc(&rank.wrong, sizeof(unsigned)));
  CHECK_CUDA(cudaMemset(rank.wrong, 0, sizeof(unsigned)));
}

void Close(Rank& rank) {
  CHECK(ncclDevCommDestroy(rank.comm, &rank.devcomm));
  for (int i = 0; i < 2; ++i) {
    CHECK(ncclCommWindowDeregister(rank.comm, rank.windows[i]));
    CHECK(ncclMemFree(rank.memory[i]));
  }
  CHECK_CUDA(cudaFree(rank.wrong));
  CHECK(ncclCommDestroy(rank.comm));
}

using Launch = std::function<void(Rank&, int count)>;

// Returns the microseconds of one of `count` rounds inside a kernel.
double TimeOf(Rank& rank, Meeting& meeting, int count, const Launch& launch) {
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int again = 0; again < 9; ++again) {
    meeting.Wait();
    CHECK_CUDA(cudaEventRecord(begin, rank.stream));
    launch(rank, count);
    CHECK_CUDA(cudaEventRecord(end, rank.stream));
    CHECK_CUDA(cudaStreamSynchronize(rank.stream));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (again > 1) times.push_back(ms * 1000.0 / count);
  }
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Fills the inputs, and checks an AllReduce of all bytes.
void CheckAllReduce(Rank& rank, Meeting& meeting) {
  constexpr size_t kCount = kBufferBytes / sizeof(float);
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i)
    values[i] = static_cast<float>((rank.number + 1) * (i % 1009));
  CHECK_CUDA(cudaMemcpy(rank.memory[0], values.data(), kBufferBytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(rank.memory[1], 0, kBufferBytes));
  meeting.Wait();
  AllReduces<<<kMostBlocks, 512, 0, rank.stream>>>(rank.devcomm, rank.windows[0], rank.windows[1],
                                                   kBufferBytes / 16, 3);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaStreamSynchronize(rank.stream));
  CHECK_CUDA(cudaMemcpy(values.data(), rank.memory[1], kBufferBytes, cudaMemcpyDeviceToHost));
  const int factors = rank.ranks * (rank.ranks + 1) / 2;
  for (size_t i = 0; i < kCount; ++i) {
    if (values[i] == static_cast<float>(factors * (i % 1009))) continue;
    std::fprintf(stderr, "rank %d: element %zu is %g\n", rank.number, i, values[i]);
    std::exit(1);
  }
}

void CheckExchange(Rank& rank) {
  unsigned wrong = 0;
  CHECK_CUDA(cudaMemcpy(&wrong, rank.wrong, sizeof(wrong), cudaMemcpyDeviceToHost));
  if (wrong == 0) return;
  std::fprintf(stderr, "rank %d: %u elements of the exchange are wrong\n", rank.number, wrong);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  int gpus = 0;
  CHECK_CUDA(cudaGetDeviceCount(&gpus));
  const int ranks = argc > 1 ? std::atoi(argv[1]) : gpus;
  if (ranks > gpus || (ranks != 2 && ranks != 4 && ranks != 8)) {
    std::fprintf(stderr, "usage: device_bench [2, 4 or 8 GPUs; this machine has %d]\n", gpus);
    return 2;
  }
  int version = 0;
  CHECK(ncclGetVersion(&version));
  std::printf("# library %d, headers %d, %d GPUs\n", version, NCCL_VERSION_CODE, ranks);

  struct Case {
    const char* name;
    size_t size;
    int count;
    Launch launch;
  };
  std::vector<Case> cases;
  for (const int blocks : {1, 8, 32})
    cases.push_back({"barrier", static_cast<size_t>(blocks), 200, [=](Rank& rank, int count) {
                       Barriers<<<blocks, 128, 0, rank.stream>>>(rank.devcomm, count);
                     }});
  for (const size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{16} << 20})
    for (const int blocks : {4, 16, 32})
      cases.push_back({blocks == 4    ? "allreduce_4_blocks"
                       : blocks == 16 ? "allreduce_16_blocks"
                                      : "allreduce_32_blocks",
                       bytes, 50, [=](Rank& rank, int count) {
                         AllReduces<<<blocks, 512, 0, rank.stream>>>(
                             rank.devcomm, rank.windows[0], rank.windows[1], bytes / 16, count);
                       }});
  for (const int elements : {1, 32, 1024})
    cases.push_back({"ll_exchange", static_cast<size_t>(elements), 200, [=](Rank& rank, int count) {
                       Exchanges<<<1, std::clamp(rank.ranks * elements, 32, 512), 0, rank.stream>>>(
                           rank.devcomm, rank.exchange, elements, count, rank.wrong);
                     }});

  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  Meeting meeting(ranks);
  std::vector<std::vector<double>> times(cases.size(), std::vector<double>(ranks));
  std::vector<std::thread> threads;
  for (int number = 0; number < ranks; ++number) {
    threads.emplace_back([&, number] {
      Rank rank;
      rank.number = number;
      rank.ranks = ranks;
      Open(rank, id);
      CheckAllReduce(rank, meeting);
      for (size_t i = 0; i < cases.size(); ++i)
        times[i][number] = TimeOf(rank, meeting, cases[i].count, cases[i].launch);
      CheckExchange(rank);
      meeting.Wait();
      Close(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cases.size(); ++i)
    std::printf("%-20s %10zu %10.2f\n", cases[i].name, cases[i].size,
                *std::max_element(times[i].begin(), times[i].end()));
  return 0;
}
