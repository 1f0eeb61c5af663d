// `tutti run` starts the ranks of any program, with torchrun's environment, or the workers of an
// elastic job.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "run/elastic.h"
#include "run/launcher.h"
#include "subcommands.h"

namespace tutti::tools {

namespace {

// Returns the number of words that follow the option. An option that may be repeated takes as many
// words each time as its type has.
size_t WordsOf(const CLI::Option& option) {
  const int most = option.get_items_expected_max();
  return static_cast<size_t>(
      option.get_allow_extra_args() ? most : std::min(most, option.get_type_size_max()));
}

}  // namespace

std::vector<std::string> TakeCommand(const CLI::App& run, std::vector<std::string>* arguments) {
  if (arguments->empty() || arguments->front() != run.get_name()) return {};
  size_t begin = 1;
  size_t end = begin;  // where the options end
  while (begin < arguments->size()) {
    std::string& word = (*arguments)[begin];
    if (word == "-np") word = "-n";  // the spelling of mpirun and horovodrun
    if (word == "--") {
      end = begin++;
      break;
    }
    end = begin;
    if (word.empty() || word.front() != '-') break;
    const CLI::Option* const option = run.get_option_no_throw(word);
    begin += 1 + (option ? WordsOf(*option) : 0);
    end = begin;
  }
  end = std::min(end, arguments->size());
  begin = std::min(begin, arguments->size());
  std::vector<std::string> command(arguments->begin() + static_cast<std::ptrdiff_t>(begin),
                                   arguments->end());
  arguments->resize(end);
  return command;
}

namespace {

// Holds the options of elastic jobs as they were given, before it is known whether the job is
// elastic.
struct ElasticFlags {
  std::vector<std::string> passed;
  int min_workers = 0;
  int max_workers = 0;
  std::string hosts;
  std::pair<double, double> cooldown_s;
  ElasticOptions options;

  bool given() const {
    return min_workers > 0 || max_workers > 0 || !options.discovery_script.empty();
  }
};

void AddElasticOptions(CLI::App* app, ElasticFlags* flags) {
  ElasticOptions& options = flags->options;
  flags->cooldown_s = {options.membership.cooldown_min_s, options.membership.cooldown_max_s};
  const std::string group = "Elastic jobs";
  app->add_option("--min-np", flags->min_workers,
                  "with fewer workers the job waits (default: -n, or 1)")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  app->add_option("--max-np", flags->max_workers,
                  "more are not started (default: -n, or as many as there are slots)")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  app->add_option("--host-discovery-script", options.discovery_script,
                  "a program that writes a line host or host:slots for each host to use now")
      ->group(group);
  app->add_option("--discovery-interval", options.discovery_interval_s,
                  "seconds between two runs of the script")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str()
      ->group(group);
  app->add_option(
      "-H,--hosts", flags->hosts,
      "host:slots,… (default: this host). Without the options above the job is not "
      "elastic: it has -n ranks, or as many as there are slots, and ends when one fails");
  app->add_option("--slots", options.default_slots, "workers on a host that says no number")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  app->add_option("--reset-limit", options.membership.reset_limit,
                  "the job ends when it would begin anew more often (default: no limit)")
      ->check(CLI::Range(0, 1 << 30))
      ->group(group);
  app->add_option("--elastic-timeout", options.membership.timeout_s,
                  "seconds to wait for --min-np workers, or for one that is stuck")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str()
      ->group(group);
  app->add_option("--blacklist-cooldown-range", flags->cooldown_s,
                  "MIN MAX seconds without new workers for a host on which one failed, doubled "
                  "each time; 0 0: for ever (default: 10 300)")
      ->group(group);
  app->add_flag("--end-failed-hosts", options.membership.end_failed_hosts,
                "a host on which a worker failed loses its other workers, too, as with Horovod")
      ->group(group);
  app->add_option("--ssh", options.remote.ssh, "how workers of other hosts are started")
      ->capture_default_str()
      ->group(group);
}

int Refuse(const std::string& sentence) {
  std::fprintf(stderr, "tutti run: %s\n", sentence.c_str());
  return kExitUsage;
}

int RunElasticJob(const RunOptions& run, ElasticFlags* flags) {
  ElasticOptions& options = flags->options;
  MembershipOptions& membership = options.membership;
  membership.min_workers = flags->min_workers ? flags->min_workers : std::max(run.num_ranks, 1);
  membership.max_workers = flags->max_workers ? flags->max_workers
                           : run.num_ranks    ? std::max(run.num_ranks, membership.min_workers)
                                              : 4096;
  std::tie(membership.cooldown_min_s, membership.cooldown_max_s) = flags->cooldown_s;
  const std::string hosts = flags->hosts.empty()
                                ? "localhost:" + std::to_string(flags->max_workers || run.num_ranks
                                                                    ? membership.max_workers
                                                                    : membership.min_workers)
                                : flags->hosts;
  Result<std::vector<elastic::HostSlots>> parsed =
      elastic::ParseHosts(hosts, options.default_slots);
  std::string wrong;
  if (!parsed.ok()) {
    wrong = std::string(parsed.status().message());
  } else if (!flags->hosts.empty() && !options.discovery_script.empty()) {
    wrong = "--hosts and --host-discovery-script do not go together";
  } else if (membership.max_workers < membership.min_workers) {
    wrong = "--max-np is below --min-np";
  } else if (membership.cooldown_min_s < 0 ||
             membership.cooldown_max_s < membership.cooldown_min_s) {
    wrong = "--blacklist-cooldown-range wants MIN MAX with 0 <= MIN <= MAX";
  } else if (run.bind || run.port || run.horovod_store) {
    wrong = "--bind, --port and --horovod-store are not for elastic jobs";
  }
  if (!wrong.empty()) return Refuse(wrong);
  options.hosts = std::move(parsed).value();
  options.tag = run.tag;
  options.grace_s = run.grace_s;
  options.command = run.command;
  return RunElastic(options);
}

// Runs a job with -H and no elastic option: as many ranks as were asked for, until one fails.
int RunOnHosts(RunOptions run, const ElasticFlags& flags) {
  Result<std::vector<elastic::HostSlots>> parsed =
      elastic::ParseHosts(flags.hosts, flags.options.default_slots);
  if (!parsed.ok()) return Refuse(std::string(parsed.status().message()));
  run.hosts = std::move(parsed).value();
  int slots = 0;
  bool here = true;
  for (const elastic::HostSlots& host : run.hosts) {
    slots += host.slots;
    here = here && IsThisHost(host.host);
  }
  if (run.num_ranks == 0) run.num_ranks = std::max(slots, 1);
  if (run.num_ranks > slots) {
    return Refuse("-n " + std::to_string(run.num_ranks) + " is more than the " +
                  std::to_string(slots) + " slots of -H " + flags.hosts);
  }
  if (!here && (run.bind || run.horovod_store))
    return Refuse("--bind and --horovod-store are for ranks of this host only");
  return RunProgram(run);
}

}  // namespace

Subcommand AddRun(CLI::App& program, const std::vector<std::string>& command) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const app = program.add_subcommand(
      "run", "Start the ranks of a program: tutti run -n 4 ./program arguments…");
  app->add_option("-n,--ranks", options->num_ranks, "how many ranks")->check(CLI::Range(1, 4096));
  app->add_flag("--tag", options->tag, "begin each line of output with the rank that wrote it");
  app->add_flag("--horovod-store", options->horovod_store,
                "serve Horovod's rendezvous on this host, for workers of Horovod's own build; "
                "whoever is on this host may read and write it");
  app->add_flag("--bind", options->bind, "keep each rank on cores of its own");
  app->add_option("--grace", options->grace_s, "seconds that ranks get to end after one failed")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app->add_option("--port", options->port, "MASTER_PORT for the ranks (default: a free one)")
      ->check(CLI::Range(1, 65535));
  auto elastic = std::make_shared<ElasticFlags>();
  app->add_option(
         "-x,--env", elastic->passed,
         "NAME=VALUE: a variable of the ranks; NAME: one that those of other hosts get with "
         "its value here, beside those that they get anyway; '*': all but those that tell "
         "of this host, terminal or login. May be given several times")
      ->allow_extra_args(false);
  AddElasticOptions(app, elastic.get());
  return {app, [&command, options, elastic] {
            options->command = command;
            if (options->command.empty()) {
              std::fprintf(
                  stderr, "tutti run: say which program to run, as in: tutti run -n 4 ./program\n");
              return kExitUsage;
            }
            Result<PassedVariables> passed = ParsePassed(elastic->passed);
            if (!passed.ok()) return Refuse(std::string(passed.status().message()));
            elastic->options.remote.passed = std::move(passed).value();
            options->remote = elastic->options.remote;
            if (elastic->given()) return RunElasticJob(*options, elastic.get());
            if (!elastic->hosts.empty()) return RunOnHosts(*options, *elastic);
            if (options->num_ranks == 0) {
              std::fprintf(stderr,
                           "tutti run: say how many ranks, as in: tutti run -n 4 ./program\n");
              return kExitUsage;
            }
            return RunProgram(*options);
          }};
}

}  // namespace tutti::tools
