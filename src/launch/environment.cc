#include "launch/environment.h"

#include <netdb.h>

#include <algorithm>

#include "bootstrap/auth.h"
#include "config/secret.h"
#include "config/settings_parse.h"
#include "launch/environment_reader.h"
#include "launch/hex.h"
#include "launch/listen.h"
#include "launch/slurm.h"

namespace tutti::launch {
namespace {

// The port that all ranks of a Slurm step derive from the step's numbers lies above the system's
// ports and below the ports that Linux gives away by itself (32768). Eight ports in a row, since
// one may be in use.
constexpr int64_t kSlurmFirstPort = 15000;
constexpr int64_t kSlurmPortSpan = 17000;
constexpr int kSlurmPortChoices = 8;
constexpr int64_t kMaxSlurmNumber = int64_t{1} << 32;

// Holds the launcher's statements until the rendezvous is chosen.
struct Told {
  LaunchInfo info;
  // The variable that gave the number of ranks, for sentences.
  const char* size_name = "";
  // Says whether the process belongs to a step of Slurm with a list of nodes.
  bool slurm_step = false;
  // Says whether only the process that started the ranks tells this job from another job of the
  // user.
  bool starter_tells_jobs = false;
};

struct RankNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

Status ReadRank(const Reader& reader, const char* rank_name, const char* size_name, Told* told) {
  LaunchInfo& info = told->info;
  TUTTI_ASSIGN(const int64_t size, reader.Number(size_name, 1, kMaxRanks));
  TUTTI_ASSIGN(const int64_t rank, reader.Number(rank_name, 0, kMaxRanks));
  if (rank >= size) {
    return InvalidArgument("{}={} in the environment is not below {}={}", rank_name, rank,
                           size_name, size);
  }
  info.rank = static_cast<int>(rank);
  info.size = static_cast<int>(size);
  told->size_name = size_name;
  return {};
}

Status ReadRanks(const Reader& reader, const RankNames& names, Told* told) {
  TUTTI_TRY(ReadRank(reader, names.rank, names.size, told));
  LaunchInfo& info = told->info;
  TUTTI_ASSIGN(info.local_rank, reader.NumberIfSet(names.local_rank, 0, kMaxRanks));
  TUTTI_ASSIGN(info.local_size, reader.NumberIfSet(names.local_size, 1, kMaxRanks));
  if (info.local_rank >= 0 && info.local_size >= 0 && info.local_rank >= info.local_size) {
    return InvalidArgument("{}={} in the environment is not below {}={}", names.local_rank,
                           info.local_rank, names.local_size, info.local_size);
  }
  info.one_machine = info.local_size == info.size;
  return {};
}

// Reads the rank's place among the tasks of its node, where Slurm gives the place.
Status ReadSlurmPlace(const Reader& reader, Told* told) {
  LaunchInfo& info = told->info;
  told->slurm_step = true;
  const std::vector<NodeGroup> nodes =
      ReadTasksPerNode(reader.TextOr("SLURM_STEP_TASKS_PER_NODE", ""));
  info.one_machine = nodes == std::vector<NodeGroup>{{info.size, 1}};
  TUTTI_ASSIGN(const int node, reader.NumberIfSet("SLURM_NODEID", 0, kMaxRanks));
  TUTTI_ASSIGN(const int local_rank, reader.NumberIfSet("SLURM_LOCALID", 0, kMaxRanks));
  const std::optional<int> local_size = TasksOnNode(nodes, node);
  if (local_rank < 0 || !local_size || local_rank >= *local_size) return {};
  info.local_rank = local_rank;
  info.local_size = *local_size;
  return {};
}

Status ReadHorovod(const Reader& reader, Told* told) {
  told->info.launcher = Launcher::kHorovod;
  // The address of its store tells a job of Horovod's from another on the same machine.
  told->info.job = fmt::format("horovod {} {}", reader.TextOr("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""),
                               reader.TextOr("HOROVOD_GLOO_RENDEZVOUS_PORT", ""));
  return ReadRanks(
      reader, {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"}, told);
}

Status ReadTorch(const Reader& reader, Told* told) {
  told->info.launcher = Launcher::kTorch;
  told->info.job = fmt::format(
      "torch {} {} {} {}", reader.TextOr("MASTER_ADDR", ""), reader.TextOr("MASTER_PORT", ""),
      reader.TextOr("TORCHELASTIC_RUN_ID", ""), reader.TextOr("TORCHELASTIC_RESTART_COUNT", ""));
  return ReadRanks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, told);
}

Status ReadOpenMpi(const Reader& reader, Told* told) {
  told->info.launcher = Launcher::kOpenMpi;
  told->info.job =
      "openmpi " + reader.TextOr("PMIX_NAMESPACE", reader.TextOr("OMPI_MCA_ess_base_jobid", ""));
  return ReadRanks(reader,
                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"},
                   told);
}

// Returns whether Slurm set PMI's variables: srun --mpi=pmi2 sets them, too. srun may have started
// an mpirun, and the ranks then see variables of both, of which mpirun's count. A step with as many
// tasks as ranks started the ranks only where mpirun left no variables.
bool PmiIsSlurm(const Reader& reader) {
  return !reader.Has("MPI_LOCALNRANKS") && reader.Has("SLURM_STEP_ID") &&
         reader.TextOr("SLURM_STEP_NUM_TASKS", "") == reader.TextOr("PMI_SIZE", "?");
}

Status ReadPmi(const Reader& reader, Told* told) {
  told->info.launcher = Launcher::kPmi;
  const std::string job = reader.TextOr("PMI_JOBID", "");
  told->info.job = "pmi " + job;
  if (PmiIsSlurm(reader)) {
    TUTTI_TRY(ReadRank(reader, "PMI_RANK", "PMI_SIZE", told));
    told->starter_tells_jobs = job.empty();
    return ReadSlurmPlace(reader, told);
  }
  told->starter_tells_jobs = true;
  return ReadRanks(reader, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, told);
}

std::string SlurmJob(const Reader& reader) {
  return reader.TextOr("SLURM_JOB_ID", reader.TextOr("SLURM_JOBID", ""));
}

std::string SlurmStep(const Reader& reader) {
  return reader.TextOr("SLURM_STEP_ID", reader.TextOr("SLURM_STEPID", ""));
}

Status ReadSlurm(const Reader& reader, Told* told) {
  told->info.launcher = Launcher::kSlurm;
  told->info.job = fmt::format("slurm {} {}", SlurmJob(reader), SlurmStep(reader));
  const char* const size_name =
      reader.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  TUTTI_TRY(ReadRank(reader, "SLURM_PROCID", size_name, told));
  return ReadSlurmPlace(reader, told);
}

bool HasStore(const Reader& reader) {
  return reader.Has("HOROVOD_GLOO_RENDEZVOUS_ADDR") && reader.Has("HOROVOD_GLOO_RENDEZVOUS_PORT");
}

Status ReadLauncher(const Reader& reader, Told* told) {
  const bool has_rank = reader.Has("RANK") && reader.Has("WORLD_SIZE");
  const bool is_torch = has_rank && reader.Has("MASTER_ADDR");
  // `tutti run` sets both, and a torchrun inside a `tutti run` sets only RANK.
  const bool is_horovod = reader.Has("HOROVOD_RANK") && reader.Has("HOROVOD_SIZE");
  if (is_horovod && (!is_torch || HasStore(reader))) return ReadHorovod(reader, told);
  if (is_torch) return ReadTorch(reader, told);
  if (reader.Has("OMPI_COMM_WORLD_RANK")) return ReadOpenMpi(reader, told);
  if (reader.Has("PMI_RANK")) return ReadPmi(reader, told);
  if (reader.Has("PMI_PORT") && reader.Has("PMI_ID")) {
    return InvalidArgument(
        "PMI_PORT is set without PMI_RANK: this way of starting ranks is not understood; start "
        "them without -pmi-port");
  }
  // A batch script has SLURM_PROCID as well, but only the tasks of a step have a step's number.
  if (reader.Has("SLURM_PROCID") && !SlurmStep(reader).empty()) return ReadSlurm(reader, told);
  if (has_rank) return ReadTorch(reader, told);
  if (reader.Has("TUTTI_ELASTIC_ADDR")) {
    return InvalidArgument(
        "this process is a worker of an elastic job, and has no rank before the Python package's "
        "init; start other programs by tutti run without --min-np, --max-np and "
        "--host-discovery-script");
  }
  return {};
}

Result<std::vector<Endpoint>> SlurmEndpoints(const Reader& reader) {
  const std::string host =
      FirstHost(reader.TextOr("SLURM_STEP_NODELIST", reader.TextOr("SLURM_NODELIST", "")));
  std::vector<Endpoint> endpoints;
  if (host.empty() || SlurmJob(reader).empty()) return endpoints;
  TUTTI_ASSIGN(const int64_t job,
               reader.Number(reader.Has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID", 0,
                             kMaxSlurmNumber));
  TUTTI_ASSIGN(const int64_t step,
               reader.Number(reader.Has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID", 0,
                             kMaxSlurmNumber));
  const int64_t first = kSlurmFirstPort + (job * 7 + step) % kSlurmPortSpan;
  for (int i = 0; i < kSlurmPortChoices; ++i) {
    endpoints.push_back({host, static_cast<uint16_t>(first + i), ""});
  }
  return endpoints;
}

// Returns a socket for this job alone, shared neither with jobs of other users nor with other jobs
// of the user.
Endpoint LocalEndpoint(std::string_view job, uint32_t user) {
  constexpr size_t kDigits = 32;
  return {"", 0, "tutti-" + ToHex(KeyFromText(fmt::format("{}|{}", job, user))).substr(0, kDigits)};
}

Status JoinByPmi(const Reader& reader, LaunchInfo* info) {
  if (reader.Has("PMIX_NAMESPACE")) {
    info->rendezvous = Rendezvous::kPmix;
  } else if (reader.Has("PMI_FD")) {
    TUTTI_ASSIGN(info->pmi_fd, reader.NumberIfSet("PMI_FD", 0, 1 << 30));
    info->rendezvous = Rendezvous::kPmi;
  }
  return {};
}

// Returns whether `host` names the loopback interface. Names are not looked up, because a host's
// own name may stand for a loopback address on this host alone.
bool IsLoopback(const std::string& host) {
  const Result<std::vector<SocketAddress>> addresses = LookUp(host, 0, AI_NUMERICHOST);
  return host == "localhost" || (addresses.ok() && addresses->front().IsLoopback());
}

// Has the ranks meet at a socket of the machine.
void MeetLocally(const Machine& machine, Told* told) {
  LaunchInfo& info = told->info;
  // Ranks of several machines have no starter in common.
  if (told->starter_tells_jobs) info.job += fmt::format(" {}", machine.starter());
  info.endpoints = {LocalEndpoint(info.job, machine.user)};
  info.rendezvous = Rendezvous::kLocal;
}

Status ChooseRendezvous(const Reader& reader, const Machine& machine, const ReadOptions& options,
                        Told* told) {
  LaunchInfo& info = told->info;
  const bool address_is_given = reader.Has("TUTTI_ADDR");
  if (!address_is_given && info.one_machine) {
    MeetLocally(machine, told);
    return {};
  }
  if (!address_is_given && info.launcher == Launcher::kHorovod && HasStore(reader)) {
    TUTTI_ASSIGN(const uint16_t port, reader.Port("HOROVOD_GLOO_RENDEZVOUS_PORT"));
    info.endpoints = {{reader.TextOr("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""), port, ""}};
    info.rendezvous = Rendezvous::kHttp;
    return {};
  }
  if (!address_is_given && info.launcher == Launcher::kTorch) {
    TUTTI_ASSIGN(info.endpoints, ReadStoreEndpoints(reader));
    if (!info.endpoints.empty()) {
      info.rendezvous = Rendezvous::kStore;
      return {};
    }
  }
  TUTTI_ASSIGN(info.endpoints, ReadGivenEndpoints(reader));
  if (!address_is_given && !info.endpoints.empty() && IsLoopback(info.endpoints.front().host)) {
    MeetLocally(machine, told);
    return {};
  }
  const bool has_pmix = options.may_join_pmi && reader.Has("PMIX_NAMESPACE");
  if (info.endpoints.empty() && told->slurm_step && (!info.secret.empty() || !has_pmix)) {
    TUTTI_ASSIGN(info.endpoints, SlurmEndpoints(reader));
  }
  if (!info.endpoints.empty()) {
    info.rendezvous = Rendezvous::kTcp;
    return {};
  }
  if (options.may_join_pmi) TUTTI_TRY(JoinByPmi(reader, &info));
  if (info.size == 1 || info.rendezvous != Rendezvous::kNone) return {};
  return InvalidArgument(
      "{}={} says that there are several ranks, but they have no way to meet: set MASTER_ADDR and "
      "MASTER_PORT, or TUTTI_ADDR=HOST:PORT, to an address of rank 0",
      told->size_name, info.size);
}

}  // namespace

Result<LaunchInfo> ReadLaunchEnvironment(const Environment& environment, const Machine& machine,
                                         const ReadOptions& options) {
  const Reader reader(environment);
  Told told;
  TUTTI_TRY(ReadLauncher(reader, &told));
  LaunchInfo& info = told.info;
  info.machine = machine.name;
  info.user = machine.user;
  TUTTI_ASSIGN(Secret secret, FindSecret(environment));
  info.secret = std::move(secret.text);
  info.secret_source = std::move(secret.source);
  if (const char* const text = reader.Text("TUTTI_INSECURE"))
    TUTTI_TRY(config::ParseFlag("TUTTI_INSECURE", text, info.insecure));
  TUTTI_ASSIGN(info.timeout_s, ReadTimeout(reader));
  if (info.launcher == Launcher::kNone) {
    info.one_machine = true;
  } else {
    TUTTI_TRY(ChooseRendezvous(reader, machine, options, &told));
  }
  if (info.local_rank < 0 || info.local_size < 0) info.local_rank = info.local_size = -1;
  return info;
}

Result<LaunchInfo> PartOf(const LaunchInfo& info, const std::vector<int>& ranks) {
  const std::string list = fmt::format("[{}]", fmt::join(ranks, ", "));
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (ranks.empty() || sorted.front() < 0 || sorted.back() >= info.size ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return InvalidArgument("{} does not consist of different ranks from 0 to {}", list,
                           info.size - 1);
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), info.rank);
  if (mine == ranks.end()) {
    return InvalidArgument("rank {} is not among {}; ranks that take no part do not begin the job",
                           info.rank, list);
  }
  LaunchInfo part = info;
  part.rank = static_cast<int>(mine - ranks.begin());
  part.size = static_cast<int>(ranks.size());
  part.local_rank = part.local_size = -1;
  part.job = fmt::format("{}|{}", info.job, list);
  if (info.rendezvous == Rendezvous::kHttp || info.rendezvous == Rendezvous::kStore) return part;
  if (info.one_machine || info.rendezvous == Rendezvous::kLocal) {
    // Jobs that were given addresses may differ in their endpoints alone.
    std::string job = part.job;
    for (const Endpoint& endpoint : info.endpoints) job += "|" + endpoint.ToString();
    part.endpoints = {LocalEndpoint(job, info.user)};
    part.rendezvous = Rendezvous::kLocal;
  } else if (ranks.front() != 0 || info.rendezvous != Rendezvous::kTcp) {
    return InvalidArgument(
        "{}: ranks of several machines meet at an address of rank 0, so that has to be the first "
        "of them",
        list);
  }
  return part;
}

std::string Endpoint::ToString() const {
  return local_name.empty() ? fmt::format("{} port {}", host, port)
                            : fmt::format("the local socket {}", local_name);
}

std::string MeetingHost(const Environment& environment) {
  const Reader reader(environment);
  if (const char* const given = reader.Text("TUTTI_ADDR")) {
    const Result<Endpoint> endpoint = ReadEndpoint("TUTTI_ADDR", given);
    return endpoint.ok() ? endpoint->host : "";
  }
  return reader.TextOr("MASTER_ADDR", reader.TextOr("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""));
}

std::string_view Name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kHorovod:
      return "the HOROVOD_RANK environment";
    case Launcher::kTorch:
      return "the RANK and WORLD_SIZE environment";
    case Launcher::kOpenMpi:
      return "Open MPI's mpirun";
    case Launcher::kPmi:
      return "a PMI launcher";
    case Launcher::kSlurm:
      return "srun";
  }
  return "?";
}

std::string_view Name(Rendezvous rendezvous) {
  switch (rendezvous) {
    case Rendezvous::kNone:
      return "none";
    case Rendezvous::kTcp:
      return "TCP";
    case Rendezvous::kLocal:
      return "a local socket";
    case Rendezvous::kHttp:
      return "Horovod's rendezvous store";
    case Rendezvous::kStore:
      return "the launcher's store";
    case Rendezvous::kPmix:
      return "PMIx";
    case Rendezvous::kPmi:
      return "PMI";
  }
  return "?";
}

}  // namespace tutti::launch
