#include "operations/profiler/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tutti {
namespace {

using namespace profilerplugin;  // NOLINT: this file is about nothing else

constexpr PluginKind kProfilerPlugin = {"libnccl-profiler", "profiler plugin"};
constexpr PluginKind kNetLibrary = {"libnccl-net", "network plugin"};

// Each mask has the bits of an event's type and of all types below the event, because a parent is
// reported for the sake of the events below.
constexpr uint32_t kBelowOperations = kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
constexpr uint32_t kForProxyStep = kProxyStep | kNetPlugin;
constexpr uint32_t kForProxyOp = kProxyOp | kForProxyStep;
constexpr uint32_t kForColl = kColl | kBelowOperations;
constexpr uint32_t kForP2p = kP2p | kBelowOperations;
constexpr uint32_t kForGroup = kGroup | kForColl | kForP2p;
constexpr uint32_t kForCollApi = kCollApi | kForColl;
constexpr uint32_t kForP2pApi = kP2pApi | kForP2p;
constexpr uint32_t kForGroupApi = kGroupApi | kForCollApi | kForP2pApi | kGroup;

const char* TypeText(DataType type) {
  constexpr const char* kTexts[] = {"ncclInt8",     "ncclUint8",      "ncclInt32",
                                    "ncclUint32",   "ncclInt64",      "ncclUint64",
                                    "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                    "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  static_assert(std::size(kTexts) == kNumDataTypes);
  return kTexts[static_cast<size_t>(type)];
}

// Returns the algorithm's name in NCCL's spelling: in capitals, with underscores.
const char* AlgorithmText(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "RING";
    case Algorithm::kTree:
      return "TREE";
    case Algorithm::kRecursiveDoubling:
      return "RECURSIVE_DOUBLING";
    case Algorithm::kRecursiveHalving:
      return "RECURSIVE_HALVING";
    case Algorithm::kOneShot:
      return "ONE_SHOT";
    case Algorithm::kTwoShot:
      return "TWO_SHOT";
    case Algorithm::kPull:
      return "PULL";
    case Algorithm::kExchange:
      return "EXCHANGE";
    case Algorithm::kSymmetric:
      return "SYMMETRIC";
    case Algorithm::kTwoLevel:
      return "TWO_LEVEL";
  }
  return "";
}
const char* ProtocolText(Protocol protocol) {
  return protocol == Protocol::kLL ? "LL" : protocol == Protocol::kLL128 ? "LL128" : "SIMPLE";
}
// The names of collectives are literals, and therefore each ends in a zero byte.
const char* FunctionText(const CollectiveTask& task) { return Name(task.collective).data(); }
const char* FunctionText(const MessageTask& message) { return message.is_send ? "Send" : "Recv"; }

// Returns the caller's tag of a call; 0: none.
uint64_t TagOf(const CollectiveTask& task) { return task.extras ? task.extras->profiler_tag : 0; }

bool IsEmpty(const Profiler::Handles& handles) {
  return std::all_of(handles.begin(), handles.end(), [](void* handle) { return !handle; });
}

}  // namespace

std::unique_ptr<Profiler> Profiler::Load(const Settings& settings, const ProfiledComm& comm) {
  const std::vector<std::string> names = PluginNames(settings.profiler_plugin);
  if (names.empty()) return nullptr;
  std::unique_ptr<Profiler> profiler(new Profiler(comm));
  const auto add = [&](const PluginKind& kind, const std::string& name) -> Status {
    TUTTI_ASSIGN(ProfilerPlugin* const plugin, ProfilerPlugin::Open(kind, name));
    return profiler->Add(*plugin);
  };
  for (const std::string& name : names) {
    const Status added = add(kProfilerPlugin, name);
    if (added.ok()) continue;
    if (name.empty()) {
      TUTTI_INFO(kLogInit | kLogProfile, "{}", added.message());
    } else {
      TUTTI_WARN("{}: it is told of nothing", added.message());
    }
  }
  if (profiler->sessions_.empty()) {
    for (const std::string& name : PluginNames(settings.net_plugin)) {
      if (add(kNetLibrary, name).ok()) break;
    }
  }
  return profiler->sessions_.empty() ? nullptr : std::move(profiler);
}

Status Profiler::Add(ProfilerPlugin& plugin) {
  if (sessions_.size() == kMostProfilers) {
    return InvalidUsage("the profiler plugin {} is one too many: there may be {}", plugin.name(),
                        kMostProfilers);
  }
  void* context = nullptr;
  TUTTI_TRY(plugin.Init(comm_, &context));
  sessions_.push_back({&plugin, context});
  return Status::Ok();
}

Profiler::~Profiler() {
  for (const Session& session : sessions_) session.plugin->Finalize(session.context);
}

Profiler::Handles Profiler::Start(uint32_t wanted, Event7 event, const Handles& parents,
                                  const Handles& groups) {
  event.rank = comm_.rank;
  Handles handles = {};
  for (size_t i = 0; i < sessions_.size(); ++i) {
    const Session& session = sessions_[i];
    if ((session.plugin->mask() & wanted) == 0) continue;
    event.parent = parents[i];
    if (event.type == kColl) event.coll.parent_group = groups[i];
    if (event.type == kP2p) event.p2p.parent_group = groups[i];
    // Events of these types make sense only below a parent.
    if ((event.type & kBelowOperations) != 0 && parents[i] == nullptr) continue;
    handles[i] = session.plugin->Start(session.context, comm_, event);
  }
  return handles;
}

void Profiler::Stop(const Handles& handles) {
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (handles[i] != nullptr) sessions_[i].plugin->Stop(handles[i]);
  }
}

void Profiler::Record(const Handles& handles, int state, const StateArgs& args) {
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (handles[i] != nullptr) sessions_[i].plugin->Record(handles[i], state, args);
  }
}

Profiler::Told::~Told() {
  if (has_kernel) {
    profiler.Record(inner, kKernelChStop, {.timer = static_cast<uint64_t>(NowNs())});
    const MutexLock lock(profiler.mutex_);
    if (profiler.running_ == this) profiler.running_ = nullptr;
  }
  profiler.Stop(inner);
  profiler.Stop(outer);
}

Profiler::Span Profiler::TellGroup(size_t calls) {
  auto told = std::make_unique<Told>(*this);
  Event7 event = {};
  event.type = kGroupApi;
  event.group_api = {.graph_captured = false, .group_depth = calls > 1 ? 2 : 1};
  group_api_ = told->outer = Start(kForGroupApi, event, {}, {});
  Record(told->outer, kGroupStartApiStop);
  Record(told->outer, kGroupEndApiStart);
  event = {};
  event.type = kGroup;
  group_ = told->inner = Start(kForGroup, event, {}, {});
  return told;
}

Profiler::Span Profiler::TellCall(const IssuedTask& issued) {
  auto told = std::make_unique<Told>(*this);
  Event7 event = {};
  if (const auto* const message = std::get_if<MessageTask>(&issued.task)) {
    event.type = kP2pApi;
    event.p2p_api = {.func = FunctionText(*message),
                     .count = message->count,
                     .datatype = TypeText(message->type),
                     .stream = issued.stream,
                     .graph_captured = false,
                     .user_tag = 0};
  } else {
    const auto& task = std::get<CollectiveTask>(issued.task);
    event.type = kCollApi;
    event.coll_api = {.func = FunctionText(task),
                      .count = task.total_count(),
                      .datatype = TypeText(task.type),
                      .root = task.root,
                      .stream = issued.stream,
                      .graph_captured = false,
                      .user_tag = TagOf(task)};
  }
  call_ = told->outer =
      Start(event.type == kP2pApi ? kForP2pApi : kForCollApi, event, group_api_, {});
  return told;
}

Profiler::Span Profiler::TellCollective(const CollectiveTask& task, Algorithm algorithm,
                                        Protocol protocol) {
  auto told = std::make_unique<Told>(*this);
  Event7 event = {};
  event.type = kColl;
  event.coll = {.sequence = sequence_[static_cast<size_t>(task.collective)]++,
                .func = FunctionText(task),
                .send = task.send,
                .recv = task.recv,
                .count = task.total_count(),
                .root = task.root,
                .datatype = TypeText(task.type),
                .channels = 1,
                .warps = 1,
                .algorithm = AlgorithmText(algorithm),
                .protocol = ProtocolText(protocol),
                .parent_group = nullptr,
                .kernel_variant = "",
                .is_symmetric = false,
                .user_tag = TagOf(task)};
  told->outer = Start(kForColl, event, call_, group_);
  StartKernel(*told);
  return told;
}

Profiler::Span Profiler::TellMessage(const MessageTask& message) {
  auto told = std::make_unique<Told>(*this);
  Event7 event = {};
  event.type = kP2p;
  event.p2p = {.func = FunctionText(message),
               .buffer = message.buffer,
               .datatype = TypeText(message.type),
               .count = message.count,
               .peer = message.peer,
               .channels = 1,
               .parent_group = nullptr,
               .user_tag = 0};
  told->outer = Start(kForP2p, event, call_, group_);
  StartKernel(*told);
  return told;
}

void Profiler::StartKernel(Told& told) {
  Event7 event = {};
  event.type = kKernelCh;
  event.kernel_ch = {.channel = 0, .timer = static_cast<uint64_t>(NowNs())};
  told.inner = Start(kKernelCh, event, told.outer, {});
  told.has_kernel = true;
  const MutexLock lock(mutex_);
  running_ = &told;
}

// An event of a network plugin.
class Profiler::NetEvent final : public NetEvents::Event {
 public:
  NetEvent(Profiler& profiler, const Handles& handles) : profiler_(profiler), handles_(handles) {}
  ~NetEvent() override { profiler_.Stop(handles_); }
  void Update(void* data) override { profiler_.Record(handles_, kNetPluginUpdate, {.data = data}); }

 private:
  Profiler& profiler_;
  const Handles handles_;
};

// A message of a network plugin, reported as two events.
class Profiler::NetStep final : public NetEvents::Step {
 public:
  NetStep(Profiler& profiler, const Handles& op, const Handles& step)
      : profiler_(profiler), op_(op), step_(step) {}
  ~NetStep() override {
    profiler_.Stop(step_);
    profiler_.Stop(op_);
  }
  std::unique_ptr<Event> Begin(int64_t plugin, void* data) override {
    Event7 event = {};
    event.type = kNetPlugin;
    event.net_plugin = {plugin, data};
    const Handles handles = profiler_.Start(kNetPlugin, event, step_, {});
    if (IsEmpty(handles)) return nullptr;
    return std::make_unique<NetEvent>(profiler_, handles);
  }

 private:
  Profiler& profiler_;
  const Handles op_;
  const Handles step_;
};

bool Profiler::AnyAsksFor(uint32_t wanted) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const Session& session) {
    return (session.plugin->mask() & wanted) != 0;
  });
}

// Holds the lock to keep the operation from ending while the events below the operation begin.
std::unique_ptr<NetEvents::Step> Profiler::BeginStep(bool is_send, size_t bytes) {
  if (!AnyAsksFor(kForProxyOp)) return nullptr;
  const MutexLock lock(mutex_);
  if (!running_) return nullptr;
  Event7 event = {};
  event.type = kProxyOp;
  event.proxy_op = {.pid = getpid(),
                    .channel = 0,
                    .peer = -1,
                    .steps = 1,
                    .chunk_bytes = static_cast<int>(bytes),
                    .is_send = is_send};
  const Handles op = Start(kForProxyOp, event, running_->outer, {});
  event = {};
  event.type = kProxyStep;
  const Handles step = Start(kForProxyStep, event, op, {});
  if (IsEmpty(op)) return nullptr;
  return std::make_unique<NetStep>(*this, op, step);
}

}  // namespace tutti
