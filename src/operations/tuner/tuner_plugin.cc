#include "operations/tuner/tuner_plugin.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "config/plugin_file.h"
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
  return protocol == Protocol::kLL ? tunerplugin::kLL : tunerplugin::kSimple;
}

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
  void Advise(Collective collective, size_t bytes, std::span<CostOption> options) override;
  size_t AdviseChunk(Collective collective, size_t bytes, const CostOption& chosen,
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
  ncclResult_t Ask(int collective, size_t bytes, tunerplugin::Times& times);
  void WarnOnce(const char* what, ncclResult_t result);

  const Table& table_;
  void* const context_;
  const std::string name_;
  bool has_warned_ = false;
};

template <int kVersion, class Table>
ncclResult_t TunerOf<kVersion, Table>::Ask(int collective, size_t bytes,
                                           tunerplugin::Times& times) {
  constexpr int kOneOperation = 1;
  constexpr int kNotRegistered = 0;
  int channels = 0;  // Hosts have one channel, whatever a plugin wants.
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
                                tunerplugin::kAlgorithms, tunerplugin::kProtocols, kNotRegistered,
                                &channels);
  }
}

// If the plugin fails, the operation runs as without a plugin.
template <int kVersion, class Table>
void TunerOf<kVersion, Table>::Advise(Collective collective, size_t bytes,
                                      std::span<CostOption> options) {
  const std::optional<int> number = NumberOf(collective);
  if (!number) return;
  const auto is_shown = [](const CostOption& option) {
    return IsNamed(option.algorithm) && option.off == 0;
  };
  tunerplugin::Times times;
  for (auto& row : times) {
    for (float& time : row) time = tunerplugin::kIgnore;
  }
  for (const CostOption& option : options) {
    if (is_shown(option)) {
      times[RowFor(option.algorithm)][ColumnFor(option.protocol)] = static_cast<float>(option.us);
    }
  }
  if (const ncclResult_t result = Ask(*number, bytes, times); result != ncclSuccess) {
    WarnOnce("getCollInfo", result);
    return;
  }
  for (CostOption& option : options) {
    if (!is_shown(option)) continue;
    const float time = times[RowFor(option.algorithm)][ColumnFor(option.protocol)];
    if (time == static_cast<float>(option.us)) continue;
    option.us = std::isfinite(time) && time >= 0 ? double{time} : kNotThisWay;
  }
}

template <int kVersion, class Table>
size_t TunerOf<kVersion, Table>::AdviseChunk([[maybe_unused]] Collective collective,
                                             [[maybe_unused]] size_t bytes,
                                             [[maybe_unused]] const CostOption& chosen,
                                             size_t chunk_bytes) {
  if constexpr (kVersion >= 6) {
    const std::optional<int> number = NumberOf(collective);
    if (!number || table_.get_chunk_size == nullptr) return chunk_bytes;
    constexpr int kOneChannel = 1;
    size_t advised = chunk_bytes;
    const ncclResult_t result =
        table_.get_chunk_size(context_, *number, bytes, RowFor(chosen.algorithm),
                              ColumnFor(chosen.protocol), kOneChannel, &advised);
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

// Opens the plugin of the given name.
Result<std::unique_ptr<TunerPlugin>> Open(const std::string& name, const TunedComm& comm) {
  TUTTI_ASSIGN(const PluginFile file, PluginFile::Open(kTunerPlugin, name));
  TUTTI_ASSIGN(std::unique_ptr<TunerPlugin> tuner, OpenIn(file, comm));
  if (tuner) return tuner;
  return InvalidUsage("the tuner plugin {} has no table from ncclTunerPlugin_v{} to v{}",
                      file.name(), tunerplugin::kOldestVersion, tunerplugin::kNewestVersion);
}

// Opens the tuner in the library of a network plugin. Returns null without a tuner.
std::unique_ptr<TunerPlugin> OpenBesideNet(const std::string& name, const TunedComm& comm) {
  const Result<PluginFile> file = PluginFile::Open(kNetPlugin, name);
  if (!file.ok()) return nullptr;
  Result<std::unique_ptr<TunerPlugin>> tuner = OpenIn(*file, comm);
  if (tuner.ok()) return std::move(tuner).value();
  TUTTI_WARN("{}: operations are chosen without it", tuner.status().message());
  return nullptr;
}

}  // namespace

std::unique_ptr<TunerPlugin> TunerPlugin::Load(const Settings& settings, const TunedComm& comm) {
  const std::vector<std::string> names = PluginNames(settings.tuner_plugin);
  if (names.empty()) return nullptr;
  for (const std::string& name : names) {
    Result<std::unique_ptr<TunerPlugin>> tuner = Open(name, comm);
    if (tuner.ok()) return std::move(tuner).value();
    if (name.empty()) {
      TUTTI_INFO(kLogInit | kLogTuning, "{}", tuner.status().message());
    } else {
      TUTTI_WARN("{}: operations are chosen without it", tuner.status().message());
    }
  }
  for (const std::string& name : PluginNames(settings.net_plugin)) {
    if (auto tuner = OpenBesideNet(name, comm)) return tuner;
  }
  return nullptr;
}

}  // namespace tutti
