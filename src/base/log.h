#pragma once

// The log: a line per event on stderr or in NCCL_DEBUG_FILE, in NCCL's manner.
//
//   host:pid:tid [rank] tutti INFO <text>
//
// Levels and subsystems follow NCCL_DEBUG and NCCL_DEBUG_SUBSYS. A macro evaluates its arguments
// only when the line will be written, so a disabled line costs a relaxed load. Any thread may log.

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kTrace = 4 };

// Bits of NCCL_DEBUG_SUBSYS.
enum LogSubsystem : uint32_t {
  kLogInit = 1u << 0,
  kLogColl = 1u << 1,
  kLogP2p = 1u << 2,
  kLogShm = 1u << 3,
  kLogNet = 1u << 4,
  kLogGraph = 1u << 5,
  kLogTuning = 1u << 6,
  kLogEnv = 1u << 7,
  kLogAlloc = 1u << 8,
  kLogProxy = 1u << 9,
  kLogBootstrap = 1u << 10,
  kLogReg = 1u << 11,
  kLogProfile = 1u << 12,
  kLogRas = 1u << 13,
  kLogAll = ~0u,
};

// Returns the host's name without its domain.
std::string HostName();

namespace log {
// Returns whether a line of this level and subsystem is to be written. Reads the settings on first
// use.
bool Enabled(LogLevel level, uint32_t subsystems);
void Write(LogLevel level, std::string_view text);
// Returns the rank in this thread's lines; -1: none.
void SetThreadRank(int rank);

// Marks this thread's lines with `rank`, for the life of this object. Does not nest.
class ThreadRankMark {
 public:
  explicit ThreadRankMark(int rank) { SetThreadRank(rank); }
  ThreadRankMark(const ThreadRankMark&) = delete;
  ~ThreadRankMark() { SetThreadRank(-1); }
};
}  // namespace log

#define TUTTI_LOG(level, subsystems, ...)                          \
  do {                                                             \
    if (::tutti::log::Enabled((level), (subsystems))) [[unlikely]] \
      ::tutti::log::Write((level), ::fmt::format(__VA_ARGS__));    \
  } while (0)
#define TUTTI_WARN(...) TUTTI_LOG(::tutti::LogLevel::kWarn, ::tutti::kLogAll, __VA_ARGS__)
#define TUTTI_INFO(subsystems, ...) TUTTI_LOG(::tutti::LogLevel::kInfo, (subsystems), __VA_ARGS__)
#define TUTTI_TRACE(subsystems, ...) TUTTI_LOG(::tutti::LogLevel::kTrace, (subsystems), __VA_ARGS__)

}  // namespace tutti
