// `tutti top` shows this user's jobs on this machine again and again: what each rank does, how fast
// the communicators go, and who is behind.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <memory>
#include <string>

#include "observe/readings.h"
#include "observe/screen.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

using observe::CommunicatorView;
using observe::JobView;
using observe::RankView;
using observe::Verdict;

// The first picture comes after this time at the latest, because rates need two readings.
constexpr double kFirstPictureS = 0.5;
// A rank that waits for longer is held up (verdict.h).
constexpr int64_t kPatienceNs = 2'000'000'000;
constexpr const char* kLinks = "links and NICs: no rates, because boards have no counters of links";

struct TopOptions {
  double delay_s = 2;
  int pictures = 0;  // 0: without end
  bool once = false;
  bool json = false;
};

// A communicator, and what has happened in it since the reading before.
struct Shown {
  const CommunicatorView& now;
  CommunicatorView before;
  Rates rates;
  Verdict verdict;

  Shown(const Jobs& earlier, const CommunicatorView& view)
      : now(view),
        before(FindCommunicator(earlier, view.id)),
        rates(RatesOf(before, view)),
        verdict(observe::Judge(before, view, kPatienceNs)) {}
  Rates Of(const RankView& one) const {
    return RatesOf(before.Find(one.rank), one, static_cast<double>(now.at_ns - before.at_ns) / 1e9);
  }
};

// ---- Text

std::string RatesText(const Rates& rates) {
  return fmt::format("{:>9.1f} {:>9.3f} {:>9.1f} {:>5.0f}%", rates.collectives_per_s,
                     rates.collective_bytes_per_s / 1e9, rates.messages_per_s,
                     100 * rates.waiting_share);
}

void Append(const Shown& shown, std::string& text) {
  const CommunicatorView& view = shown.now;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "  {}, {} of {} ranks here: {}\n", observe::TitleOf(view.name, view.id),
                 view.ranks.size(), view.num_ranks, observe::Name(shown.verdict.finding));
  if (shown.verdict.finding != observe::Finding::kNothingWrong)
    fmt::format_to(out, "    {}\n", shown.verdict.sentence);
  fmt::format_to(out, "    {:>5} {:>8} {:<8} {:>8} {:>9} {:>9} {:>9} {:>6}  {}\n", "RANK", "PID",
                 "PROCESS", "BEHIND", "COLL/S", "GB/S", "MSG/S", "WAITS", "ACTIVITY");
  fmt::format_to(out, "    {:>5} {:>8} {:<8} {:>8} {}\n", "all", "", "", "",
                 RatesText(shown.rates));
  for (const RankView& one : view.ranks) {
    const bool culprit =
        std::ranges::find(shown.verdict.culprits, one.rank) != shown.verdict.culprits.end();
    fmt::format_to(out, "  {} {:>5} {:>8} {:<8} {:>8} {}  {}\n", culprit ? '>' : ' ', one.rank,
                   one.process.pid, Name(one.life), view.Behind(one), RatesText(shown.Of(one)),
                   ActivityOf(one, view));
  }
}

std::string TextOf(const Jobs& earlier, const Jobs& now, bool takes_keys) {
  std::string text;
  size_t alive = 0, ranks = 0;
  for (const JobView& job : now.all) {
    if (!job.alive) continue;
    ++alive;
    text += TitleOf(job) + "\n";
    for (const CommunicatorView& view : job.communicators) {
      ranks += view.ranks.size();
      Append(Shown(earlier, view), text);
    }
  }
  const std::time_t time = std::time(nullptr);
  std::tm local = {};
  localtime_r(&time, &local);
  return fmt::format("tutti top - {:02}:{:02}:{:02}, {} job{}, {} rank{} here{}\n{}\n{}",
                     local.tm_hour, local.tm_min, local.tm_sec, alive, alive == 1 ? "" : "s", ranks,
                     ranks == 1 ? "" : "s", takes_keys ? "; q ends" : "", kLinks, text);
}

// ---- JSON

nlohmann::json ToJson(const Shown& shown) {
  nlohmann::json json = tools::ToJson(shown.now);
  AddTo(json, shown.rates);
  AddTo(json, shown.verdict, shown.now.at_ns);
  json["ranks"] = nlohmann::json::array();
  for (const RankView& one : shown.now.ranks) {
    nlohmann::json rank = tools::ToJson(one, shown.now);
    AddTo(rank, shown.Of(one));
    rank["collectives_behind"] = shown.now.Behind(one);
    json["ranks"].push_back(std::move(rank));
  }
  return json;
}

// An object in a line.
std::string JsonOf(const Jobs& earlier, const Jobs& now) {
  const auto seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  nlohmann::json all = {{"time_s", seconds.count()},
                        {"interval_s", static_cast<double>(now.at_ns - earlier.at_ns) / 1e9},
                        {"links", nullptr},
                        {"jobs", nlohmann::json::array()}};
  for (const JobView& job : now.all) {
    if (!job.alive) continue;
    nlohmann::json json = {{"job", job.name},
                           {"program", job.processes[0].board.program},
                           {"communicators", nlohmann::json::array()}};
    for (const CommunicatorView& view : job.communicators)
      json["communicators"].push_back(ToJson(Shown(earlier, view)));
    all["jobs"].push_back(std::move(json));
  }
  return all.dump() + "\n";
}

int TopMain(const TopOptions& options) {
  const int pictures = options.once ? 1 : options.pictures;
  const Screen screen(/*plain=*/options.json);
  Jobs earlier = ReadJobs();
  if (!screen.Pause(std::min(options.delay_s, kFirstPictureS))) return 0;
  for (int picture = 1;; ++picture) {
    Jobs now = ReadJobs();
    if (!screen.Show(options.json ? JsonOf(earlier, now)
                                  : TextOf(earlier, now, screen.takes_keys())))
      return kExitFailure;
    if (picture == pictures || !screen.Pause(options.delay_s)) return 0;
    earlier = std::move(now);
  }
}

}  // namespace

Subcommand AddTop(CLI::App& program) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* const app = program.add_subcommand(
      "top", "Show your jobs on this machine again and again: activity, rates, and who is behind");
  app->add_option("-d,--delay", options->delay_s, "seconds between two pictures (default 2)")
      ->check(CLI::Range(0.05, 3600.0));
  app->add_option("-n,--count", options->pictures, "end after this number of pictures")
      ->check(CLI::Range(1, 1 << 30));
  app->add_flag("--once", options->once, "end after the first picture");
  app->add_flag("--json", options->json, "print a JSON object in a line for each picture");
  app->footer("The key q ends the program.");
  return {app, [options] { return TopMain(*options); }};
}

}  // namespace tutti::tools
