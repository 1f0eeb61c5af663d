// Measures the time that a job's ranks need to find one another: wall time of Bootstrap::Create,
// where all ranks are threads of this process, and of an exchange of 64 bytes a rank; over
// loopback.
//
//   bootstrap_bench [largest number of ranks, default 512] [roots, default 1]

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/log.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/root.h"
#include "sys/host.h"

namespace tutti {
namespace {

struct Times {
  double create_ms = 0;
  double register_ms = 0;
  double link_ms = 0;
  double exchange_ms = 0;
  double gather_ms = 0;
};

void Keep(std::atomic<int64_t>& largest_ns, int64_t value_ns) {
  int64_t seen_ns = largest_ns.load();
  while (seen_ns < value_ns && !largest_ns.compare_exchange_weak(seen_ns, value_ns)) {
  }
}

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// The slowest rank's times. Prints the reason and exits when a rank fails.
Times Measure(int num_ranks, int num_roots) {
  Settings settings;
  settings.socket_ifname = "lo";
  settings.socket_family = "AF_INET";
  settings.uid_stagger_threshold =
      1'000'000;  // what the exchange costs, not how long ranks wait their turn
  const auto fail = [](const Status& status) {
    fmt::print(stderr, "bootstrap_bench: {}\n", status.message());
    std::exit(1);
  };
  auto loop = EventLoop::Create("bench");
  if (!loop.ok()) fail(loop.status());
  std::vector<UniqueId> ids;
  for (int i = 0; i < num_roots; ++i) {
    auto id = Root::Create(**loop, settings);
    if (!id.ok()) fail(id.status());
    ids.push_back(*id);
  }
  std::atomic<int64_t> create_ns{0}, register_ns{0}, link_ns{0}, exchange_ns{0}, gather_ns{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Bootstrap::Options options;
      options.rank = rank;
      options.num_ranks = num_ranks;
      options.ids = ids;
      options.deadline = Deadline::AfterSeconds(120);
      const int64_t start_ns = NowNs();
      auto bootstrap = Bootstrap::Create(**loop, settings, options);
      if (!bootstrap.ok()) fail(bootstrap.status());
      const int64_t created_ns = NowNs();
      std::vector<std::array<char, 64>> data(static_cast<size_t>(num_ranks));
      const Status gathered = (*bootstrap)->AllGather(data.data(), 64, options.deadline);
      if (!gathered.ok()) fail(gathered);
      Keep(gather_ns, NowNs() - created_ns);
      Keep(create_ns, created_ns - start_ns);
      const auto times = (*bootstrap)->phase_times();
      Keep(register_ns, times.register_ns);
      Keep(link_ns, times.link_ns);
      Keep(exchange_ns, times.exchange_ns);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {Ms(create_ns), Ms(register_ns), Ms(link_ns), Ms(exchange_ns), Ms(gather_ns)};
}

int Main(int argc, char** argv) {
  const int most = argc > 1 ? std::atoi(argv[1]) : 512;
  const int roots = argc > 2 ? std::atoi(argv[2]) : 1;
  fmt::print(
      "# {} with {} cores, all ranks in one process, {} root(s), best of 3, slowest rank, ms\n",
      HostName(), UsableCpuCount(), roots);
  fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>12}\n", "ranks", "create", "register", "link",
             "exchange", "gather 64 B");
  for (int ranks = 2; ranks <= most; ranks *= 2) {
    Times best = Measure(ranks, std::min(roots, ranks));
    for (int i = 0; i < 2; ++i) {
      const Times again = Measure(ranks, std::min(roots, ranks));
      if (again.create_ms < best.create_ms) best = again;
    }
    fmt::print("{:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>12.2f}\n", ranks, best.create_ms,
               best.register_ms, best.link_ms, best.exchange_ms, best.gather_ms);
  }
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) { return tutti::Main(argc, argv); }
