#include "launch/environment.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace tutti::launch {
namespace {

// A job larger than this is a misread variable; the bound keeps per-rank tables sane.
constexpr int kMaxRanks = 1 << 20;

// torchrun's agent holds MASTER_PORT itself, so rank 0 takes one of the next few ports instead.
// Eight: enough to step over other listeners, few enough for the other ranks to try all of them.
constexpr int kPortChoices = 8;

class Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}

  bool Has(const char* name) const { return Text(name) != nullptr; }

  // Null for a variable that is not set or empty.
  const char* Text(const char* name) const {
    const char* value = lookup_(name);
    return value && *value ? value : nullptr;
  }

  std::string TextOr(const char* name, std::string_view otherwise) const {
    const char* value = Text(name);
    return value ? value : std::string(otherwise);
  }

  Result<int> Number(const char* name, int lowest, int highest) const {
    const char* text = Text(name);
    if (!text) return InvalidArgument("the environment variable {} is not set", name);
    int value = 0;
    const char* end = text + std::string_view(text).size();
    const auto parsed = std::from_chars(text, end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || value < lowest || value > highest) {
      return InvalidArgument("{}={} in the environment is not a number from {} to {}", name, text,
                             lowest, highest);
    }
    return value;
  }

  Result<int> NumberOr(const char* name, int lowest, int highest, int otherwise) const {
    if (!Has(name)) return otherwise;
    return Number(name, lowest, highest);
  }

 private:
  const Lookup& lookup_;
};

struct RankNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

Status ReadRanks(const Reader& reader, const RankNames& names, LaunchInfo* info) {
  TUTTI_ASSIGN(info->size, reader.Number(names.size, 1, kMaxRanks));
  TUTTI_ASSIGN(info->rank, reader.Number(names.rank, 0, kMaxRanks));
  if (info->rank >= info->size) {
    return InvalidArgument("{}={} in the environment is not below {}={}", names.rank, info->rank,
                           names.size, info->size);
  }
  TUTTI_ASSIGN(info->local_rank, reader.NumberOr(names.local_rank, 0, kMaxRanks, -1));
  TUTTI_ASSIGN(info->local_size, reader.NumberOr(names.local_size, 1, kMaxRanks, -1));
  return {};
}

// "host:port" or "[v6]:port".
Status ReadAddress(std::string_view name, std::string_view text, LaunchInfo* info) {
  const size_t colon = text.rfind(':');
  unsigned port = 0;
  if (colon != std::string_view::npos && colon > 0) {
    const std::string_view digits = text.substr(colon + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) port = 0;
  }
  if (port == 0 || port > std::numeric_limits<uint16_t>::max()) {
    return InvalidArgument("{}={} is not HOST:PORT", name, text);
  }
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  info->address = host;
  info->ports = {static_cast<uint16_t>(port)};
  info->rendezvous = Rendezvous::kTcp;
  return {};
}

Status ReadTorch(const Reader& reader, LaunchInfo* info) {
  info->launcher = Launcher::kTorch;
  TUTTI_TRY(ReadRanks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, info));
  info->rendezvous = Rendezvous::kTcp;
  info->address = reader.TextOr("MASTER_ADDR", "");
  TUTTI_ASSIGN(const int port, reader.Number("MASTER_PORT", 1, 65535));
  const std::string agent = reader.TextOr("TORCHELASTIC_USE_AGENT_STORE", "False");
  const bool port_is_taken = agent == "True" || agent == "true" || agent == "1";
  if (!port_is_taken) {
    info->ports = {static_cast<uint16_t>(port)};
  } else {
    // Wraps below 65536 so that every choice is a port.
    for (int i = 1; i <= kPortChoices; ++i) {
      const int choice = port + i <= 65535 ? port + i : port - i;
      info->ports.push_back(static_cast<uint16_t>(choice));
    }
  }
  info->job = fmt::format("torch {} {} {} {}", info->address, port,
                          reader.TextOr("TORCHELASTIC_RUN_ID", ""),
                          reader.TextOr("TORCHELASTIC_RESTART_COUNT", ""));
  return {};
}

void ChoosePmi(const Reader& reader, LaunchInfo* info) {
  if (reader.Has("PMIX_NAMESPACE")) {
    info->rendezvous = Rendezvous::kPmix;
  } else if (reader.Has("PMI_FD")) {
    info->rendezvous = Rendezvous::kPmi;
  }
}

Status ReadOpenMpi(const Reader& reader, LaunchInfo* info) {
  info->launcher = Launcher::kOpenMpi;
  TUTTI_TRY(ReadRanks(reader,
                      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE"},
                      info));
  ChoosePmi(reader, info);
  info->job = "openmpi " + reader.TextOr("PMIX_NAMESPACE", "");
  return {};
}

Status ReadPmi(const Reader& reader, LaunchInfo* info) {
  info->launcher = Launcher::kPmi;
  TUTTI_TRY(
      ReadRanks(reader, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, info));
  ChoosePmi(reader, info);
  info->job = "pmi " + reader.TextOr("PMI_JOBID", "");
  return {};
}

Status ReadSlurm(const Reader& reader, LaunchInfo* info) {
  info->launcher = Launcher::kSlurm;
  const char* size_name =
      reader.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  TUTTI_TRY(ReadRanks(reader, {"SLURM_PROCID", size_name, "SLURM_LOCALID", ""}, info));
  TUTTI_ASSIGN(const int node, reader.NumberOr("SLURM_NODEID", 0, kMaxRanks, -1));
  info->local_size = TasksOnNode(reader.TextOr("SLURM_STEP_TASKS_PER_NODE", ""), node);
  const std::string job = reader.TextOr("SLURM_JOB_ID", reader.TextOr("SLURM_JOBID", "0"));
  const std::string step = reader.TextOr("SLURM_STEP_ID", reader.TextOr("SLURM_STEPID", "0"));
  info->job = fmt::format("slurm {} {}", job, step);
  ChoosePmi(reader, info);
  if (info->rendezvous != Rendezvous::kNone) return {};
  // Every rank derives the same port; below the ephemeral range of Linux (32768), above the
  // system's own ports.
  unsigned long number = 0;
  std::from_chars(job.data(), job.data() + job.size(), number);
  unsigned long step_number = 0;
  std::from_chars(step.data(), step.data() + step.size(), step_number);
  info->address =
      FirstHost(reader.TextOr("SLURM_STEP_NODELIST", reader.TextOr("SLURM_NODELIST", "")));
  info->ports = {static_cast<uint16_t>(15000 + (number * 7 + step_number) % 17000)};
  if (!info->address.empty()) info->rendezvous = Rendezvous::kTcp;
  return {};
}

Status ReadLauncher(const Reader& reader, LaunchInfo* info) {
  if (reader.Has("RANK") && reader.Has("WORLD_SIZE") && reader.Has("MASTER_ADDR")) {
    return ReadTorch(reader, info);
  }
  if (reader.Has("OMPI_COMM_WORLD_RANK")) return ReadOpenMpi(reader, info);
  if (reader.Has("PMI_RANK")) return ReadPmi(reader, info);
  if (reader.Has("PMI_PORT") && reader.Has("PMI_ID")) {
    return InvalidArgument(
        "PMI_PORT is set without PMI_RANK: this way of starting ranks is not understood; start "
        "them "
        "without -pmi-port");
  }
  // A batch script has SLURM_PROCID as well, but only the tasks of a step have a step's number.
  if (reader.Has("SLURM_PROCID") && (reader.Has("SLURM_STEP_ID") || reader.Has("SLURM_STEPID"))) {
    return ReadSlurm(reader, info);
  }
  if (reader.Has("RANK") && reader.Has("WORLD_SIZE")) {
    info->launcher = Launcher::kTorch;
    return ReadRanks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, info);
  }
  return {};
}

}  // namespace

Result<LaunchInfo> ReadLaunchEnvironment(const Lookup& lookup) {
  const Reader reader(lookup);
  LaunchInfo info;
  TUTTI_TRY(ReadLauncher(reader, &info));
  if (info.local_rank >= 0 && info.local_size >= 0 && info.local_rank >= info.local_size) {
    return InvalidArgument("the launcher's local rank {} is not below its local size {}",
                           info.local_rank, info.local_size);
  }
  info.secret = reader.TextOr("TUTTI_COMM_KEY", "");
  if (const char* address = reader.Text("TUTTI_ADDR");
      address && info.launcher != Launcher::kNone) {
    TUTTI_TRY(ReadAddress("TUTTI_ADDR", address, &info));
  }
  if (info.size > 1 && info.rendezvous == Rendezvous::kNone) {
    return InvalidArgument(
        "{} started {} ranks but left no way for them to meet: set MASTER_ADDR and MASTER_PORT, or "
        "TUTTI_ADDR=HOST:PORT with the address of rank 0",
        Name(info.launcher), info.size);
  }
  return info;
}

std::string_view Name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
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
    case Rendezvous::kPmix:
      return "PMIx";
    case Rendezvous::kPmi:
      return "PMI";
    case Rendezvous::kTcp:
      return "TCP";
  }
  return "?";
}

std::string FirstHost(std::string_view host_list) {
  const size_t end = host_list.find_first_of(",[");
  std::string host(host_list.substr(0, end));
  if (end == std::string_view::npos || host_list[end] == ',') return host;
  // "[07-12,20]suffix": the first number, with its leading zeros, then what follows the bracket.
  const std::string_view rest = host_list.substr(end + 1);
  host += rest.substr(0, rest.find_first_of(",-]"));
  const size_t close = rest.find(']');
  if (close == std::string_view::npos) return host;
  const std::string_view suffix = rest.substr(close + 1);
  host += suffix.substr(0, suffix.find_first_of(",["));
  return host;
}

int TasksOnNode(std::string_view tasks_per_node, int node) {
  int first = 0;  // The node that the current group starts with.
  while (node >= 0 && !tasks_per_node.empty()) {
    const size_t comma = tasks_per_node.find(',');
    const std::string_view group = tasks_per_node.substr(0, comma);
    int tasks = 0;
    const auto parsed = std::from_chars(group.data(), group.data() + group.size(), tasks);
    if (parsed.ec != std::errc() || tasks < 1) return -1;
    int repeat = 1;
    if (const size_t x = group.find("(x"); x != std::string_view::npos) {
      std::from_chars(group.data() + x + 2, group.data() + group.size(), repeat);
    }
    if (repeat < 1 || repeat > kMaxRanks) return -1;
    if (node - first < repeat) return tasks;
    first += repeat;
    if (comma == std::string_view::npos) break;
    tasks_per_node.remove_prefix(comma + 1);
  }
  return -1;
}

}  // namespace tutti::launch
