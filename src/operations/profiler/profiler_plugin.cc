#include "operations/profiler/profiler_plugin.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace tutti {
namespace {

using namespace profilerplugin;  // NOLINT: this file is about nothing else

// The numbers of version 1, which has no texts.
struct NumberedText {
  const char* text;
  uint8_t number;
};
constexpr NumberedText kFunctions[] = {{"Broadcast", 0},     {"Reduce", 1},    {"AllGather", 2},
                                       {"ReduceScatter", 3}, {"AllReduce", 4}, {"SendRecv", 5},
                                       {"Send", 6},          {"Recv", 7}};
constexpr NumberedText kTypes[] = {{"ncclInt8", ncclInt8},       {"ncclUint8", ncclUint8},
                                   {"ncclInt32", ncclInt32},     {"ncclUint32", ncclUint32},
                                   {"ncclInt64", ncclInt64},     {"ncclUint64", ncclUint64},
                                   {"ncclFloat16", ncclFloat16}, {"ncclFloat32", ncclFloat32},
                                   {"ncclFloat64", ncclFloat64}, {"ncclBfloat16", ncclBfloat16}};
constexpr NumberedText kAlgorithms[] = {{"TREE", 0}, {"RING", 1}};
constexpr NumberedText kProtocols[] = {{"LL", 0}, {"LL128", 1}, {"SIMPLE", 2}};
constexpr uint8_t kUnknown = 0xff;

template <size_t kCount>
uint8_t NumberFor(const NumberedText (&table)[kCount], const char* text) {
  for (const NumberedText& row : table) {
    if (std::strcmp(row.text, text) == 0) return row.number;
  }
  return kUnknown;
}

// Fill the fields that an old version's form of an event shares with the newest form.
template <class To>
void CopyColl(To& to, const Coll7& from) {
  to.sequence = from.sequence;
  to.send = from.send;
  to.recv = from.recv;
  to.count = from.count;
  to.root = from.root;
  to.channels = from.channels;
  to.warps = from.warps;
  if constexpr (std::is_same_v<To, Coll1>) {
    to.func = NumberFor(kFunctions, from.func);
    to.datatype = NumberFor(kTypes, from.datatype);
    to.algorithm = NumberFor(kAlgorithms, from.algorithm);
    to.protocol = NumberFor(kProtocols, from.protocol);
  } else {
    to.func = from.func;
    to.datatype = from.datatype;
    to.algorithm = from.algorithm;
    to.protocol = from.protocol;
  }
}
template <class To>
void CopyP2p(To& to, const P2p7& from) {
  to.buffer = from.buffer;
  to.count = from.count;
  to.peer = from.peer;
  if constexpr (std::is_same_v<To, P2p1>) {
    to.func = NumberFor(kFunctions, from.func);
    to.datatype = NumberFor(kTypes, from.datatype);
  } else {
    to.func = from.func;
    to.datatype = from.datatype;
  }
  if constexpr (std::is_same_v<To, P2p4> || std::is_same_v<To, P2p5>) to.channels = from.channels;
}

// Returns whether a version has events of this type.
template <class Event>
bool Knows(uint64_t type) {
  if constexpr (std::is_same_v<Event, Event7> || std::is_same_v<Event, Event6>) return true;
  constexpr bool kIsNew = std::is_same_v<Event, Event4> || std::is_same_v<Event, Event3>;
  constexpr uint64_t kAll = kGroup | kColl | kP2p | kProxyOp | kProxyStep;
  return (type & (kIsNew ? kAll | kKernelCh | kNetPlugin : kAll)) != 0;
}

// Makes an old version's form of an event. Before version 5 the group was the parent of operations.
// Before version 4 operations named their communicator.
template <class Event>
Event OldForm(const Event7& from, const ProfiledComm& comm) {
  Event to = {};
  to.type = static_cast<uint8_t>(from.type);
  to.parent = from.parent;
  to.rank = from.rank;
  constexpr bool kNamesComm = !std::is_same_v<Event, Event4>;
  if (from.type == kColl) {
    to.parent = from.coll.parent_group;
    CopyColl(to.coll, from.coll);
    if constexpr (kNamesComm) {
      to.coll.name = comm.name.c_str();
      to.coll.comm_hash = comm.id;
    }
  } else if (from.type == kP2p) {
    to.parent = from.p2p.parent_group;
    CopyP2p(to.p2p, from.p2p);
    if constexpr (kNamesComm) {
      to.p2p.name = comm.name.c_str();
      to.p2p.comm_hash = comm.id;
    }
  } else if (from.type == kProxyOp) {
    to.proxy_op = from.proxy_op;
  } else if (from.type == kProxyStep) {
    to.proxy_step = from.proxy_step;
  } else if constexpr (!std::is_same_v<Event, Event1> && !std::is_same_v<Event, Event2>) {
    if (from.type == kKernelCh) to.kernel_ch = from.kernel_ch;
    if (from.type == kNetPlugin) to.net_plugin = from.net_plugin;
  }
  return to;
}

// Makes the form of an event in versions 5 and 6.
Event6 FormWithoutTags(const Event7& from) {
  Event6 to = {};
  to.type = from.type;
  to.parent = from.parent;
  to.rank = from.rank;
  switch (from.type) {
    case kGroupApi:
      to.group_api = from.group_api;
      break;
    case kCollApi:
      to.coll_api = {from.coll_api.func, from.coll_api.count,  from.coll_api.datatype,
                     from.coll_api.root, from.coll_api.stream, from.coll_api.graph_captured};
      break;
    case kP2pApi:
      to.p2p_api = {from.p2p_api.func, from.p2p_api.count, from.p2p_api.datatype,
                    from.p2p_api.stream, from.p2p_api.graph_captured};
      break;
    case kColl:
      CopyColl(to.coll, from.coll);
      to.coll.parent_group = from.coll.parent_group;
      break;
    case kP2p:
      CopyP2p(to.p2p, from.p2p);
      to.p2p.parent_group = from.p2p.parent_group;
      break;
    case kProxyOp:
      to.proxy_op = from.proxy_op;
      break;
    case kProxyStep:
      to.proxy_step = from.proxy_step;
      break;
    case kKernelCh:
      to.kernel_ch = from.kernel_ch;
      break;
    case kNetPlugin:
      to.net_plugin = from.net_plugin;
      break;
    default:  // A group has no further fields.
      break;
  }
  return to;
}

template <int kVersion, class Table>
class ProfilerOf final : public ProfilerPlugin {
 public:
  using Event = typename Table::Event;

  static Result<std::unique_ptr<ProfilerPlugin>> Create(const Table& table,
                                                        const std::string& file) {
    const auto& functions = table.functions;
    const char* const missing = table.name == nullptr           ? "a name"
                                : table.init == nullptr         ? "init"
                                : functions.start == nullptr    ? "startEvent"
                                : functions.stop == nullptr     ? "stopEvent"
                                : functions.record == nullptr   ? "recordEventState"
                                : functions.finalize == nullptr ? "finalize"
                                                                : nullptr;
    if (missing == nullptr) return std::unique_ptr<ProfilerPlugin>(new ProfilerOf(table));
    return InvalidUsage("the profiler plugin {} lacks {} in ncclProfiler_v{}", file, missing,
                        kVersion);
  }

  Status Init(const ProfiledComm& comm, void** context) override {
    ncclResult_t result;
    if constexpr (kVersion >= 5) {
      result = table_.init(context, comm.id, mask_place(), comm.name.c_str(), comm.num_hosts,
                           comm.num_ranks, comm.rank, LogForPlugins());
    } else if constexpr (kVersion == 4) {
      result = table_.init(context, mask_place(), comm.name.c_str(), comm.id, comm.num_hosts,
                           comm.num_ranks, comm.rank, LogForPlugins());
    } else {
      result = table_.init(context, mask_place());
    }
    if (result == ncclSuccess) return Status::Ok();
    return InvalidUsage("the profiler plugin {} failed in init (result {})", name(),
                        static_cast<int>(result));
  }
  void Finalize(void* context) override { Keep("finalize", table_.functions.finalize(context)); }
  void* Start(void* context, const ProfiledComm& comm, const Event7& event) override {
    if (!Knows<Event>(event.type)) return nullptr;
    Event own = Form(event, comm);
    void* handle = nullptr;
    const ncclResult_t result = table_.functions.start(context, &handle, &own);
    Keep("startEvent", result);
    return result == ncclSuccess ? handle : nullptr;
  }
  void Stop(void* handle) override { Keep("stopEvent", table_.functions.stop(handle)); }
  void Record(void* handle, int state, const StateArgs& args) override {
    // Versions before 4 know none of the reported states, and version 4 knows no states of API
    // calls.
    if (kVersion < 4 || (kVersion < 5 && state > kKernelChStop)) return;
    StateArgs own = args;
    Keep("recordEventState", table_.functions.record(handle, state, &own));
  }

 private:
  explicit ProfilerOf(const Table& table)
      : ProfilerPlugin(fmt::format("{}, version {}", table.name, kVersion)), table_(table) {}

  static Event Form(const Event7& event, const ProfiledComm& comm) {
    if constexpr (kVersion >= 7) {
      return event;
    } else if constexpr (kVersion >= 5) {
      return FormWithoutTags(event);
    } else {
      return OldForm<Event>(event, comm);
    }
  }

  const Table& table_;
};

template <int kVersion, class Table>
Result<std::unique_ptr<ProfilerPlugin>> Try(const PluginFile& file) {
  const void* const table = file.Find(fmt::format("ncclProfiler_v{}", kVersion));
  if (table == nullptr) return std::unique_ptr<ProfilerPlugin>();
  return ProfilerOf<kVersion, Table>::Create(*static_cast<const Table*>(table), file.name());
}

}  // namespace

Result<ProfilerPlugin*> ProfilerPlugin::Open(const PluginKind& kind, const std::string& name) {
  struct Opened {
    Mutex mutex;
    std::map<std::string, std::unique_ptr<ProfilerPlugin>> by_name TUTTI_GUARDED_BY(mutex);
  };
  static Opened& opened = *new Opened;  // never destroyed: threads may outlive main
  const MutexLock lock(opened.mutex);
  std::unique_ptr<ProfilerPlugin>& place = opened.by_name[fmt::format("{} {}", kind.prefix, name)];
  if (!place) {
    TUTTI_ASSIGN(place, Load(kind, name));
  }
  return place.get();
}

Result<std::unique_ptr<ProfilerPlugin>> ProfilerPlugin::Load(const PluginKind& kind,
                                                             const std::string& name) {
  TUTTI_ASSIGN(const PluginFile file, PluginFile::Open(kind, name));
  for (const auto attempt : {Try<7, Table7>, Try<6, Table6>, Try<5, Table5>, Try<4, Table4>,
                             Try<3, Table3>, Try<2, Table2>, Try<1, Table1>}) {
    TUTTI_ASSIGN(std::unique_ptr<ProfilerPlugin> plugin, attempt(file));
    if (!plugin) continue;
    TUTTI_INFO(kLogInit | kLogProfile, "profiler plugin {} is \"{}\"", file.name(), plugin->name());
    return plugin;
  }
  return InvalidUsage("the profiler plugin {} has no table from ncclProfiler_v{} to v{}",
                      file.name(), kOldestVersion, kNewestVersion);
}

void ProfilerPlugin::Keep(const char* what, ncclResult_t result) {
  if (result == ncclSuccess || has_warned_.exchange(true)) return;
  TUTTI_WARN("profiler plugin {}: {} failed (result {}); further failures are not reported", name_,
             what, static_cast<int>(result));
}

}  // namespace tutti
