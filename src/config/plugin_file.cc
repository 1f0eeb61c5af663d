#include "config/plugin_file.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <map>

#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"

namespace tutti {
namespace {

constexpr std::string_view kProgramItself = "STATIC_PLUGIN";

// Levels of NCCL's log, as plugins use them.
constexpr int kPluginLogWarn = 2;
constexpr int kPluginLogInfo = 3;

// NCCL's bits for subsystems above the ninth are no bits of this library.
struct SubsystemPair {
  unsigned long theirs;
  uint32_t ours;
};
constexpr unsigned long kSameBits = 0x1ff;
constexpr SubsystemPair kSubsystems[] = {
    {0x400, kLogProxy},    {0x1000, kLogBootstrap}, {0x2000, kLogReg},
    {0x4000, kLogProfile}, {0x8000, kLogRas},
};

uint32_t SubsystemsOf(unsigned long theirs) {
  auto ours = static_cast<uint32_t>(theirs & kSameBits);
  for (const SubsystemPair& pair : kSubsystems) {
    if ((theirs & pair.theirs) != 0) ours |= pair.ours;
  }
  return ours;
}

// The text is formatted into a fixed buffer: a plugin's line is cut and not allocated.
void LogOfPlugin(int level, unsigned long subsystems, const char* file, int line,
                 const char* format, ...) {
  const LogLevel ours = level <= kPluginLogWarn   ? LogLevel::kWarn
                        : level == kPluginLogInfo ? LogLevel::kInfo
                                                  : LogLevel::kTrace;
  if (format == nullptr || !log::Enabled(ours, SubsystemsOf(subsystems))) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  log::Write(ours, fmt::format("{}:{} {}", file != nullptr ? file : "?", line, text));
}

bool IsFile(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".so");
}

std::string FileFor(const PluginKind& kind, const std::string& name) {
  if (name.empty()) return fmt::format("{}.so", kind.prefix);
  return IsFile(name) ? name : fmt::format("{}-{}.so", kind.prefix, name);
}

// The outcome of a search for a file: a library, or the reason why none was found.
struct Outcome {
  void* library = nullptr;
  std::string reason;
};

// A failed search is remembered as well, because every communicator would repeat the search.
Outcome Look(const char* file) {
  struct Known {
    Mutex mutex;
    std::map<std::string, Outcome> by_file TUTTI_GUARDED_BY(mutex);
  };
  static Known& known = *new Known;  // never destroyed: threads may outlive main
  const MutexLock lock(known.mutex);
  const auto [place, is_new] = known.by_file.try_emplace(file != nullptr ? file : "");
  Outcome& outcome = place->second;
  if (!is_new) return outcome;
  outcome.library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const char* const reason = outcome.library == nullptr ? dlerror() : nullptr;
  if (reason != nullptr) outcome.reason = reason;
  return outcome;
}

}  // namespace

std::vector<std::string> PluginNames(std::string_view setting) {
  if (setting.empty()) return {""};
  if (EqualIgnoringCase(setting, "none")) return {};
  std::vector<std::string> names;
  while (!setting.empty()) {
    const std::string_view one = NextItem(setting, ',');
    if (!one.empty()) names.emplace_back(one);
  }
  return names;
}

Result<PluginFile> PluginFile::Open(const PluginKind& kind, const std::string& name) {
  const bool is_program = EqualIgnoringCase(name, kProgramItself);
  const std::string file = is_program ? "of the program itself" : FileFor(kind, name);
  const Outcome found = Look(is_program ? nullptr : file.c_str());
  if (found.library != nullptr) return PluginFile(file, found.library);
  return InvalidUsage("the {} {} cannot be loaded: {}", kind.what, file, found.reason);
}

const void* PluginFile::Find(const std::string& symbol) const {
  return dlsym(library_, symbol.c_str());
}

PluginLogFunction LogForPlugins() { return LogOfPlugin; }

}  // namespace tutti
