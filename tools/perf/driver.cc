#include "perf/driver.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "perf/barrier.h"
#include "perf/report.h"

namespace tutti::tools {
namespace {

// Without --iters an operation is repeated for about this long, within these bounds.
constexpr double kAutomaticSeconds = 0.1;
constexpr int kFewestIterations = 5;
constexpr int kMostIterations = 20000;
// Two libraries take turns this often per size: a machine that slows down slows both.
constexpr int kTurns = 5;
constexpr size_t kFallbackCacheBytes = 32u << 20;
// More bytes than the second-level cache of the largest GPUs has, and how much of a GPU's memory
// the buffers may take.
constexpr size_t kGpuCacheBytes = 128u << 20;
constexpr size_t kGpuBufferBytes = size_t{16} << 30;

struct Case {
  CollectiveInfo collective{};
  size_t bytes = 0;
  ncclDataType_t type = ncclFloat32;
  Reduction reduction = Reduction::kNone;
  int root = -1;
};

// Writes the progress of a long run in a line on the terminal.
class Progress {
 public:
  explicit Progress(size_t total)
      : total_(total), shown_(isatty(STDERR_FILENO) == 1), start_ns_(NowNs()) {}
  ~Progress() { Clear(); }

  void Begin(std::string what) {
    ++current_;
    what_ = std::move(what);
    Show();
  }
  void Show() {
    if (!shown_) return;
    fmt::print(stderr, "\r\033[K[{}/{}] {}  {:.0f} s", current_, total_, what_,
               static_cast<double>(NowNs() - start_ns_) / 1e9);
    std::fflush(stderr);
  }
  void Clear() {
    if (!shown_) return;
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }

 private:
  const size_t total_;
  const bool shown_;
  const int64_t start_ns_;
  size_t current_ = 0;
  std::string what_;
};

size_t LastLevelCacheBytes() {
  const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const long largest = std::max(l3, l2);
  return largest > 0 ? static_cast<size_t>(largest) : kFallbackCacheBytes;
}

size_t MemoryBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

class Driver {
 public:
  Driver(const PerfOptions& options, const std::vector<std::string>& libraries,
         std::vector<std::unique_ptr<Team>> teams, const DriverPlace& place)
      : options_(options), libraries_(libraries), teams_(std::move(teams)), place_(place) {
    for (const CollectiveInfo& collective : options_.collectives)
      tables_.push_back(ListCases(collective));
    size_t total = 0;
    for (const std::vector<Case>& table : tables_) total += table.size();
    progress_.emplace(total);
  }

  Result<size_t> Run() {
    TUTTI_TRY(CheckMemory());
    JsonFile json;
    TUTTI_TRY(json.Open(options_.json_path));
    for (auto& team : teams_) team->set_tick([this] { progress_->Show(); });
    for (size_t i = 0; i < teams_.size(); ++i) TUTTI_TRY(Introduce(i));
    PrintTitle();
    size_t wrong = 0;
    Json rows = Json::array();
    for (size_t i = 0; i < tables_.size(); ++i) {
      const CollectiveInfo& collective = options_.collectives[i];
      if (tables_.size() > 1) fmt::print("# {}\n", collective.name);
      Report report(options_, collective, loaded_paths_, stdout);
      report.PrintHeader();
      for (const Case& entry : tables_[i]) TUTTI_TRY(RunCase(entry, &report));
      progress_->Clear();
      report.PrintFooter();
      wrong += report.total_wrong();
      rows.insert(rows.end(), report.rows().begin(), report.rows().end());
    }
    TUTTI_TRY(json.Write(rows));
    for (auto& team : teams_) TUTTI_TRY(team->Quit(options_.timeout_s));
    return wrong;
  }

 private:
  // Opened before the measurement, lest an hour's work be lost to a mistyped path.
  class JsonFile {
   public:
    ~JsonFile() {
      if (file_) std::fclose(file_);
    }
    Status Open(const std::string& path) {
      path_ = path;
      if (path.empty()) return {};
      file_ = std::fopen(path.c_str(), "w");
      return file_ ? Status() : ErrnoError(errno, fmt::format("opening the JSON file {}", path));
    }
    Status Write(const Json& json) {
      if (!file_) return {};
      const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
      const bool written = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
      if (std::fclose(std::exchange(file_, nullptr)) != 0 || !written) {
        return ErrnoError(errno, fmt::format("writing the JSON file {}", path_));
      }
      return {};
    }

   private:
    std::string path_;
    std::FILE* file_ = nullptr;
  };

  std::vector<Case> ListCases(const CollectiveInfo& collective) const {
    const std::vector<Reduction> reductions =
        collective.reduces ? options_.reductions : std::vector{Reduction::kNone};
    const std::vector<int> roots = collective.rooted ? options_.roots : std::vector{-1};
    std::vector<Case> cases;
    for (const ncclDataType_t type : options_.types) {
      for (const Reduction reduction : reductions) {
        for (const int root : roots) {
          size_t previous = SIZE_MAX;
          for (const size_t bytes : options_.sizes) {
            const Case entry = {collective, bytes, type, reduction, root};
            // Small sizes of many ranks round to the same shape; each shape is measured once.
            const size_t real = ShapeOf(entry).bytes;
            if (real != previous) cases.push_back(entry);
            previous = real;
          }
        }
      }
    }
    return cases;
  }

  Shape ShapeOf(const Case& entry) const {
    return ShapeFor(entry.collective.collective, entry.bytes, ElementSize(entry.type),
                    options_.num_ranks);
  }

  size_t SetBytes(const Case& entry) const {
    const Shape shape = ShapeOf(entry);
    return (shape.send_count + shape.recv_count) * ElementSize(entry.type);
  }

  Status CheckMemory() const {
    if (options_.gpu) return {};  // each GPU has memory of its own, and reports when full
    size_t largest = 0;
    for (const std::vector<Case>& table : tables_)
      for (const Case& entry : table) largest = std::max(largest, SetBytes(entry));
    const size_t needed = largest * static_cast<size_t>(place_.ranks_here) * teams_.size();
    if (needed <= MemoryBytes()) return {};
    return InvalidArgument(
        "the largest size needs {:.1f} GiB of buffers on this host, which has {:.1f} GiB of memory",
        std::ldexp(static_cast<double>(needed), -30),
        std::ldexp(static_cast<double>(MemoryBytes()), -30));
  }

  Status Introduce(size_t index) {
    Team& team = *teams_[index];
    const double timeout_s = options_.timeout_s;
    const Json hello = {{"command", "hello"},
                        {"library", libraries_[index]},
                        {"size", options_.num_ranks},
                        {"alloc", options_.alloc},
                        {"stream", options_.host_stream ? "host" : "null"},
                        {"gpu", options_.gpu},
                        {"blocking", options_.blocking},
                        {"bind", options_.bind}};
    TUTTI_ASSIGN(const std::vector<Json> answers,
                 team.AskAll(hello, "loading the library", timeout_s, [](int rank) {
                   return Json{{"rank", rank}};
                 }));
    loaded_paths_.push_back(answers.front().value("path", libraries_[index]));
    versions_.push_back(answers.front().value("version", ""));
    TUTTI_ASSIGN(BarrierPageOwner page, BarrierPageOwner::Create());
    pages_.push_back(std::move(page));
    const BarrierPage where = pages_.back().page();
    TUTTI_ASSIGN(
        const std::vector<Json> found,
        team.AskAll(
            {{"command", "page"}, {"pid", where.pid}, {"fd", where.fd}, {"token", where.token}},
            "looking for the barrier page", timeout_s));
    const bool all = std::all_of(found.begin(), found.end(),
                                 [](const Json& one) { return one.value("found", false); });
    TUTTI_ASSIGN(const Json id,
                 team.AskOne(0, {{"command", "id"}}, "making the unique id", timeout_s));
    const Json init = {{"command", "init"},
                       {"id", id.value("id", "")},
                       {"pages", all},
                       {"patient", place_.ranks_here > place_.cores_here}};
    TUTTI_ASSIGN(const std::vector<Json> started,
                 team.AskAll(init, "initialising the communicator", timeout_s));
    double slowest_ms = 0;
    for (const Json& one : started) slowest_ms = std::max(slowest_ms, one.value("ms", 0.0));
    init_ms_.push_back(slowest_ms);
    return {};
  }

  void PrintTitle() const {
    std::string names;
    for (const CollectiveInfo& one : options_.collectives)
      names += fmt::format("{}{}", names.empty() ? "" : ",", one.name);
    fmt::print("# tutti perf {}: {} ranks {}, net {}{}\n", names, options_.num_ranks, place_.title,
               options_.net,
               !options_.gpu        ? std::string()
               : options_.graph > 0 ? fmt::format(", GPUs, graphs of {}", options_.graph)
                                    : ", GPUs, plain launches");
    for (size_t i = 0; i < teams_.size(); ++i) {
      fmt::print("# {}: {}, {}; communicator ready after {:.1f} ms\n",
                 i == 0 ? "library" : "against", versions_[i], loaded_paths_[i], init_ms_[i]);
    }
    const std::string how_often = options_.iterations
                                      ? std::to_string(options_.iterations)
                                      : fmt::format("about {} s of", kAutomaticSeconds);
    fmt::print("# {} iterations after {} to warm up; time is the {} of the slowest rank{}\n",
               how_often, options_.warmup,
               options_.median ? "median over iterations" : "average over a batch",
               teams_.size() > 1 ? "; ratio is the other library's time over this one's" : "");
  }

  std::string Describe(const Case& entry) const {
    std::string text = fmt::format("{} of {} {}", entry.collective.name, BytesText(entry.bytes),
                                   TypeName(entry.type));
    if (entry.reduction != Reduction::kNone) text += fmt::format(" {}", Name(entry.reduction));
    if (entry.root >= 0) text += fmt::format(" root {}", entry.root);
    return text;
  }

  Status RunCase(const Case& entry, Report* report) {
    const std::string doing = Describe(entry);
    progress_->Begin(doing);
    Row row;
    row.type = entry.type;
    row.reduction = entry.reduction;
    row.root = entry.root;
    row.shape = ShapeOf(entry);
    const int rotate =
        options_.rotate
            ? options_.rotate
            : ChooseRotation(SetBytes(entry), options_.gpu ? kGpuCacheBytes : LastLevelCacheBytes(),
                             options_.gpu ? kGpuBufferBytes : MemoryBytes(),
                             place_.ranks_here * static_cast<int>(teams_.size()));
    const Json prepare = {{"command", "prepare"}, {"collective", entry.collective.name},
                          {"type", entry.type},   {"reduction", entry.reduction},
                          {"bytes", entry.bytes}, {"root", std::max(entry.root, 0)},
                          {"rotate", rotate},     {"misalign", options_.unaligned}};
    for (auto& team : teams_)
      TUTTI_TRY(team->AskAll(prepare, "preparing " + doing, options_.timeout_s).status());
    std::vector<std::string> complaints;
    for (const bool in_place : {false, true}) {
      if (in_place && !entry.collective.has_in_place) {
        row.in_place.resize(teams_.size());
        continue;
      }
      TUTTI_ASSIGN(std::vector<Sample> samples, RunPlacement(entry, in_place, doing, &complaints));
      if (in_place) {
        row.in_place.assign(samples.begin(), samples.end());
      } else {
        row.out_of_place = std::move(samples);
      }
    }
    if (options_.predict) {
      TUTTI_ASSIGN(row.predicted_us, Predict(doing));
    }
    progress_->Clear();
    report->Add(row);
    for (const std::string& complaint : complaints) fmt::print("#   wrong: {}\n", complaint);
    if (options_.print_plan) TUTTI_TRY(PrintPlan(doing));
    return {};
  }

  Result<std::vector<Sample>> RunPlacement(const Case& entry, bool in_place,
                                           const std::string& doing,
                                           std::vector<std::string>* complaints) {
    std::vector<std::optional<size_t>> wrong(teams_.size());
    for (size_t i = 0; options_.check && i < teams_.size(); ++i) {
      TUTTI_ASSIGN(wrong[i], Check(i, in_place, doing, complaints));
    }
    TUTTI_ASSIGN(const std::vector<double> times, Measure(in_place, doing));
    std::vector<Sample> samples;
    for (size_t i = 0; i < teams_.size(); ++i) {
      samples.push_back(MakeSample(times[i], entry.collective, ShapeOf(entry), options_.num_ranks));
      samples.back().wrong = wrong[i];
    }
    return samples;
  }

  Result<size_t> Check(size_t index, bool in_place, const std::string& doing,
                       std::vector<std::string>* complaints) {
    TUTTI_ASSIGN(const std::vector<Json> answers,
                 teams_[index]->AskAll(
                     {{"command", "check"}, {"in_place", in_place}, {"graph", options_.graph}},
                     "checking " + doing, options_.timeout_s));
    size_t wrong = 0;
    for (size_t rank = 0; rank < answers.size(); ++rank) {
      const size_t of_rank = answers[rank].value("wrong", size_t{0});
      // A person needs only one rank's first error to begin with.
      if (of_rank > 0 && wrong == 0) {
        complaints->push_back(fmt::format("{}{}, rank {}, {}", index == 0 ? "" : "--against, ",
                                          in_place ? "in place" : "out of place", rank,
                                          answers[rank].value("first", "")));
      }
      wrong += of_rank;
    }
    return wrong;
  }

  // Returns the times of the slowest rank for one batch, in nanoseconds: the whole duration, or the
  // duration of each iteration.
  Result<std::vector<double>> Batch(size_t index, bool in_place, int warmup, int iterations,
                                    bool each, const std::string& doing) {
    const Json request = {{"command", "measure"},    {"in_place", in_place},     {"warmup", warmup},
                          {"graph", options_.graph}, {"iterations", iterations}, {"each", each}};
    TUTTI_ASSIGN(const std::vector<Json> answers,
                 teams_[index]->AskAll(request, "measuring " + doing, options_.timeout_s));
    std::vector<double> slowest(each ? static_cast<size_t>(iterations) : 1, 0.0);
    for (const Json& answer : answers) {
      const Json& ns = answer.at("ns");
      for (size_t i = 0; i < slowest.size(); ++i) {
        slowest[i] = std::max(slowest[i], each ? ns.at(i).get<double>() : ns.get<double>());
      }
    }
    return slowest;
  }

  // Returns how often team `index` repeats the operation.
  Result<int> ChooseIterations(size_t index, bool in_place, const std::string& doing) {
    if (options_.iterations) return options_.iterations;
    int probe = 1;
    for (;;) {
      TUTTI_ASSIGN(const std::vector<double> ns, Batch(index, in_place, 1, probe, false, doing));
      // A probe that lasts a hundredth of the whole time suffices to estimate an iteration.
      if (ns[0] >= kAutomaticSeconds * 1e7 || probe >= kMostIterations / 10) {
        const double wanted = kAutomaticSeconds * 1e9 * probe / std::max(ns[0], 1.0);
        return static_cast<int>(std::clamp<double>(wanted, kFewestIterations, kMostIterations));
      }
      probe *= 10;
    }
  }

  // Measures the microseconds per operation for each library. Two libraries take turns.
  Result<std::vector<double>> Measure(bool in_place, const std::string& doing) {
    std::vector<std::vector<double>> times(teams_.size());
    std::vector<int> iterations;
    for (size_t i = 0; i < teams_.size(); ++i) {
      TUTTI_ASSIGN(const int count, ChooseIterations(i, in_place, doing));
      iterations.push_back(count);
    }
    const int fewest = *std::min_element(iterations.begin(), iterations.end());
    const int turns = teams_.size() > 1 ? std::min(kTurns, fewest) : 1;
    for (int turn = 0; turn < turns; ++turn) {
      for (size_t k = 0; k < teams_.size(); ++k) {
        const size_t i = turn % 2 == 0 ? k : teams_.size() - 1 - k;
        const int batch = iterations[i] * (turn + 1) / turns - iterations[i] * turn / turns;
        // Later turns only have to bring back the buffers that the library of the turn before has
        // pushed out of the caches.
        const int warmup = turn == 0 ? options_.warmup : std::min(options_.warmup, 1 + batch / 4);
        TUTTI_ASSIGN(const std::vector<double> ns,
                     Batch(i, in_place, warmup, batch, options_.median, doing));
        times[i].insert(times[i].end(), ns.begin(), ns.end());
      }
    }
    std::vector<double> result;
    for (size_t i = 0; i < teams_.size(); ++i)
      result.push_back(Summarize(times[i], iterations[i]) / 1e3);
    return result;
  }

  double Summarize(std::vector<double> ns, int iterations) const {
    if (options_.median) {
      const auto middle = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2);
      std::nth_element(ns.begin(), middle, ns.end());
      return *middle;
    }
    double total = 0;
    for (const double one : ns) total += one;
    return total / iterations;
  }

  // Returns the slowest rank's prediction, or nothing when the library makes none.
  Result<std::optional<double>> Predict(const std::string& doing) {
    TUTTI_ASSIGN(
        const std::vector<Json> answers,
        teams_[0]->AskAll({{"command", "predict"}}, "predicting " + doing, options_.timeout_s));
    double slowest = 0;
    for (const Json& answer : answers) {
      if (!answer.contains("us") || !answer["us"].is_number()) return std::optional<double>();
      slowest = std::max(slowest, answer["us"].get<double>());
    }
    return std::optional(slowest);
  }

  Status PrintPlan(const std::string& doing) {
    TUTTI_ASSIGN(const Json plan, teams_[0]->AskOne(0, {{"command", "plan"}}, "planning " + doing,
                                                    options_.timeout_s));
    std::string text = plan.value("text", "");
    if (text.empty())
      text = "(not told: this library has plans of single collectives only, or none)";
    fmt::print("# plan of rank 0: {}\n", text);
    return {};
  }

  const PerfOptions& options_;
  const std::vector<std::string>& libraries_;
  std::vector<std::unique_ptr<Team>> teams_;
  const DriverPlace& place_;
  std::vector<std::vector<Case>> tables_;  // one table for each collective
  std::optional<Progress> progress_;
  std::vector<BarrierPageOwner> pages_;
  std::vector<std::string> loaded_paths_;
  std::vector<std::string> versions_;
  std::vector<double> init_ms_;
};

}  // namespace

Result<size_t> Drive(const PerfOptions& options, const std::vector<std::string>& libraries,
                     std::vector<std::unique_ptr<Team>> teams, const DriverPlace& place) {
  return Driver(options, libraries, std::move(teams), place).Run();
}

}  // namespace tutti::tools
