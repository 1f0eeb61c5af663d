// Measures the cost of a step of each algorithm on this host, by protocol and wire, and prints the
// costs as Markdown. The rows for hosts of src/plan/cost_table.cc come from this program. Ranks are
// threads of this process.
//
//   cost_bench [seconds for each size of each case, default 0.3] [name of the only collective]
//
// The programs of the machine take turns with the ranks, and an undisturbed iteration shows the
// cost of a step. The result is therefore the 2nd percentile of many iterations and not their mean.
// Ranks keep to a core each where there are enough cores.

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl.h"
#include "plan/plan.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  Wire wire;
  Collective collective;
  Algorithm algorithm;
  Protocol protocol;
  const char* algorithm_name;  // NCCL_ALGO takes this name.
  int ranks;
};

[[noreturn]] void Fail(const std::string& why) {
  fmt::print(stderr, "cost_bench: {}\n", why);
  std::exit(1);
}

void Must(ncclResult_t result) {
  if (result != ncclSuccess) Fail(ncclGetLastError(nullptr));
}

void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

void KeepTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// Returns the bytes of the longest message. LL ends early, because LL takes a line for every 48
// bytes.
size_t LastSize(const Case& one) {
  return one.protocol == Protocol::kLL ? size_t{8} << 10 : size_t{4} << 20;
}

// Holds the shared state of the ranks of a case. Times are taken on rank 0, which leaves last.
struct Team {
  explicit Team(int count) : meet(count) {}
  std::barrier<> meet;
  ncclUniqueId id;
  std::atomic<bool> again = true;
  std::atomic<int> left = 0;
};

void Call(const Case& one, ncclComm_t comm, const std::byte* in, std::byte* out, size_t bytes) {
  switch (one.collective) {
    case Collective::kAllReduce:
      return Must(ncclAllReduce(in, out, bytes / 4, ncclFloat32, ncclSum, comm, nullptr));
    case Collective::kBroadcast:
      return Must(ncclBroadcast(in, out, bytes / 4, ncclFloat32, 0, comm, nullptr));
    case Collective::kAllGather:
      return Must(ncclAllGather(in, out, bytes / 4, ncclFloat32, comm, nullptr));
    case Collective::kReduceScatter:
      return Must(ncclReduceScatter(in, out, bytes / 4, ncclFloat32, ncclSum, comm, nullptr));
    default:
      return Must(ncclAlltoAll(in, out, bytes / 4, ncclFloat32, comm, nullptr));
  }
}

// Returns the 2nd percentile of the time of one call on rank 0, in microseconds.
double Measure(const Case& one, Team& team, int rank, ncclComm_t comm, size_t bytes, double seconds,
               const std::byte* in, std::byte* out) {
  const int batch = bytes <= 4096 ? 20 : 1;
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    if (rank == 0) team.again = Clock::now() < end || times.size() < 10;
    team.left = 0;
    team.meet.arrive_and_wait();
    const bool again = team.again;
    if (!again) team.meet.arrive_and_wait();  // before rank 0 changes `again`
    if (!again) break;
    const auto begin = Clock::now();
    for (int i = 0; i < batch; ++i) Call(one, comm, in, out, bytes);
    team.left.fetch_add(1);
    while (rank == 0 && team.left < one.ranks) std::this_thread::yield();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                    batch);
    team.meet.arrive_and_wait();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 50];
}

struct Point {
  size_t bytes;
  double us;
};

std::vector<Point> Run(const Case& one, double seconds) {
  Set("NCCL_ALGO", one.algorithm_name);
  Set("NCCL_PROTO", one.protocol == Protocol::kLL ? "LL" : "Simple");
  Set("NCCL_SHM_DISABLE", one.wire == Wire::kTcp ? "1" : "0");
  Set("NCCL_P2P_DISABLE", one.algorithm == Algorithm::kPull ? "0" : "1");
  Team team(one.ranks);
  Must(ncclGetUniqueId(&team.id));
  std::vector<Point> points;
  std::vector<std::thread> threads;
  const size_t most = LastSize(one);
  for (int rank = 0; rank < one.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      if (one.ranks <= static_cast<int>(std::thread::hardware_concurrency())) KeepTo(rank);
      ncclComm_t comm = nullptr;
      Must(ncclCommInitRank(&comm, one.ranks, team.id, rank));
      const size_t room = most * static_cast<size_t>(one.ranks);
      const std::vector<std::byte> in(room);
      std::vector<std::byte> out(room);
      for (size_t bytes = 8; bytes <= most; bytes = bytes == 8    ? 48
                                                    : bytes == 48 ? 1024
                                                                  : bytes * 8) {
        const double us = Measure(one, team, rank, comm, bytes, seconds, in.data(), out.data());
        if (rank == 0) points.push_back({bytes, us});
      }
      team.meet.arrive_and_wait();
      Must(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return points;
}

// Fits time = steps × step + volume / bandwidth by least squares of the relative error.
std::pair<double, double> Fit(const Case& one, const std::vector<Point>& points) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const Point& point : points) {
    const Extent extent =
        ExtentOf(one.collective, one.algorithm, one.ranks, static_cast<double>(point.bytes));
    const double x = extent.steps / point.us;
    const double y = extent.bytes / 1e3 / point.us;
    aa += x * x;
    ab += x * y;
    bb += y * y;
    a += x;
    b += y;
  }
  const double det = aa * bb - ab * ab;
  if (std::abs(det) < 1e-12 * aa * bb) return {a / aa, 0};
  return {(a * bb - b * ab) / det, det / (b * aa - a * ab)};
}

void Print(const Case& one, const std::vector<Point>& points) {
  const auto [step_us, gbps] = Fit(one, points);
  fmt::print("| {} | {} | {} | {} | {} | {:.3g} | {} |", Name(one.wire), Name(one.collective),
             Name(one.algorithm), Name(one.protocol), one.ranks, step_us,
             gbps > 0 ? fmt::format("{:.3g}", gbps) : "–");
  double worst = 1;
  for (const Point& point : points) {
    fmt::print(" {}: {:.4g}{}", point.bytes, point.us, &point == &points.back() ? "" : ",");
    const Extent extent =
        ExtentOf(one.collective, one.algorithm, one.ranks, static_cast<double>(point.bytes));
    const double us = extent.steps * step_us + (gbps > 0 ? extent.bytes / (gbps * 1e3) : 0);
    worst = std::max({worst, us / point.us, point.us / us});
  }
  fmt::print(" | {:.2f} |\n", worst);
  std::fflush(stdout);
}

void RunAll(double seconds, std::string_view only) {
  constexpr auto kSimple = Protocol::kSimple;
  constexpr auto kLL = Protocol::kLL;
  constexpr auto kAllReduce = Collective::kAllReduce;
  fmt::print(
      "| wire | collective | algorithm | protocol | ranks | step (µs) | GB/s | bytes: µs |"
      " worst factor |\n|---|---|---|---|---|---|---|---|---|\n");
  std::vector<Case> cases;
  for (const int ranks : {2, 4}) {
    for (const Wire wire : {Wire::kSharedMemory, Wire::kTcp}) {
      for (const Protocol protocol : {kLL, kSimple}) {
        cases.push_back({wire, kAllReduce, Algorithm::kRing, protocol, "ring", ranks});
        cases.push_back({wire, kAllReduce, Algorithm::kTree, protocol, "tree", ranks});
        cases.push_back({wire, kAllReduce, Algorithm::kRecursiveDoubling, protocol,
                         "recursivedoubling", ranks});
        cases.push_back(
            {wire, Collective::kAlltoAll, Algorithm::kExchange, protocol, "exchange", ranks});
        if (wire == Wire::kTcp) continue;
        cases.push_back({wire, kAllReduce, Algorithm::kOneShot, protocol, "oneshot", ranks});
      }
    }
    cases.push_back(
        {Wire::kSharedMemory, kAllReduce, Algorithm::kTwoShot, kSimple, "twoshot", ranks});
    cases.push_back({Wire::kSharedMemory, Collective::kAlltoAll, Algorithm::kOneShot, kSimple,
                     "oneshot", ranks});
    for (const Collective moves :
         {Collective::kBroadcast, Collective::kAllGather, Collective::kReduceScatter}) {
      cases.push_back({Wire::kSharedMemory, moves, Algorithm::kRing, kSimple, "ring", ranks});
      cases.push_back({Wire::kSharedMemory, moves, Algorithm::kOneShot, kSimple, "oneshot", ranks});
    }
    cases.push_back({Wire::kSharedMemory, kAllReduce, Algorithm::kPull, kSimple, "pull", ranks});
    cases.push_back(
        {Wire::kSharedMemory, Collective::kBroadcast, Algorithm::kPull, kSimple, "pull", ranks});
    cases.push_back(
        {Wire::kSharedMemory, Collective::kAlltoAll, Algorithm::kPull, kSimple, "pull", ranks});
  }
  for (const Case& one : cases)
    if (only.empty() || only == Name(one.collective)) Print(one, Run(one, seconds));
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  tutti::RunAll(argc > 1 ? std::atof(argv[1]) : 0.3, argc > 2 ? argv[2] : "");
  return 0;
}
