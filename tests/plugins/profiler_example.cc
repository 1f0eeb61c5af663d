// A profiler plugin of NCCL's kind: an example to start from, and the plugin that the tests run. It
// is written once for all versions of the interface from 1 to 7 (operations/profiler/abi.h has
// their differences); -DVERSION=n chooses which one it exports.
//
// It keeps a text of what it was told, which the tests read (exampleLog): a line for each event
// that began, with its parent's type and what it says, and one for each that ended.
// EXAMPLE_PROFILER says which events it asks for, as a number (all when not set), or how it
// misbehaves: "init", "start". A promise that is not kept ends the process: an event that ends
// twice or never, or a parent that is none.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>

#include "operations/profiler/abi.h"

#ifndef VERSION
#define VERSION 7
#endif

namespace {

using namespace tutti::profilerplugin;

#if VERSION >= 7
using Its = Event7;
#elif VERSION >= 5
using Its = Event6;
#elif VERSION == 4
using Its = Event4;
#elif VERSION == 3
using Its = Event3;
#elif VERSION == 2
using Its = Event2;
#else
using Its = Event1;
#endif

struct Context {
  std::atomic<int> open = 0;
};

constexpr uint64_t kAlive = 0x6576656e74;
struct Told {
  uint64_t alive = kAlive;
  Context* context;
  uint64_t type;
};

std::mutex mutex;
std::string text;
std::string shown;  // what exampleLog gave out

void Expect(bool promise, const char* what) {
  if (promise) return;
  std::fprintf(stderr, "profiler example: a promise was not kept: %s\n", what);
  std::abort();
}

std::string Wish() {
  const char* const wish = std::getenv("EXAMPLE_PROFILER");
  return wish != nullptr ? wish : "";
}

const char* NameOf(uint64_t type) {
  switch (type) {
    case kGroup:
      return "Group";
    case kColl:
      return "Coll";
    case kP2p:
      return "P2p";
    case kKernelCh:
      return "KernelCh";
    case kProxyOp:
      return "ProxyOp";
    case kProxyStep:
      return "ProxyStep";
    case kNetPlugin:
      return "NetPlugin";
    case kGroupApi:
      return "GroupApi";
    case kCollApi:
      return "CollApi";
    case kP2pApi:
      return "P2pApi";
    default:
      return "?";
  }
}

void Add(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex);
  text += line + "\n";
}

[[maybe_unused]] std::string Text(const char* word) { return word; }
[[maybe_unused]] std::string Text(uint8_t number) { return "#" + std::to_string(number); }

// Returns a call's tag, where the version has tags and the call has one.
template <class Part>
std::string TagOf(const Part& part) {
  if constexpr (requires { part.user_tag; })
    if (part.user_tag != 0) return " tag " + std::to_string(part.user_tag);
  return "";
}

std::string Details(const Its& event) {
#if VERSION >= 5
  if (event.type == kCollApi) return TagOf(event.coll_api);
#endif
  if (event.type == kColl) {
    return " " + Text(event.coll.func) + " " + std::to_string(event.coll.count) + " " +
           Text(event.coll.datatype) + " " + Text(event.coll.algorithm) + " " +
           Text(event.coll.protocol) + " number " + std::to_string(event.coll.sequence) +
           TagOf(event.coll);
  }
  if (event.type == kP2p) {
    return " " + Text(event.p2p.func) + " " + std::to_string(event.p2p.count) + " with " +
           std::to_string(event.p2p.peer);
  }
  if (event.type == kProxyOp) {
    return std::string(event.proxy_op.is_send != 0 ? " send" : " receive") + " of up to " +
           std::to_string(event.proxy_op.chunk_bytes);
  }
#if VERSION >= 3
  if (event.type == kNetPlugin) {
    char kind[32];
    std::snprintf(kind, sizeof(kind), " of kind %llx",
                  static_cast<unsigned long long>(event.net_plugin.id));
    return kind;
  }
#endif
  return "";
}

ncclResult_t Begin(void** context, int* mask) {
  const std::string wish = Wish();
  if (wish == "init") return ncclSystemError;
  constexpr int kEverything = 0x7fff;
  const int wanted = std::atoi(wish.c_str());
  __atomic_store_n(mask, wanted > 0 ? wanted : kEverything, __ATOMIC_RELAXED);
  *context = new Context;
  return ncclSuccess;
}

#if VERSION >= 5
ncclResult_t Init(void** context, uint64_t, int* mask, const char* name, int hosts, int ranks,
                  int rank, tutti::PluginLogFunction) {
  Expect(name != nullptr && hosts <= ranks && rank < ranks, "what init is told");
  return Begin(context, mask);
}
#elif VERSION == 4
ncclResult_t Init(void** context, int* mask, const char* name, uint64_t, int hosts, int ranks,
                  int rank, tutti::PluginLogFunction) {
  Expect(name != nullptr && hosts <= ranks && rank < ranks, "what init is told");
  return Begin(context, mask);
}
#else
ncclResult_t Init(void** context, int* mask) { return Begin(context, mask); }
#endif

ncclResult_t Start(void* context, void** handle, Its* event) {
  if (Wish() == "start") return ncclInternalError;
  const auto* const parent = static_cast<const Told*>(event->parent);
  Expect(parent == nullptr || parent->alive == kAlive, "the parent is an event that has not ended");
  auto* const told = new Told{kAlive, static_cast<Context*>(context), event->type};
  told->context->open.fetch_add(1);
  Add(std::string("start ") + NameOf(event->type) +
      (parent != nullptr ? std::string(" in ") + NameOf(parent->type) : "") + Details(*event));
  *handle = told;
  return ncclSuccess;
}

ncclResult_t Stop(void* handle) {
  auto* const told = static_cast<Told*>(handle);
  Expect(told->alive == kAlive, "an event ends once");
  Add(std::string("stop ") + NameOf(told->type));
  told->context->open.fetch_sub(1);
  told->alive = 0;
  delete told;
  return ncclSuccess;
}

ncclResult_t Record(void* handle, int state, [[maybe_unused]] StateArgs* args) {
  const auto* const told = static_cast<Told*>(handle);
  Expect(told->alive == kAlive, "the event has not ended");
  Expect((state == kNetPluginUpdate) == (told->type == kNetPlugin), "the state is of the event");
  // The network that is an example, too, has the number of its bytes there.
  if (state == kNetPluginUpdate)
    Add("update NetPlugin " + std::to_string(*static_cast<uint64_t*>(args->data)));
  return ncclSuccess;
}

ncclResult_t Finalize(void* context) {
  auto* const own = static_cast<Context*>(context);
  Expect(own->open.load() == 0, "every event has ended");
  Add("finalize");
  delete own;
  return ncclSuccess;
}

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))
#define TABLE(version) \
  EXPORT Table##version ncclProfiler_v##version = {"Example", Init, {Start, Stop, Record, Finalize}}
#if VERSION == 7
TABLE(7);
#elif VERSION == 6
TABLE(6);
#elif VERSION == 5
TABLE(5);
#elif VERSION == 4
TABLE(4);
#elif VERSION == 3
TABLE(3);
#elif VERSION == 2
TABLE(2);
#else
TABLE(1);
#endif

// For the tests: what the plugin was told since the last call.
EXPORT const char* exampleLog() {
  const std::lock_guard<std::mutex> lock(mutex);
  shown.swap(text);
  text.clear();
  return shown.c_str();
}

}  // extern "C"
