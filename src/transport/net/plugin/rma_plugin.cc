#include "transport/net/plugin/rma_plugin.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/log.h"
#include "transport/net/plugin/rma_plugin_group.h"

namespace tutti {

struct RmaPlugins::Candidate {
  uint64_t name = 0;
  std::shared_ptr<RmaLibrary> library;
};

namespace {

// Returns a number for a plugin, by which ranks with the same plugin join. The number includes the
// version, because a plugin's wire protocol may differ between versions.
uint64_t NumberOf(const RmaFunctions& functions) {
  Fnv1a hash;
  for (const char* at = functions.name(); *at != '\0'; ++at) hash.Add(static_cast<uint8_t>(*at));
  hash.Add(static_cast<uint8_t>(functions.version()));
  return hash.hash() | 1;
}

// Joins the ranks by connect and createContext, both of which may wait for other ranks.
class Listener final : public RmaGroupListener {
 public:
  Listener(std::shared_ptr<RmaPluginContext> context, void* comm, const NetHandle& handle)
      : context_(std::move(context)), comm_(comm), handle_(handle) {}
  ~Listener() override {
    // A failure is ignored, since the listener is gone in any case.
    static_cast<void>(
        context_
            ->Do("closeListen", [this](RmaFunctions& plugin) { return plugin.CloseListen(comm_); })
            .ok());
  }

  const NetHandle& handle() const override { return handle_; }

  Result<std::unique_ptr<RmaGroup>> Join(std::span<const NetHandle> handles, int rank) override {
    std::vector<NetHandle> own(handles.begin(), handles.end());
    std::vector<void*> pointers;
    for (NetHandle& handle : own) pointers.push_back(handle.data());
    const auto num_ranks = static_cast<int>(handles.size());
    void* coll_comm = nullptr;
    TUTTI_TRY(context_->Do("connect", [&](RmaFunctions& plugin) {
      return plugin.Connect(context_->context(), pointers.data(), num_ranks, rank, comm_,
                            &coll_comm);
    }));
    void* made = nullptr;
    Status created = context_->Do("createContext", [&](RmaFunctions& plugin) {
      return plugin.CreateContext(coll_comm, &made);
    });
    if (!created.ok()) {
      static_cast<void>(
          context_
              ->Do("closeColl", [&](RmaFunctions& plugin) { return plugin.CloseColl(coll_comm); })
              .ok());
      return created;
    }
    TUTTI_ASSIGN(std::unique_ptr<RmaPluginGroup> group,
                 RmaPluginGroup::Create(context_, coll_comm, made, num_ranks, rank));
    return std::unique_ptr<RmaGroup>(std::move(group));
  }

 private:
  const std::shared_ptr<RmaPluginContext> context_;
  void* const comm_;
  const NetHandle handle_;
};

// Returns the device whose folder is `own_nic`, and otherwise the first device. Fails with
// InvalidUsage where the plugin has no devices, or leaves operations to kernels.
Result<int> ChooseDevice(RmaPluginContext& context, const std::string& own_nic) {
  int count = 0;
  TUTTI_TRY(context.Do("devices", [&](RmaFunctions& plugin) { return plugin.Devices(&count); }));
  if (count <= 0) return InvalidUsage("{} has no devices", context.name());
  int chosen = 0;
  for (int i = 0; i < count; ++i) {
    PluginProperties properties;
    int type = 0;
    TUTTI_TRY(context.Do("getProperties", [&](RmaFunctions& plugin) {
      return plugin.GetProperties(i, &properties, &type);
    }));
    if (type != TUTTI_GIN_TYPE_PROXY)
      return InvalidUsage("{}: device {} has the type {}, whose operations are kernels'",
                          context.name(), i, type);
    if (!own_nic.empty() && properties.pci_path == own_nic && chosen == 0) chosen = i;
    TUTTI_INFO(kLogNet | kLogInit, "net: device {} of {} is {}, {} Mb/s, {}", i, context.name(),
               properties.name, properties.speed_mbps,
               properties.pci_path.empty() ? "not on PCI" : properties.pci_path);
  }
  return chosen;
}

}  // namespace

// A network plugin need not have one-sided operations, and an empty name is only a guess. Failures
// of both are logged as information, and failures of named RMA or GIN plugins as warnings.
std::unique_ptr<RmaGroups> RmaPlugins::Find(const Settings& settings, std::string own_nic) {
  std::vector<Candidate> candidates;
  const std::pair<PluginKind, std::string> kinds[] = {
      {RmaLibrary::kRma, settings.rma_plugin},
      {RmaLibrary::kGin, settings.gin_plugin},
      {RmaLibrary::kNet, settings.net_plugin},
  };
  for (const auto& [kind, setting] : kinds) {
    const bool is_net = kind.prefix == RmaLibrary::kNet.prefix;
    for (const std::string& name : PluginNames(setting)) {
      Result<std::shared_ptr<RmaLibrary>> library = RmaLibrary::Open(kind, name);
      if (library.ok()) {
        const uint64_t number = NumberOf((*library)->functions());
        candidates.push_back({number, std::move(library).value()});
      } else if (name.empty() || is_net) {
        TUTTI_INFO(kLogInit | kLogNet, "{}", library.status().message());
      } else {
        TUTTI_WARN("{}", library.status().message());
      }
    }
  }
  if (candidates.empty()) return nullptr;
  return std::unique_ptr<RmaGroups>(new RmaPlugins(std::move(candidates), std::move(own_nic)));
}

RmaPlugins::RmaPlugins(std::vector<Candidate> candidates, std::string own_nic)
    : candidates_(std::move(candidates)), own_nic_(std::move(own_nic)) {}
RmaPlugins::~RmaPlugins() = default;

std::vector<uint64_t> RmaPlugins::names() const {
  std::vector<uint64_t> names;
  for (const Candidate& candidate : candidates_) names.push_back(candidate.name);
  return names;
}

std::string_view RmaPlugins::NameOf(uint64_t name) const {
  for (const Candidate& candidate : candidates_)
    if (candidate.name == name) return candidate.library->functions().name();
  return "?";
}

// The plugin is initialised for each communicator, since its context belongs to one communicator.
Result<std::unique_ptr<RmaGroupListener>> RmaPlugins::Open(uint64_t name, uint64_t number) {
  const auto found =
      std::find_if(candidates_.begin(), candidates_.end(),
                   [&](const Candidate& candidate) { return candidate.name == name; });
  if (found == candidates_.end()) return InternalError("there is no plugin of that name");
  TUTTI_ASSIGN(std::shared_ptr<RmaPluginContext> context,
               RmaPluginContext::Create(found->library, number));
  TUTTI_ASSIGN(const int device, ChooseDevice(*context, own_nic_));
  NetHandle handle = {};
  void* comm = nullptr;
  TUTTI_TRY(context->Do("listen", [&](RmaFunctions& plugin) {
    return plugin.Listen(context->context(), device, handle.data(), &comm);
  }));
  return std::unique_ptr<RmaGroupListener>(
      std::make_unique<Listener>(std::move(context), comm, handle));
}

}  // namespace tutti
