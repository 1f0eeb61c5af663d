#pragma once

// Profiler: what a communicator tells profiler plugins (NCCL_PROFILER_PLUGIN) of its operations.
// Any number of plugins up to kMostProfilers is told of everything that it asks for.
//
// The events of a rank on a host, from the time when its operations run to the time when they are
// done:
//
//   GroupApi                     of the calls of one group, or a call outside of groups
//   ├─ CollApi                   of a call of a collective
//   │  └─ Coll                   with algorithm and protocol; its older parent is Group
//   │     ├─ KernelCh            the thread that runs it; timers in ns of the monotonic clock
//   │     └─ ProxyOp             a message of a network plugin
//   │        └─ ProxyStep
//   │           └─ NetPlugin     what the plugin reports of it
//   └─ P2pApi
//      └─ P2p                    of a send or receive, with the same below it
//
// An event is reported when the plugin asks for it or for one below it. Events of the proxy are
// reported for the sake of those of network plugins only, which profilers look for below them: one
// ProxyOp with one ProxyStep for each message, which belongs to the operation that was begun last.
// Of a message that comes when no operation runs nothing is reported. Events of copy engines are
// not reported.
//
// Threads: the one that runs the communicator's operations, in turn. BeginStep, and what it
// returns, from any.

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

  // Opens the plugins: those that NCCL_PROFILER_PLUGIN names and, where none of them can be used,
  // those that lie in the libraries of network plugins. Null when there is none. Warns of each that
  // the setting names and that cannot be used.
  static std::unique_ptr<Profiler> Load(const Settings& settings, const ProfiledComm& comm);
  // Finalizes the plugins' contexts.
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Holds each plugin's handle of an event; null where that plugin is not told of it.
  using Handles = std::array<void*, kMostProfilers>;

  // Something that lasts as long as the object, and is told of by up to two events: a group of
  // calls and, for older plugins, its like; or an operation and the thread that runs it.
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

  // Tell of a group of calls, of one of them, and of the operation that it is, until the span ends;
  // nothing where `profiler` is null. An operation belongs to the group and the call that were
  // begun last.
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
  // Takes a plugin in, if its init succeeds.
  Status Add(ProfilerPlugin& plugin);
  Span TellGroup(size_t calls);
  Span TellCall(const IssuedTask& issued);
  Span TellCollective(const CollectiveTask& task, Algorithm algorithm, Protocol protocol);
  Span TellMessage(const MessageTask& message);
  // Begins the event of a kernel below that of an operation, to which messages belong from now on.
  void StartKernel(Told& told);
  // Begins an event with each plugin that asks for anything in `wanted`.
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
  // The operation that was begun last and has not ended; null when there is none.
  const Told* running_ TUTTI_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace tutti
