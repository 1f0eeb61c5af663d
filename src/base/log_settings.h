#pragma once

// Reads NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE. Apart from the writing of lines: tests
// see pure functions of values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace tutti {

// The subsystems whose lines are written when NCCL_DEBUG_SUBSYS is not set.
inline constexpr uint32_t kDefaultLogSubsystems = kLogInit | kLogBootstrap | kLogEnv;

struct LogSettings {
  // A user who set nothing must still see warnings, so the level without NCCL_DEBUG is WARN.
  LogLevel level = LogLevel::kWarn;
  uint32_t subsystems = kDefaultLogSubsystems;
  // The file for the lines, with %h and %p replaced; empty: stderr.
  std::string file;
  // Sentences about texts that could not be understood, to be logged once the log works.
  std::vector<std::string> complaints;
};

// Reads the three texts; a null pointer or an empty text means "not set".
LogSettings ParseLogSettings(const char* debug, const char* subsystems, const char* file,
                             std::string_view host, int pid);

// Reads the three texts with the names of this host and process.
LogSettings ParseLogSettings(const char* debug, const char* subsystems, const char* file);

// Returns a line of the log, newline included. With rank -1 the line names no rank.
std::string FormatLogLine(LogLevel level, std::string_view host, int pid, int tid, int rank,
                          std::string_view text);

namespace log {
// Replaces the settings from the environment, for example after a configuration file was read. Any
// thread; lines under way in other threads may still go to the old file, which therefore stays open
// for the process's life.
void Configure(const LogSettings& settings);
}  // namespace log

}  // namespace tutti
