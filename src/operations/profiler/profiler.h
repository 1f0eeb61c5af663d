#pragma once

// Profiler reports a communicator's operations to profiler plugins (NCCL_PROFILER_PLUGIN). Up to
// kMostProfilers plugins hear of all events that they ask for.
//
// The events of a rank on a host, from the time when its operations run to the time when the
// operations are done:
//
//    GroupApi                     the calls of one group, or a call outside of groups
//    ├─ CollApi                   a call of a collective
//    │  └─ Coll                   with algorithm and protocol; its older parent is Group
//    │     ├─ KernelCh            the thread of the operation; timers in ns of the monotonic clock
//    │     └─ ProxyOp             a message of a network plugin
//    │        └─ ProxyStep
//    │           └─ NetPlugin     the plugin's reports of the message
//    └─ P2pApi
//       └─ P2p                    a send or receive, with the same events below as Coll
//
// An event is reported if the plugin asks for the event or for an event below. Events of the proxy
// are reported only as the parents of events of network plugins, because profilers look for them
// there: a ProxyOp with a ProxyStep for each message. A message belongs to the operation that began
// last. A message outside of operations is not reported. Events of copy engines are not reported.
//
// Threads: the thread that runs the communicator's operations, in turn. Any thread may call
// BeginStep and use its result.

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "config/settings.h"
#include "operations/operations.h"
#include "operations/profiler/profiler_plugin.h"
#include "plan/task.h"
#include "transport/net/plugin/net_events.h"

namespace tutti {

class Profiler final : public NetEvents {
 public:
  static constexpr size_t kMostProfilers = 4;

  // Opens the plugins of NCCL_PROFILER_PLUGIN. If none of them is usable, opens the profilers in
  // the libraries of network plugins. Returns null without any plugin. Warns of each plugin of the
  // setting that is not usable.
  static std::unique_ptr<Profiler> Load(const Settings& settings, const ProfiledComm& comm);
  // Finalizes the plugins' contexts.
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Holds each plugin's handle of an event, or null for a plugin that does not hear of the event.
  using Handles = std::array<void*, kMostProfilers>;

  // Ends the events of a period at the end of the object's lifetime. A period has up to two events:
  // a group of calls and the same group for older plugins, or an operation and the thread that runs
  // the operation.
  struct Told {
    explicit Told(Profiler& teller) : profiler(teller) {}
    Told(const Told&) = delete;
    Told& operator=(const Told&) = delete;
    ~Told();

    Profiler& profiler;
    Handles outer = {};
    Handles inner = {};
    bool has_kernel = false;
  };
  using Span = std::unique_ptr<Told>;

  // Report a group of calls, a call of the group, and the operation of the call, until the span
  // ends. Return null if `profiler` is null. An operation belongs to the group and the call that
  // began last.
  static Span OfGroup(Profiler* profiler, size_t calls) {
    return profiler == nullptr ? nullptr : profiler->TellGroup(calls);
  }
  static Span OfCall(Profiler* profiler, const IssuedTask& issued) {
    return profiler == nullptr ? nullptr : profiler->TellCall(issued);
  }
  static Span OfCollective(Profiler* profiler, const CollectiveTask& task, Algorithm algorithm,
                           Protocol protocol) {
    return profiler == nullptr ? nullptr : profiler->TellCollective(task, algorithm, protocol);
  }
  static Span OfMessage(Profiler* profiler, const MessageTask& message) {
    return profiler == nullptr ? nullptr : profiler->TellMessage(message);
  }

  std::unique_ptr<Step> BeginStep(bool is_send, size_t bytes) override;

 private:
  class NetStep;
  class NetEvent;
  struct Session {
    ProfilerPlugin* plugin;
    void* context;
  };

  explicit Profiler(const ProfiledComm& comm) : comm_(comm) {}
  // Adds a plugin, if its init succeeds.
  Status Add(ProfilerPlugin& plugin);
  Span TellGroup(size_t calls);
  Span TellCall(const IssuedTask& issued);
  Span TellCollective(const CollectiveTask& task, Algorithm algorithm, Protocol protocol);
  Span TellMessage(const MessageTask& message);
  // Begins the event of a kernel below the event of an operation. Later messages belong to this
  // operation.
  void StartKernel(Told& told);
  // Begins an event with each plugin that asks for any type in `wanted`.
  Handles Start(uint32_t wanted, profilerplugin::Event7 event, const Handles& parents,
                const Handles& groups);
  void Stop(const Handles& handles);
  void Record(const Handles& handles, int state, const profilerplugin::StateArgs& args = {});
  bool AnyAsksFor(uint32_t wanted) const;

  const ProfiledComm comm_;
  std::vector<Session> sessions_;
  Handles group_api_ = {};
  Handles group_ = {};
  Handles call_ = {};
  std::array<uint64_t, kNumCollectives> sequence_ = {};
  Mutex mutex_;
  // The operation that began last and has not ended, or null.
  const Told* running_ TUTTI_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace tutti
