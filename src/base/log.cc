#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <string>

#include "base/file.h"
#include "base/log_settings.h"
#include "base/text.h"

namespace tutti {
namespace {

struct SubsystemName {
  const char* name;
  uint32_t bits;
};
constexpr std::array<SubsystemName, 16> kSubsystemNames = {{
    {"INIT", kLogInit},
    {"COLL", kLogColl},
    {"P2P", kLogP2p},
    {"SHM", kLogShm},
    {"NET", kLogNet},
    {"GRAPH", kLogGraph},
    {"TUNING", kLogTuning},
    {"ENV", kLogEnv},
    {"ALLOC", kLogAlloc},
    {"PROXY", kLogProxy},
    {"BOOTSTRAP", kLogBootstrap},
    {"REG", kLogReg},
    {"PROFILE", kLogProfile},
    {"RAS", kLogRas},
    // NCCL's name for collectives' calls; both are a single subsystem here.
    {"CALL", kLogColl},
    {"ALL", kLogAll},
}};

struct LevelName {
  const char* name;
  LogLevel level;
};
constexpr std::array<LevelName, 5> kLevelNames = {{
    {"NONE", LogLevel::kNone},
    {"VERSION", LogLevel::kVersion},
    {"WARN", LogLevel::kWarn},
    {"INFO", LogLevel::kInfo},
    {"TRACE", LogLevel::kTrace},
}};

bool IsSet(const char* text) { return text != nullptr && *text != '\0'; }

// Parses "A,B", the subsystems that speak, or "^A,B", the only silent subsystems.
uint32_t ParseSubsystems(std::string_view text, std::vector<std::string>& complaints) {
  const bool excluded = text.front() == '^';
  if (excluded) text.remove_prefix(1);
  uint32_t bits = 0;
  while (!text.empty()) {
    const std::string_view word = NextItem(text, ',');
    if (word.empty()) continue;
    bool known = false;
    for (const SubsystemName& entry : kSubsystemNames) {
      if (!EqualIgnoringCase(entry.name, word)) continue;
      bits |= entry.bits;
      known = true;
    }
    if (!known) {
      complaints.push_back(fmt::format(
          "NCCL_DEBUG_SUBSYS names \"{}\", which is no subsystem of the log; it is ignored", word));
    }
  }
  return excluded ? ~bits : bits;
}

// Replaces %h by the host, %p by the process and %% by a percent sign, as NCCL does.
std::string ExpandFileName(std::string_view pattern, std::string_view host, int pid) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      name += pattern[i];
      continue;
    }
    switch (const char letter = pattern[++i]) {
      case 'h':
        name += host;
        break;
      case 'p':
        name += std::to_string(pid);
        break;
      case '%':
        name += '%';
        break;
      default:
        name += '%';
        name += letter;
    }
  }
  return name;
}

const char* LevelText(LogLevel level) {
  for (const LevelName& entry : kLevelNames) {
    if (entry.level == level) return entry.name;
  }
  return "?";
}

// The log of the process. The log has no destructor on purpose: threads may log while the process
// exits.
struct Log {
  Log() {
    HostName().copy(host.data(), host.size() - 1);
    Apply(ParseLogSettings(std::getenv("NCCL_DEBUG"), std::getenv("NCCL_DEBUG_SUBSYS"),
                           std::getenv("NCCL_DEBUG_FILE")));
  }

  void Apply(const LogSettings& settings) {
    int new_fd = STDERR_FILENO;
    int open_error = 0;
    if (!settings.file.empty()) {
      new_fd = OpenToWrite(settings.file, O_WRONLY | O_APPEND).Release();
      open_error = new_fd < 0 ? errno : 0;
      if (new_fd < 0) new_fd = STDERR_FILENO;
    }
    fd.store(new_fd, std::memory_order_relaxed);
    filter.store(uint64_t{static_cast<uint32_t>(settings.level)} << 32 | settings.subsystems,
                 std::memory_order_relaxed);
    if (!Passes(LogLevel::kWarn, kLogAll)) return;
    if (open_error != 0) {
      Line(LogLevel::kWarn, fmt::format("the log file {} (NCCL_DEBUG_FILE) cannot be opened: {}; "
                                        "lines go to the standard error stream",
                                        settings.file, strerrordesc_np(open_error)));
    }
    for (const std::string& complaint : settings.complaints) Line(LogLevel::kWarn, complaint);
  }

  // Warnings are for everyone; subsystems choose among the lines below them.
  bool Passes(LogLevel level, uint32_t subsystems) const {
    const uint64_t now = filter.load(std::memory_order_relaxed);
    if (static_cast<uint64_t>(level) > now >> 32) return false;
    return level <= LogLevel::kWarn || (static_cast<uint32_t>(now) & subsystems) != 0;
  }

  void Line(LogLevel level, std::string_view text) const {
    // A line is a single write(2): lines of many threads and processes in the same file do not mix.
    // A log without room has nowhere to say so.
    static_cast<void>(
        WriteAll(fd.load(std::memory_order_relaxed),
                 FormatLogLine(level, host.data(), getpid(), gettid(), ThreadRank(), text)));
  }

  static int& ThreadRank() {
    thread_local int rank = -1;
    return rank;
  }

  std::array<char, 256> host{};
  std::atomic<int> fd{STDERR_FILENO};
  // The level above bit 32, the subsystems below: both are read in a single load.
  std::atomic<uint64_t> filter{0};
};

Log& TheLog() {
  static Log log;
  return log;
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  const std::string host(name.data());
  return host.substr(0, host.find('.'));
}

LogSettings ParseLogSettings(const char* debug, const char* subsystems, const char* file,
                             std::string_view host, int pid) {
  LogSettings settings;
  if (IsSet(debug)) {
    bool known = false;
    for (const LevelName& entry : kLevelNames) {
      if (!EqualIgnoringCase(entry.name, debug)) continue;
      settings.level = entry.level;
      known = true;
    }
    if (!known) {
      settings.complaints.push_back(fmt::format(
          "NCCL_DEBUG is \"{}\", but must be NONE, VERSION, WARN, INFO or TRACE; WARN is used",
          debug));
    }
  }
  if (IsSet(subsystems)) {
    settings.subsystems = ParseSubsystems(subsystems, settings.complaints);
  }
  if (IsSet(file)) settings.file = ExpandFileName(file, host, pid);
  return settings;
}

LogSettings ParseLogSettings(const char* debug, const char* subsystems, const char* file) {
  return ParseLogSettings(debug, subsystems, file, HostName(), getpid());
}

std::string FormatLogLine(LogLevel level, std::string_view host, int pid, int tid, int rank,
                          std::string_view text) {
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line), "{}:{}:{} ", host, pid, tid);
  if (rank >= 0) fmt::format_to(std::back_inserter(line), "[{}] ", rank);
  fmt::format_to(std::back_inserter(line), "tutti {} {}\n", LevelText(level), text);
  return fmt::to_string(line);
}

namespace log {

bool Enabled(LogLevel level, uint32_t subsystems) { return TheLog().Passes(level, subsystems); }

void Write(LogLevel level, std::string_view text) { TheLog().Line(level, text); }

void SetThreadRank(int rank) { Log::ThreadRank() = rank; }

void Configure(const LogSettings& settings) { TheLog().Apply(settings); }

}  // namespace log
}  // namespace tutti
