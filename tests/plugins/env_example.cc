// An environment plugin of NCCL's kind: an example to start from, and the plugin that the tests
// run. It knows the variables of the environment, and those of EXAMPLE_ENV, NAME=VALUE with
// commas, which win; one without a value is hidden. -DVERSION=n chooses which version of the table
// it exports.
//
// EXAMPLE_ENV_FAIL=init makes it fail.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "config/env_plugin.h"

namespace {

// Returns what EXAMPLE_ENV says; no value: the variable is hidden. A text stays where it is while
// the library runs, as plugins promise.
std::map<std::string, std::optional<std::string>>& Known() {
  static std::map<std::string, std::optional<std::string>> known;
  return known;
}

void Read(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = one.find('=');
    if (equals == std::string::npos) continue;
    std::optional<std::string>& value = Known()[one.substr(0, equals)];
    value = one.substr(equals + 1);
    if (value->empty()) value.reset();
  }
}

ncclResult_t Begin() {
  const char* const fail = std::getenv("EXAMPLE_ENV_FAIL");
  if (fail != nullptr && std::strcmp(fail, "init") == 0) return ncclSystemError;
  const char* const text = std::getenv("EXAMPLE_ENV");
  Read(text != nullptr ? text : "");
  return ncclSuccess;
}

#if defined(VERSION) && VERSION == 1
ncclResult_t Init(uint8_t, uint8_t, uint8_t, const char*) { return Begin(); }
#else
ncclResult_t Init(uint8_t major, uint8_t minor, uint8_t, const char*,
                  tutti::PluginLogFunction log) {
  constexpr int kInfo = 3;
  constexpr unsigned long kEnv = 0x80;
  log(kInfo, kEnv, __FILE__, __LINE__, "the example plugin serves NCCL %d.%d", major, minor);
  return Begin();
}
#endif

ncclResult_t Finalize() {
  Known().clear();
  const char* const tell = std::getenv("EXAMPLE_ENV_TELL");
  if (tell != nullptr) std::fputs("the example environment plugin was finalized\n", stderr);
  return ncclSuccess;
}

const char* Get(const char* name) {
  const auto known = Known().find(name);
  if (known == Known().end()) return std::getenv(name);
  return known->second ? known->second->c_str() : nullptr;
}

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))
#if defined(VERSION) && VERSION == 1
EXPORT tutti::envplugin::TableV1 ncclEnvPlugin_v1 = {"Example", Init, Finalize, Get};
#else
EXPORT tutti::envplugin::TableV2 ncclEnvPlugin_v2 = {"Example", Init, Finalize, Get};
#endif

}  // extern "C"
