// `tutti perf` measures how fast collectives are and whether their results are right, in the manner
// of nccl-tests.

#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "launch/environment.h"
#include "perf/driver.h"
#include "perf/options.h"
#include "perf/rank.h"
#include "perf/start.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

constexpr int kMaxLocalRanks = 1024;

// Holds options as they stand on the command line, before they are parsed.
struct Words {
  std::string collective;
  int num_ranks = 0;  // 0 where it was not given.
  std::string min_bytes;
  std::string max_bytes;
  std::string step_bytes;
  double step_factor = 0;
  std::string types = "float32";
  std::string reductions = "sum";
  std::string root = "0";
  int check = 1;
  int blocking = 0;
  std::string stream = "null";
  std::string alloc = "malloc";
  std::string device = "host";
  PerfOptions options;
};

// Adds the options about the operations to measure, and about repetitions.
void AddOptionsOfWork(CLI::App* app, Words* words) {
  PerfOptions& options = words->options;
  app->add_option("collective", words->collective,
                  "all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, "
                  "scatter, sendrecv, "
                  "hypercube, all_gather_v, reduce_scatter_v, alltoall_v, gather_v, scatter_v; "
                  "several with commas")
      ->required();
  app->add_option("-n,--ranks", words->num_ranks,
                  "ranks on this host (default 2; under a launcher its number)")
      ->check(CLI::Range(1, kMaxLocalRanks));
  app->add_option("-b,--minbytes", words->min_bytes,
                  "first size; K, M and G are powers of 1024 (default 8)");
  app->add_option("-e,--maxbytes", words->max_bytes,
                  "last size (default: 64M, or the first size if that is given)");
  app->add_option("-f,--stepfactor", words->step_factor, "from one size to the next (default 2)");
  app->add_option("--stepbytes", words->step_bytes, "add this many bytes instead");
  app->add_option("-d,--datatype", words->types, "types with commas, or all")
      ->capture_default_str();
  app->add_option("-o,--op", words->reductions,
                  "sum, prod, min, max, avg, mulsum with commas, or all")
      ->capture_default_str();
  app->add_option("-r,--root", words->root, "root of broadcast, reduce, gather and scatter, or all")
      ->capture_default_str();
  app->add_option("-i,--iters", options.iterations,
                  "iterations (default: as many as take a tenth of a second)")
      ->check(CLI::Range(1, 100000000));
  app->add_option("-w,--warmup_iters,--warmup", options.warmup,
                  "iterations before the clock starts")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  // Both options may stand without their number, and then mean the default_str.
  app->add_option("-c,--check", words->check,
                  "1: compare results with exact ones (the default); 0: do not")
      ->check(CLI::Range(0, 1))
      ->expected(0, 1)
      ->default_str("1");
  app->add_option("-z,--blocking", words->blocking, "1: wait for the stream after each operation")
      ->check(CLI::Range(0, 1))
      ->expected(0, 1)
      ->default_str("1");
}

// Adds the options about the places of ranks and buffers, and about the output.
void AddOptionsOfPlace(CLI::App* app, Words* words) {
  PerfOptions& options = words->options;
  app->add_flag("--threads,-t", options.threads,
                "ranks are threads of one process instead of processes");
  app->add_option("--net", options.net,
                  "auto; shm: fail unless memory is shared; socket: sockets only")
      ->check(CLI::IsMember({"auto", "shm", "socket"}))
      ->capture_default_str();
  app->add_option("--json", options.json_path, "write the results to this file as well");
  app->add_option("--library", options.library,
                  "library with NCCL's interface (default: this build's libtutti)");
  app->add_option("--against", options.against, "a second one, measured in turns with the first");
  app->add_option("--rotate", options.rotate,
                  "sets of buffers used in turn (default: more than the cache holds)")
      ->check(CLI::Range(1, 4096));
  app->add_option("--stream", words->stream,
                  "null: calls return when done; host: on a host stream of Tutti")
      ->check(CLI::IsMember({"null", "host"}))
      ->capture_default_str();
  app->add_option("--device", words->device, "host, or gpu: rank i is the i-th GPU")
      ->check(CLI::IsMember({"host", "gpu"}))
      ->capture_default_str();
  app->add_option(
         "--graph", options.graph,
         "with GPUs: capture so many operations in a CUDA graph and launch that (0: do not)")
      ->check(CLI::Range(0, 1000));
  app->add_option("--misalign", options.unaligned,
                  "begin buffers so many bytes, rounded to whole elements, past an aligned address")
      ->check(CLI::Range(0, 64));
  app->add_option(
         "--alloc", words->alloc,
         "buffers from malloc; nccl: from ncclMemAlloc; window: and registered by all ranks; "
         "pinned: of GPUs, in the host's memory and registered")
      ->check(CLI::IsMember({"malloc", "nccl", "window", "pinned"}))
      ->capture_default_str();
  app->add_flag("--median", options.median, "time each iteration after a barrier, show the median");
  app->add_flag("--bind", options.bind, "keep each rank on one core");
  app->add_flag("--plan", options.print_plan, "print how the library plans to run each size");
  app->add_flag("--predict", options.predict,
                "show the time that the library expects beside the measured one");
  app->add_option("--timeout", options.timeout_s,
                  "seconds that one step may take before the run fails")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
}

void AddOptions(CLI::App* app, Words* words) {
  // The last of several values counts, which lets a script add to the options of its own caller.
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddOptionsOfWork(app, words);
  AddOptionsOfPlace(app, words);
}

Result<std::vector<size_t>> Sizes(const Words& words) {
  TUTTI_ASSIGN(const size_t first, ParseBytes(words.min_bytes.empty() ? "8" : words.min_bytes));
  std::string last_text = words.max_bytes;
  if (last_text.empty()) last_text = words.min_bytes.empty() ? "64M" : words.min_bytes;
  TUTTI_ASSIGN(const size_t last, ParseBytes(last_text));
  size_t step = 0;
  if (!words.step_bytes.empty()) {
    if (words.step_factor != 0)
      return InvalidArgument("--stepbytes and --stepfactor exclude each other");
    TUTTI_ASSIGN(step, ParseBytes(words.step_bytes));
    if (step == 0) return InvalidArgument("--stepbytes must not be 0");
  }
  return SizesBetween(first, last, words.step_factor == 0 ? 2 : words.step_factor, step);
}

Result<PerfOptions> Understand(const Words& words, const launch::LaunchInfo& launched) {
  PerfOptions options = words.options;
  TUTTI_ASSIGN(options.collectives, ParseCollectives(words.collective));
  options.num_ranks = words.num_ranks ? words.num_ranks : 2;
  if (launched.size > 1) {
    if (words.num_ranks && words.num_ranks != launched.size) {
      return InvalidArgument("-n {} contradicts {}, which started {} ranks; leave -n out",
                             words.num_ranks, Name(launched.launcher), launched.size);
    }
    if (options.threads) {
      return InvalidArgument("--threads makes ranks of one process, but {} started {} processes",
                             Name(launched.launcher), launched.size);
    }
    options.num_ranks = launched.size;
  }
  TUTTI_ASSIGN(options.sizes, Sizes(words));
  TUTTI_ASSIGN(options.types, ParseTypes(words.types));
  TUTTI_ASSIGN(options.reductions, ParseReductions(words.reductions));
  TUTTI_ASSIGN(options.roots, ParseRoots(words.root, options.num_ranks));
  const bool hypercube = std::any_of(
      options.collectives.begin(), options.collectives.end(),
      [](const CollectiveInfo& one) { return one.collective == Collective::kHypercube; });
  if (hypercube && (options.num_ranks & (options.num_ranks - 1))) {
    return InvalidArgument("hypercube needs a number of ranks that is a power of two, not {}",
                           options.num_ranks);
  }
  options.check = words.check != 0;
  options.blocking = words.blocking != 0;
  options.host_stream = words.stream == "host";
  options.gpu = words.device == "gpu";
  if (options.gpu && options.host_stream)
    return InvalidArgument("--stream host is for ranks without GPUs");
  if (options.graph > 0 && !options.gpu) return InvalidArgument("--graph needs --device gpu");
  options.alloc = words.alloc;
  return options;
}

int AffinityCores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

Result<size_t> RunPerf(const Words& words) {
  const Environment environment = ProcessVariables();
  // This process makes no further use of PMI; only its children load the libraries.
  TUTTI_ASSIGN(const launch::LaunchInfo launched,
               launch::ReadLaunchEnvironment(environment, launch::ThisMachine(environment),
                                             {.may_join_pmi = true}));
  TUTTI_ASSIGN(const PerfOptions options, Understand(words, launched));
  std::vector<std::string> libraries = {FindLibrary(options.library)};
  if (!options.against.empty()) libraries.push_back(FindLibrary(options.against));
  if (launched.size > 1 && launched.rank != 0) {
    TUTTI_TRY(ServeTeams(options, launched, libraries));
    return size_t{0};
  }
  DriverPlace place;
  if (launched.size > 1) {
    place.ranks_here = launched.local_size > 0 ? launched.local_size : launched.size;
    // Launchers bind this process to a core, which says nothing of the cores that the ranks share.
    place.cores_here = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    place.title = fmt::format("started by {}, met over {}", Name(launched.launcher),
                              Name(launched.rendezvous));
    TUTTI_ASSIGN(auto teams, GatherTeams(options, launched, libraries.size()));
    return Drive(options, libraries, std::move(teams), place);
  }
  place.ranks_here = options.num_ranks;
  place.cores_here = AffinityCores();
  place.title = options.threads ? "as threads" : "as processes";
  TUTTI_ASSIGN(auto teams, StartLocalTeams(options, libraries.size()));
  return Drive(options, libraries, std::move(teams), place);
}

int PerfMain(const Words& words) {
  const Result<size_t> wrong = RunPerf(words);
  if (wrong.ok()) return wrong.value() == 0 ? 0 : kExitFailure;
  std::fflush(stdout);
  fmt::print(stderr, "tutti perf: {}\n", wrong.status().message());
  return wrong.status().code() == Code::kInvalidArgument ? kExitUsage : kExitFailure;
}

int PerfRankMain(const std::vector<int>& sockets) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < sockets.size(); ++i)
    threads.emplace_back([fd = sockets[i]] { ServeRank(UniqueFd(fd)); });
  ServeRank(UniqueFd(sockets.front()));
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace

Subcommand AddPerf(CLI::App& program) {
  auto words = std::make_shared<Words>();
  CLI::App* const app =
      program.add_subcommand("perf", "Measure collectives and check their results");
  AddOptions(app, words.get());
  return {app, [words] { return PerfMain(*words); }};
}

Subcommand AddPerfRank(CLI::App& program) {
  auto sockets = std::make_shared<std::vector<int>>();
  CLI::App* const app = program.add_subcommand("perf-rank", "A rank of tutti perf");
  app->group("");  // An empty group hides the subcommand in --help.
  app->add_option("--sockets", *sockets)->required()->delimiter(',');
  return {app, [sockets] { return PerfRankMain(*sockets); }};
}

}  // namespace tutti::tools
