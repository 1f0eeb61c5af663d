#include "operations/tuner/tuner_plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "operations/tuner/abi.h"

namespace tutti {
namespace {

constexpr PluginKind kTunerPlugin = {"libnccl-tuner", "tuner plugin"};
constexpr PluginKind kNetPlugin = {"libnccl-net", "network plugin"};

constexpr double kNotThisWay = std::numeric_limits<double>::infinity();

// Returns NCCL's number of a collective, or nothing if NCCL does not ask tuners about the
// collective.
std::optional<int> NumberOf(Collective collective) {
  switch (collective) {
    case Collective::kBroadcast:
      return tunerplugin::kBroadcast;
    case Collective::kReduce:
      return tunerplugin::kReduce;
    case Collective::kAllGather:
      return tunerplugin::kAllGather;
    case Collective::kReduceScatter:
      return tunerplugin::kReduceScatter;
    case Collective::kAllReduce:
      return tunerplugin::kAllReduce;
    default:
      return std::nullopt;
  }
}

bool IsNamed(Algorithm algorithm) {
  return algorithm == Algorithm::kRing || algorithm == Algorithm::kTree;
}
int RowFor(Algorithm algorithm) {
  return algorithm == Algorithm::kTree ? tunerplugin::kTree : tunerplugin::kRing;
}
int ColumnFor(Protocol protocol) {
  return protocol == Protocol::kLL      ? tunerplugin::kLL
         : protocol == Protocol::kLL128 ? tunerplugin::kLL128
                                        : tunerplugin::kSimple;
}
// Returns whether plugins see the time of the option.
bool IsShown(const CostOption& option) { return IsNamed(option.algorithm) && option.off == 0; }

// Calls a plugin of any version by the rules of the newest version.
template <int kVersion, class Table>
class TunerOf final : public TunerPlugin {
 public:
  static Result<std::unique_ptr<TunerPlugin>> Create(const Table& table, const std::string& file,
                                                     const TunedComm& comm) {
    const char* const missing = table.name == nullptr            ? "a name"
                                : table.init == nullptr          ? "init"
                                : table.get_coll_info == nullptr ? "getCollInfo"
                                                                 : nullptr;
    if (missing != nullptr) {
      return InvalidUsage("the tuner plugin {} lacks {} in ncclTunerPlugin_v{}", file, missing,
                          kVersion);
    }
    void* context = nullptr;
    const ncclResult_t result = Init(table, comm, &context);
    if (result != ncclSuccess) {
      return InvalidUsage("the tuner plugin {} ({}) failed in init (result {})", file, table.name,
                          static_cast<int>(result));
    }
    return std::unique_ptr<TunerPlugin>(new TunerOf(table, context));
  }
  ~TunerOf() override {
    // The result of `end` could only be ignored.
    if (table_.end != nullptr) table_.end(context_);
  }

  const std::string& name() const override { return name_; }
  bool Names(Algorithm algorithm) const override { return IsNamed(algorithm); }
  uint32_t Advise(const AdvisedOperation& operation, std::span<CostOption> options) override;
  size_t AdviseChunk(const AdvisedOperation& operation, const CostOption& chosen, uint32_t channels,
                     size_t chunk_bytes) override;

 private:
  TunerOf(const Table& table, void* context)
      : table_(table),
        context_(context),
        name_(fmt::format("{}, version {}", table.name, kVersion)) {}

  static ncclResult_t Init(const Table& table, const TunedComm& comm, void** context) {
    const auto ranks = static_cast<size_t>(comm.num_ranks);
    const auto hosts = static_cast<size_t>(comm.num_hosts);
    if constexpr (kVersion >= 5) {
      tunerplugin::NvlDomains domains = {};
      std::conditional_t<kVersion >= 7, tunerplugin::Constants7, tunerplugin::Constants5>
          constants = {};
      return table.init(context, comm.id, ranks, hosts, LogForPlugins(), &domains, &constants);
    } else {
      return table.init(ranks, hosts, LogForPlugins(), context);
    }
  }
  ncclResult_t Ask(int collective, const AdvisedOperation& operation, tunerplugin::Times& times,
                   int& channels) TUTTI_REQUIRES(mutex_);
  void WarnOnce(const char* what, ncclResult_t result) TUTTI_REQUIRES(mutex_);

  const Table& table_;
  void* const context_;
  const std::string name_;
  Mutex mutex_;  // Held while the plugin is asked.
  bool has_warned_ TUTTI_GUARDED_BY(mutex_) = false;
};

template <int kVersion, class Table>
ncclResult_t TunerOf<kVersion, Table>::Ask(int collective, const AdvisedOperation& operation,
                                           tunerplugin::Times& times, int& channels) {
  constexpr int kOneOperation = 1;
  const size_t bytes = operation.bytes;
  auto* const table = reinterpret_cast<float**>(&times);
  if constexpr (kVersion == 2) {
    // Version 2 names a single algorithm and protocol. A time of 0 makes the planner choose them.
    int algorithm = -1;
    int protocol = -1;
    const ncclResult_t result = table_.get_coll_info(
        context_, collective, bytes, 0, 0, kOneOperation, &algorithm, &protocol, &channels);
    const bool said = algorithm >= 0 && algorithm < tunerplugin::kAlgorithms && protocol >= 0 &&
                      protocol < tunerplugin::kProtocols;
    if (result == ncclSuccess && said && times[algorithm][protocol] != tunerplugin::kIgnore) {
      times[algorithm][protocol] = 0;
    }
    return result;
  } else if constexpr (kVersion == 3) {
    return table_.get_coll_info(context_, collective, bytes, kOneOperation, table,
                                tunerplugin::kAlgorithms, tunerplugin::kProtocols, &channels);
  } else {
    return table_.get_coll_info(context_, collective, bytes, kOneOperation, table,
                                tunerplugin::kAlgorithms, tunerplugin::kProtocols,
                                operation.registered ? 1 : 0, &channels);
  }
}

// If the plugin fails, the operation runs as without a plugin. Where several options have the same
// name in NCCL, the plugin sees and changes the time of the shortest.
template <int kVersion, class Table>
uint32_t TunerOf<kVersion, Table>::Advise(const AdvisedOperation& operation,
                                          std::span<CostOption> options) {
  const std::optional<int> number = NumberOf(operation.collective);
  if (!number) return 0;
  CostOption* shortest[tunerplugin::kAlgorithms][tunerplugin::kProtocols] = {};
  tunerplugin::Times told;
  for (auto& row : told) std::fill(std::begin(row), std::end(row), tunerplugin::kIgnore);
  for (CostOption& option : options) {
    if (!IsShown(option)) continue;
    const int row = RowFor(option.algorithm), column = ColumnFor(option.protocol);
    if (shortest[row][column] != nullptr && shortest[row][column]->us <= option.us) continue;
    shortest[row][column] = &option;
    told[row][column] = static_cast<float>(option.us);
  }
  tunerplugin::Times times;
  std::memcpy(times, told, sizeof(times));
  int channels = 0;
  {
    const MutexLock lock(mutex_);
    if (const ncclResult_t result = Ask(*number, operation, times, channels);
        result != ncclSuccess) {
      WarnOnce("getCollInfo", result);
      return 0;
    }
  }
  for (CostOption& option : options) {
    if (!IsShown(option)) continue;
    const int row = RowFor(option.algorithm), column = ColumnFor(option.protocol);
    const float time = times[row][column];
    if (time == told[row][column]) continue;
    const bool counts = &option == shortest[row][column] && std::isfinite(time) && time >= 0;
    option.us = counts ? double{time} : kNotThisWay;
  }
  return static_cast<uint32_t>(std::max(channels, 0));
}

template <int kVersion, class Table>
size_t TunerOf<kVersion, Table>::AdviseChunk([[maybe_unused]] const AdvisedOperation& operation,
                                             [[maybe_unused]] const CostOption& chosen,
                                             [[maybe_unused]] uint32_t channels,
                                             size_t chunk_bytes) {
  if constexpr (kVersion >= 6) {
    const std::optional<int> number = NumberOf(operation.collective);
    if (!number || table_.get_chunk_size == nullptr) return chunk_bytes;
    const MutexLock lock(mutex_);
    size_t advised = chunk_bytes;
    const ncclResult_t result =
        table_.get_chunk_size(context_, *number, operation.bytes, RowFor(chosen.algorithm),
                              ColumnFor(chosen.protocol), static_cast<int>(channels), &advised);
    if (result == ncclSuccess) return advised;
    WarnOnce("getChunkSize", result);
  }
  return chunk_bytes;
}

template <int kVersion, class Table>
void TunerOf<kVersion, Table>::WarnOnce(const char* what, ncclResult_t result) {
  if (std::exchange(has_warned_, true)) return;
  TUTTI_WARN("tuner plugin {}: {} failed (result {}); what it fails on is chosen without it", name_,
             what, static_cast<int>(result));
}

template <int kVersion, class Table>
Result<std::unique_ptr<TunerPlugin>> Try(const PluginFile& file, const TunedComm& comm) {
  const void* const table = file.Find(fmt::format("ncclTunerPlugin_v{}", kVersion));
  if (table == nullptr) return std::unique_ptr<TunerPlugin>();
  return TunerOf<kVersion, Table>::Create(*static_cast<const Table*>(table), file.name(), comm);
}

// Opens the newest table of the library. Returns null without any table.
Result<std::unique_ptr<TunerPlugin>> OpenIn(const PluginFile& file, const TunedComm& comm) {
  using namespace tunerplugin;
  for (const auto attempt : {Try<7, Table7>, Try<6, Table6>, Try<5, Table5>, Try<4, Table4>,
                             Try<3, Table3>, Try<2, Table2>}) {
    TUTTI_ASSIGN(std::unique_ptr<TunerPlugin> tuner, attempt(file, comm));
    if (tuner) return tuner;
  }
  return std::unique_ptr<TunerPlugin>();
}

Status CheckTable(const PluginFile& file) {
  for (int version = tunerplugin::kOldestVersion; version <= tunerplugin::kNewestVersion; ++version)
    if (file.Find(fmt::format("ncclTunerPlugin_v{}", version)) != nullptr) return Status::Ok();
  return InvalidUsage("the tuner plugin {} has no table from ncclTunerPlugin_v{} to v{}",
                      file.name(), tunerplugin::kOldestVersion, tunerplugin::kNewestVersion);
}

}  // namespace

std::vector<PluginFile> TunerPlugin::Find(const Settings& settings) {
  std::vector<PluginFile> found;
  const std::vector<std::string> names = PluginNames(settings.tuner_plugin);
  for (const std::string& name : names) {
    const Result<PluginFile> file = PluginFile::Open(kTunerPlugin, name);
    const Status status = file.ok() ? CheckTable(*file) : file.status();
    if (status.ok())
      found.push_back(*file);
    else if (name.empty())
      TUTTI_INFO(kLogInit | kLogTuning, "{}", status.message());
    else
      TUTTI_WARN("{}: operations are chosen without it", status.message());
  }
  if (names.empty()) return found;
  for (const std::string& name : PluginNames(settings.net_plugin)) {
    const Result<PluginFile> file = PluginFile::Open(kNetPlugin, name);
    if (file.ok() && CheckTable(*file).ok()) found.push_back(*file);
  }
  return found;
}

std::unique_ptr<TunerPlugin> TunerPlugin::Load(std::span<const PluginFile> libraries,
                                               const TunedComm& comm) {
  for (const PluginFile& file : libraries) {
    Result<std::unique_ptr<TunerPlugin>> tuner = OpenIn(file, comm);
    if (tuner.ok()) return std::move(tuner).value();
    TUTTI_WARN("{}: operations are chosen without it", tuner.status().message());
  }
  return nullptr;
}

}  // namespace tutti
