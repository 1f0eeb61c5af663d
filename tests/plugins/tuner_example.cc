// A tuner plugin of NCCL's kind: an example to start from, and the plugin that the tests run. It is
// written once for all versions of the interface from 2 to 7 (operations/tuner/abi.h has their
// differences); -DVERSION=n chooses which one it exports.
//
// EXAMPLE_TUNER says what it wants: "tree-ll", "ring-simple", …: that algorithm and protocol;
// "none": nothing at all; "fail": getCollInfo fails; "init": init fails; "keep", or not set: the
// choice as it is. EXAMPLE_TUNER_CHANNELS is the number of channels that it asks for, and
// EXAMPLE_TUNER_CHUNK the length of steps.

#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "operations/tuner/abi.h"

#ifndef VERSION
#define VERSION 7
#endif

namespace {

using namespace tutti::tunerplugin;

int open_contexts = 0;
int calls = 0;
int last_registered = -1;
int last_channels = -1;

std::string Wish() {
  const char* const wish = std::getenv("EXAMPLE_TUNER");
  return wish != nullptr ? wish : "keep";
}

int WantedAlgorithm(const std::string& wish) {
  return wish.starts_with("tree") ? kTree : wish.starts_with("ring") ? kRing : -1;
}
int WantedProtocol(const std::string& wish) { return wish.ends_with("-ll") ? kLL : kSimple; }
void WishForChannels(int* channels) {
  if (const char* const wish = std::getenv("EXAMPLE_TUNER_CHANNELS")) *channels = std::atoi(wish);
}

ncclResult_t Begin(void** context, size_t ranks, size_t hosts) {
  if (ranks < hosts || hosts == 0) return ncclInvalidArgument;
  if (Wish() == "init") return ncclSystemError;
  *context = new int(0);
  ++open_contexts;
  return ncclSuccess;
}

[[maybe_unused]] ncclResult_t BeginOld(size_t ranks, size_t hosts, tutti::PluginLogFunction,
                                       void** context) {
  return Begin(context, ranks, hosts);
}
template <class ItsConstants>
ncclResult_t BeginNew(void** context, uint64_t, size_t ranks, size_t hosts,
                      tutti::PluginLogFunction, NvlDomains* domains, ItsConstants* constants) {
  // Both may be written to.
  *domains = {1, static_cast<int>(ranks), static_cast<int>(ranks)};
  std::memset(constants, 0, sizeof(*constants));
  return Begin(context, ranks, hosts);
}

// Changes the table of times: 0 for what is wanted, nothing for all where nothing is.
ncclResult_t Change(float** given, int algorithms, int protocols, int* channels) {
  ++calls;
  WishForChannels(channels);
  const std::string wish = Wish();
  if (wish == "fail") return ncclInternalError;
  if (algorithms != kAlgorithms || protocols != kProtocols) return ncclInvalidArgument;
  auto& times = *reinterpret_cast<Times*>(given);
  if (wish == "none") {
    for (auto& row : times) {
      for (float& time : row) time = kIgnore;
    }
    return ncclSuccess;
  }
  const int algorithm = WantedAlgorithm(wish);
  if (algorithm < 0) return ncclSuccess;
  float& time = times[algorithm][WantedProtocol(wish)];
  if (time != kIgnore) time = 0;
  return ncclSuccess;
}

[[maybe_unused]] ncclResult_t Ask2(void*, int, size_t, int, int, int, int* algorithm, int* protocol,
                                   int* channels) {
  ++calls;
  WishForChannels(channels);
  const std::string wish = Wish();
  if (wish == "fail") return ncclInternalError;
  if (WantedAlgorithm(wish) < 0) return ncclSuccess;
  *algorithm = WantedAlgorithm(wish);
  *protocol = WantedProtocol(wish);
  return ncclSuccess;
}
[[maybe_unused]] ncclResult_t Ask3(void*, int, size_t, int, float** times, int algorithms,
                                   int protocols, int* channels) {
  return Change(times, algorithms, protocols, channels);
}
[[maybe_unused]] ncclResult_t Ask(void*, int, size_t, int, float** times, int algorithms,
                                  int protocols, int registered, int* channels) {
  last_registered = registered;
  return Change(times, algorithms, protocols, channels);
}

ncclResult_t Finish(void* context) {
  delete static_cast<int*>(context);
  --open_contexts;
  return ncclSuccess;
}

[[maybe_unused]] ncclResult_t Chunk(void*, int, size_t, int, int, int channels, size_t* bytes) {
  last_channels = channels;
  if (const char* const wish = std::getenv("EXAMPLE_TUNER_CHUNK"))
    *bytes = std::strtoull(wish, nullptr, 10);
  return ncclSuccess;
}

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))
#if VERSION == 2
EXPORT Table2 ncclTunerPlugin_v2 = {"Example", BeginOld, Ask2, Finish};
#elif VERSION == 3
EXPORT Table3 ncclTunerPlugin_v3 = {"Example", BeginOld, Ask3, Finish};
#elif VERSION == 4
EXPORT Table4 ncclTunerPlugin_v4 = {"Example", BeginOld, Ask, Finish};
#elif VERSION == 5
EXPORT Table5 ncclTunerPlugin_v5 = {"Example", BeginNew<Constants5>, Ask, Finish};
#elif VERSION == 6
EXPORT Table6 ncclTunerPlugin_v6 = {{"Example", BeginNew<Constants5>, Ask, Finish}, Chunk};
#else
EXPORT Table7 ncclTunerPlugin_v7 = {{"Example", BeginNew<Constants7>, Ask, Finish}, Chunk};
#endif

// For the tests: how many contexts are open, how often it was asked, and what it was told last.
EXPORT int exampleOpenContexts() { return open_contexts; }
EXPORT int exampleCalls() { return calls; }
EXPORT int exampleLastRegistered() { return last_registered; }
EXPORT int exampleLastChannels() { return last_channels; }

}  // extern "C"
