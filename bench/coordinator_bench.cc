// Measures the costs of the coordinator, beside the bare collectives under the coordinator, in one
// run:
//
//   coordinator_bench latency [ranks]      one cached 4-byte allreduce, asked for and waited for
//   coordinator_bench fusion [ranks] [apart|together|grouped|data]
//                                          1,000 tensors of 4 KB a step beside one allreduce of 4 MB
//   coordinator_bench negotiation [ranks]  messages and modelled time of a round, up to 1,024 ranks
//   coordinator_bench life [ranks]         creating and shutting down, 400 times in a row
//   coordinator_bench idle [ranks]         CPU time of an idle job
//
// Ranks are processes of this machine, except in `negotiation`, where they are simulated.

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "coordinator/controller.h"
#include "coordinator/testing/simulated_network.h"
#include "tutti/coordinator_c.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

void Check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  fmt::print(stderr, "coordinator_bench: {} {}\n", tuttiCoordinatorLastError(),
             ncclGetLastError(nullptr));
  _exit(1);
}

// Holds the memory that the processes share.
struct Shared {
  std::atomic<int> arrived[4096];
  ncclUniqueId ids[512];
  double values[64];
};

class Rank {
 public:
  Rank(Shared& shared, int rank, int ranks) : shared_(shared), rank_(rank), ranks_(ranks) {}
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Shared& shared() { return shared_; }
  void Meet() {
    std::atomic<int>& arrived = shared_.arrived[meeting_++];
    ++arrived;
    while (arrived.load() < ranks_) std::this_thread::yield();
  }
  ncclUniqueId NewId() {
    const int number = ids_++;
    if (rank_ == 0) Check(ncclGetUniqueId(&shared_.ids[number]));
    Meet();
    return shared_.ids[number];
  }
  tuttiCoordinator_t Create() {
    const ncclUniqueId id = NewId();
    return CreateWith(id);
  }
  tuttiCoordinator_t CreateWith(const ncclUniqueId& id) const {
    tuttiCoordinatorOptions_t options = {};
    options.size = sizeof(options);
    options.id = &id;
    options.rank = rank_;
    options.nranks = ranks_;
    tuttiCoordinator_t coordinator = nullptr;
    Check(tuttiCoordinatorCreate(&coordinator, &options));
    return coordinator;
  }

 private:
  Shared& shared_;
  const int rank_;
  const int ranks_;
  int meeting_ = 0;
  int ids_ = 0;
};

void RunProcesses(int ranks, const std::function<void(Rank&)>& body) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  auto* const shared = new (memory) Shared();
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    Rank self(*shared, rank, ranks);
    body(self);
    fflush(stdout);
    _exit(0);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    wait(&status);
    if (status != 0) std::exit(1);
  }
  munmap(memory, sizeof(Shared));
}

double Percentile(std::vector<double> values, size_t percent) {
  const auto at = static_cast<std::ptrdiff_t>(values.size() * percent / 100);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}
double Median(std::vector<double> values) { return Percentile(std::move(values), 50); }

// Compares two lists of times of one run: their medians, and the ratio of the times of the fastest
// tenths, which work of other programs disturbs least.
struct Beside {
  double bare_us, coordinated_us, ratio, fast_ratio;
};
Beside Compare(const std::vector<double>& bare_ns, const std::vector<double>& coordinated_ns) {
  Beside result = {Median(bare_ns) / 1e3, Median(coordinated_ns) / 1e3, 0, 0};
  result.ratio = result.coordinated_us / result.bare_us;
  result.fast_ratio = Percentile(coordinated_ns, 10) / Percentile(bare_ns, 10);
  return result;
}

tuttiTensor_t Describe(const char* name, const int64_t* shape, float* data) {
  tuttiTensor_t t = {};
  t.size = sizeof(t);
  t.name = name;
  t.kind = tuttiOpAllreduce;
  t.type = tuttiFloat32;
  t.ndim = 1;
  t.shape = shape;
  t.input = data;
  t.output = data;
  t.op = tuttiReduceSum;
  t.prescale = 1;
  t.postscale = 1;
  t.device = -1;
  return t;
}

void AskAndWait(tuttiCoordinator_t coordinator, const tuttiTensor_t& tensor) {
  int64_t handle = 0;
  Check(tuttiCoordinatorEnqueue(coordinator, 0, &tensor, 1, nullptr, &handle));
  Check(tuttiCoordinatorWait(coordinator, handle, -1));
  Check(tuttiCoordinatorRelease(coordinator, handle));
}

// Measures rounds of both kinds in turns, to give both the same machine.
void Latency(int ranks) {
  RunProcesses(ranks, [](Rank& self) {
    const tuttiCoordinator_t coordinator = self.Create();
    const ncclUniqueId id = self.NewId();
    ncclComm_t comm = nullptr;
    Check(ncclCommInitRank(&comm, self.ranks(), id, self.rank()));
    float value = 1;
    const int64_t shape[] = {1};
    const tuttiTensor_t tensor = Describe("t", shape, &value);
    std::vector<double> bare_ns, coordinated_ns;
    for (int round = 0; round < 20; ++round) {
      self.Meet();
      for (int i = 0; i < 1000; ++i) {
        const int64_t begin_ns = NowNs();
        Check(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclMax, comm, nullptr));
        if (round > 1) bare_ns.push_back(static_cast<double>(NowNs() - begin_ns));
      }
      self.Meet();
      for (int i = 0; i < 1000; ++i) {
        const int64_t begin_ns = NowNs();
        AskAndWait(coordinator, tensor);
        if (round > 1) coordinated_ns.push_back(static_cast<double>(NowNs() - begin_ns));
        value = 1;
      }
    }
    const Beside beside = Compare(bare_ns, coordinated_ns);
    if (self.rank() == 0) {
      fmt::print(
          "latency, {} ranks: bare {:.2f} us, coordinated {:.2f} us, ratio {:.2f} (fastest tenth "
          "{:.2f})\n",
          self.ranks(), beside.bare_us, beside.coordinated_us, beside.ratio, beside.fast_ratio);
    }
    self.Meet();
    Check(tuttiCoordinatorDestroy(coordinator));
    Check(ncclCommDestroy(comm));
  });
}

// Reduces the data of a step without the coordinator: one operation on all tensors in place.
class DataAlone {
 public:
  explicit DataAlone(const std::vector<tuttiTensor_t>& tensors) {
    for (const tuttiTensor_t& tensor : tensors) {
      inputs_.push_back(tensor.input);
      outputs_.push_back(tensor.output);
      counts_.push_back(static_cast<size_t>(tensor.shape[0]));
    }
  }
  void Reduce(ncclComm_t comm) const {
    Check(tuttiAllReduceMany(inputs_.data(), outputs_.data(), counts_.data(), counts_.size(),
                             ncclFloat32, ncclMax, comm, nullptr));
  }

 private:
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<size_t> counts_;
};

constexpr int kFusionSteps = 100;

// The times of the steps of a run, without the first ones.
struct FusionTimes {
  std::vector<double> bare_ns, coordinated_ns;
  std::vector<double> parts_ns[3];  // asking; the first wait; further waits and releasing
};

// Asks for all tensors, in one call or in a call for each tensor, and waits for the tensors.
// Returns the time of each part.
std::array<int64_t, 3> AskAndWait(tuttiCoordinator_t coordinator,
                                  const std::vector<tuttiTensor_t>& tensors, bool by_one_call,
                                  std::vector<int64_t>& handles) {
  const int64_t asking_ns = NowNs();
  const size_t at_once = by_one_call ? tensors.size() : 1;
  for (size_t i = 0; i < tensors.size(); i += at_once) {
    Check(tuttiCoordinatorEnqueue(coordinator, 0, &tensors[i], static_cast<int>(at_once), nullptr,
                                  &handles[i]));
  }
  const int64_t asked_ns = NowNs();
  Check(tuttiCoordinatorWait(coordinator, handles.front(), -1));
  const int64_t moved_ns = NowNs();
  for (const int64_t handle : handles) {
    Check(tuttiCoordinatorWait(coordinator, handle, -1));
    Check(tuttiCoordinatorRelease(coordinator, handle));
  }
  return {asked_ns - asking_ns, moved_ns - asked_ns, NowNs() - moved_ns};
}

void PrintFusion(const std::string& run, tuttiCoordinator_t coordinator, const FusionTimes& times,
                 const Beside& beside) {
  uint64_t batches = 0, rounds = 0, handed_over = 0;
  Check(tuttiCoordinatorCounter(coordinator, 0, "handed_over", &handed_over));
  Check(tuttiCoordinatorCounter(coordinator, 0, "batches", &batches));
  Check(tuttiCoordinatorCounter(coordinator, 0, "rounds", &rounds));
  fmt::print(
      "fusion, {}: bare {:.0f} us, 1000 tensors {:.0f} us, share of the bandwidth {:.2f} (fastest "
      "tenth {:.2f}; {:.1f} batches, {:.1f} of the second thread, and {:.1f} rounds a step)\n",
      run, beside.bare_us, beside.coordinated_us, 1 / beside.ratio, 1 / beside.fast_ratio,
      static_cast<double>(batches) / kFusionSteps, static_cast<double>(handed_over) / kFusionSteps,
      static_cast<double>(rounds) / kFusionSteps);
  if (times.parts_ns[0].empty()) return;
  fmt::print(
      "  of that asking {:.0f} us, the first wait {:.0f} us, the others and releasing {:.0f} us\n",
      Median(times.parts_ns[0]) / 1e3, Median(times.parts_ns[1]) / 1e3,
      Median(times.parts_ns[2]) / 1e3);
}

// `mode`: "apart" (every tensor has separate memory, in no order), "together" (the tensors lie one
// after another), "grouped" (apart, and asked for in one call), "data" (apart, and reduced by one
// call of the library instead of the coordinator, which is the limit of fusion).
void Fusion(int ranks, const std::string& mode) {
  RunProcesses(ranks, [&mode](Rank& self) {
    constexpr size_t kTensors = 1000;
    constexpr size_t kCount = 1024;
    const tuttiCoordinator_t coordinator = self.Create();
    const ncclUniqueId id = self.NewId();
    ncclComm_t comm = nullptr;
    Check(ncclCommInitRank(&comm, self.ranks(), id, self.rank()));
    // Space between tensors keeps tensors apart from being neighbours by chance.
    constexpr size_t kSpacing = kCount + 256;
    std::vector<float> all(kTensors * kSpacing, 1), other(kTensors * kCount, 1);
    std::vector<size_t> places(kTensors);
    std::iota(places.begin(), places.end(), size_t{0});
    const size_t spacing = mode == "together" ? kCount : kSpacing;
    if (mode != "together") std::shuffle(places.begin(), places.end(), std::mt19937(1));
    std::vector<std::string> names;
    const int64_t shape[] = {kCount};
    for (size_t i = 0; i < kTensors; ++i) names.push_back(fmt::format("gradient.{}", i));
    std::vector<tuttiTensor_t> tensors;
    for (size_t i = 0; i < kTensors; ++i) {
      tensors.push_back(Describe(names[i].c_str(), shape, all.data() + places[i] * spacing));
      tensors.back().op = tuttiReduceMax;
    }
    const DataAlone data(tensors);
    std::vector<int64_t> handles(kTensors);
    FusionTimes times;
    for (int round = 0; round < kFusionSteps; ++round) {
      self.Meet();
      int64_t begin_ns = NowNs();
      Check(ncclAllReduce(other.data(), other.data(), other.size(), ncclFloat32, ncclMax, comm,
                          nullptr));
      if (round > 4) times.bare_ns.push_back(static_cast<double>(NowNs() - begin_ns));
      self.Meet();
      begin_ns = NowNs();
      std::array<int64_t, 3> parts_ns = {};
      if (mode == "data")
        data.Reduce(comm);
      else
        parts_ns = AskAndWait(coordinator, tensors, mode == "grouped", handles);
      if (round <= 4) continue;
      times.coordinated_ns.push_back(static_cast<double>(NowNs() - begin_ns));
      for (size_t i = 0; i < 3 && mode != "data"; ++i)
        times.parts_ns[i].push_back(static_cast<double>(parts_ns[i]));
    }
    const Beside beside = Compare(times.bare_ns, times.coordinated_ns);
    if (self.rank() == 0)
      PrintFusion(fmt::format("{} ranks, {}", self.ranks(), mode), coordinator, times, beside);
    self.Meet();
    Check(tuttiCoordinatorDestroy(coordinator));
    Check(ncclCommDestroy(comm));
  });
}

struct RoundCost {
  int64_t most_messages = 0;
  int64_t rank0_messages = 0;
  int64_t slowest_ns = 0;
};

// Simulates `steps` rounds in which every rank asks for the same 160 tensors. The last round is
// measured.
RoundCost Negotiate(int ranks, int steps) {
  SimulatedNetwork network({.num_ranks = ranks});
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<SimulatedNetwork::Counts> before(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto exchange = network.Join(rank);
      Controller controller(*exchange, members, 1024);
      for (int step = 0; step < steps; ++step) {
        before[static_cast<size_t>(rank)] = network.counts(rank);
        RoundInput input;
        for (uint64_t i = 0; i < 160; ++i) {
          auto p = std::make_unique<Pending>();
          p->name = fmt::format("layer{}.weight", i);
          p->request.shape = {256, 256};
          p->order = i;
          input.news.push_back(std::move(p));
        }
        if (!controller.Round(std::move(input)).ok()) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RoundCost cost;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto after = network.counts(rank);
    const auto& begin = before[static_cast<size_t>(rank)];
    const int64_t messages = after.received - begin.received;
    cost.most_messages = std::max(cost.most_messages, messages);
    if (rank == 0) cost.rank0_messages = messages;
    cost.slowest_ns = std::max(cost.slowest_ns, after.clock_ns - begin.clock_ns);
  }
  return cost;
}

void Negotiation(int most_ranks) {
  fmt::print(
      "| ranks | log2 | first step: messages a rank | time | cached step: messages a rank | "
      "of rank 0 | time |\n|---|---|---|---|---|---|---|\n");
  for (int ranks = 2; ranks <= most_ranks; ranks *= 2) {
    const RoundCost first = Negotiate(ranks, 1);
    const RoundCost cached = Negotiate(ranks, 2);
    fmt::print("| {} | {:.0f} | {} | {:.0f} us | {} | {} | {:.0f} us |\n", ranks, std::log2(ranks),
               first.most_messages, static_cast<double>(first.slowest_ns) / 1e3,
               cached.most_messages, cached.rank0_messages,
               static_cast<double>(cached.slowest_ns) / 1e3);
  }
}

int64_t ResidentKb() {
  int64_t pages = 0, resident = 0;
  if (FILE* const file = fopen("/proc/self/statm", "r")) {
    if (fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(file);
  }
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

void Life(int ranks) {
  RunProcesses(ranks, [](Rank& self) {
    // The library keeps the last 256 destroyed handles, to answer late users. Memory grows by two
    // handles a time until 256 are kept.
    constexpr int kTimes = 400;
    constexpr int kSettled = 200;
    std::vector<double> create_ms, destroy_ms;
    int64_t resident_kb = 0;
    for (int i = 0; i < kTimes; ++i) {
      const ncclUniqueId id = self.NewId();
      self.Meet();
      int64_t begin_ns = NowNs();
      const tuttiCoordinator_t coordinator = self.CreateWith(id);
      self.Meet();
      create_ms.push_back(static_cast<double>(NowNs() - begin_ns) / 1e6);
      begin_ns = NowNs();
      Check(tuttiCoordinatorDestroy(coordinator));
      self.Meet();
      destroy_ms.push_back(static_cast<double>(NowNs() - begin_ns) / 1e6);
      if (i == kSettled) resident_kb = ResidentKb();
    }
    if (self.rank() == 0) {
      fmt::print(
          "life, {} ranks: create {:.1f} ms (first {:.1f}), shut down {:.1f} ms; memory grew "
          "by {} KB over the last {} times\n",
          self.ranks(), Median(create_ms), create_ms[0], Median(destroy_ms),
          ResidentKb() - resident_kb, kTimes - kSettled);
    }
  });
}

void Idle(int ranks) {
  RunProcesses(ranks, [](Rank& self) {
    const tuttiCoordinator_t coordinator = self.Create();
    float value = 1;
    const int64_t shape[] = {1};
    AskAndWait(coordinator, Describe("t", shape, &value));
    self.Meet();
    usleep(100'000);
    const auto cpu_us = [] {
      rusage usage = {};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
             static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    const double begin_us = cpu_us();
    sleep(5);
    if (self.rank() == 0) {
      fmt::print("idle, {} ranks: {:.1f} us of CPU a second\n", self.ranks(),
                 (cpu_us() - begin_us) / 5);
    }
    Check(tuttiCoordinatorDestroy(coordinator));
  });
}

}  // namespace
}  // namespace tutti::coordinator

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 0;
  using namespace tutti::coordinator;
  if (what == "latency") {
    Latency(ranks > 0 ? ranks : 2);
  } else if (what == "fusion") {
    Fusion(ranks > 0 ? ranks : 2, argc > 3 ? argv[3] : "apart");
  } else if (what == "negotiation") {
    Negotiation(ranks > 0 ? ranks : 1024);
  } else if (what == "life") {
    Life(ranks > 0 ? ranks : 2);
  } else if (what == "idle") {
    Idle(ranks > 0 ? ranks : 2);
  } else {
    fmt::print(stderr, "usage: {} latency|fusion|negotiation|life|idle [ranks]\n", argv[0]);
    return 2;
  }
  return 0;
}
