// `tutti topo predict` predicts the time of a collective on a machine and any number of such hosts,
// by the cost model and the channels of the search.

#include "plan/predict.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/settings.h"
#include "topo/study.h"
#include "topology/known_channels.h"

namespace tutti::tools::topo {
namespace {

using Json = nlohmann::ordered_json;
using topology::NodeKind;

struct Question {
  Source source;
  std::string collective = "all_reduce";
  bool json = false;
};

// Says how a collective's size and bus bandwidth are counted, as by nccl-tests. The size is the
// larger buffer's; where parts are counted, each rank has `1 / n` of the size. The factor is the
// traffic of an ideal algorithm over a rank's link for each byte.
struct CountRule {
  Collective collective = Collective::kAllReduce;
  bool in_parts = false;
  double rounds = 1;  // × (n-1)/n; 0: the factor is 1
};
const std::map<std::string, CountRule> kCountRules = {
    {"all_reduce", {Collective::kAllReduce, false, 2}},
    {"all_gather", {Collective::kAllGather, true, 1}},
    {"reduce_scatter", {Collective::kReduceScatter, true, 1}},
    {"alltoall", {Collective::kAlltoAll, true, 1}},
    {"broadcast", {Collective::kBroadcast, false, 0}},
    {"reduce", {Collective::kReduce, false, 0}},
};

Result<MachineJob> JobOf(const Study& study, const Question& question) {
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  MachineJob job;
  job.hosts = question.source.hosts;
  job.gpus = !study.graph.OfKind(NodeKind::kGpu).empty();
  job.ranks_per_host = static_cast<int>(study.graph.Devices().size());
  const auto find = [&](topology::Pattern pattern) {
    return topology::FindPattern(settings, study.graph, study.paths, pattern, job.hosts > 1);
  };
  TUTTI_ASSIGN(job.ring, find(topology::Pattern::kRing));
  if (job.num_ranks() < 2)
    return InvalidUsage("the job has one rank; --hosts says how many such hosts there are");
  return job;
}

struct Row {
  double bytes = 0;
  Prediction best;
  double busbw_gbps = 0;
};

// Reductions are of float32, as by default in nccl-tests.
constexpr DataType kType = DataType::kFloat32;

std::vector<Row> PredictRows(const MachineJob& job, const CountRule& rule) {
  std::vector<Row> rows;
  const auto n = static_cast<size_t>(job.num_ranks());
  for (size_t bytes = 1024; bytes <= size_t{1} << 30; bytes *= 4) {
    const size_t count = std::max<size_t>(1, bytes / (rule.in_parts ? n : 1) / SizeOf(kType));
    const auto best = Predict(job, rule.collective, count, kType);
    if (!best) continue;
    const auto ranks = static_cast<double>(n);
    const double factor = rule.rounds == 0 ? 1 : rule.rounds * (ranks - 1) / ranks;
    const auto size = static_cast<double>(bytes);
    rows.push_back({size, *best, size * factor / (best->us * 1e3)});
  }
  return rows;
}

// Returns a sentence about the source of the numbers.
const char* Caveat(const MachineJob& job) {
  if (!job.gpus) return "measured for host ranks on two cores, docs/cost_model.md";
  if (job.hosts == 1) return "measured on H200, docs/cost_model.md; in a CUDA graph";
  return "the GPUs' hosts move the data; measured for host ranks on two cores, docs/cost_model.md";
}

void PrintRows(const MachineJob& job, const std::string& collective, const std::vector<Row>& rows) {
  fmt::print("{} of {} ranks, {} host{}\n", collective, job.num_ranks(), job.hosts,
             job.hosts == 1 ? "" : "s");
  fmt::print("{:>12}  {:<18} {:<8} {:>12} {:>12}\n", "bytes", "algorithm", "protocol", "time (us)",
             "busbw (GB/s)");
  for (const Row& row : rows)
    fmt::print("{:>12.0f}  {:<18} {:<8} {:>12.1f} {:>12.2f}\n", row.bytes, Name(row.best.algorithm),
               Name(row.best.protocol), row.best.us, row.busbw_gbps);
  fmt::print("Numbers: {}.\n", Caveat(job));
}

int RunPredict(const Question& question) {
  const Result<Study> study = LoadPart("predict", question.source);
  if (!study.ok()) return Fail("predict", study.status());
  const Result<MachineJob> job = JobOf(*study, question);
  if (!job.ok()) return Fail("predict", job.status());
  const std::vector<Row> rows = PredictRows(*job, kCountRules.at(question.collective));
  if (!question.json) {
    PrintRows(*job, question.collective, rows);
    return 0;
  }
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back({{"bytes", row.bytes},
                    {"algorithm", Name(row.best.algorithm)},
                    {"protocol", Name(row.best.protocol)},
                    {"time_us", row.best.us},
                    {"busbw_gbps", row.busbw_gbps},
                    {"source", Caveat(*job)}});
  }
  const Json object = {{"hosts", job->hosts},
                       {"ranks", job->num_ranks()},
                       {"collective", question.collective},
                       {"predictions", std::move(list)}};
  fmt::print("{}\n", object.dump());
  return 0;
}

}  // namespace

Subcommand AddPredict(CLI::App& topo) {
  auto question = std::make_shared<Question>();
  CLI::App* const app =
      topo.add_subcommand("predict", "What a collective takes there, by the cost model");
  AddSource(*app, &question->source);
  std::vector<std::string> names;
  for (const auto& [name, rule] : kCountRules) names.push_back(name);
  app->add_option("--collective", question->collective, "which one")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  app->add_flag("--json", question->json, "print as JSON");
  return {app, [question] { return RunPredict(*question); }};
}

}  // namespace tutti::tools::topo
