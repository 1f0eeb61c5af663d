#pragma once

// The timeline of one rank: what became of every tensor and when, as Chrome-trace JSON that
// chrome://tracing and Perfetto open.
//
// One row (tid) a tensor, one process (pid) a rank, times in microseconds of the wall clock, so
// that the files of all ranks, put into one array, are one picture. Per tensor: NEGOTIATE_<OP> from
// being asked for until all ranks have asked, with an instant when requests of ranks arrive; then
// <OP> with the activities inside.
//
// The file is valid JSON at any moment, also when the process is killed: it always ends in the
// array's bracket, and events are added by one write over that bracket.
//
// Any thread may call. Times of one tensor are those of the calls.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "base/unique_fd.h"
#include "coordinator/controller.h"

namespace tutti::coordinator {

class Timeline {
 public:
  // Not open: every call does nothing, at the cost of a load.
  explicit Timeline(int rank) : rank_(rank) {}
  ~Timeline() { Close(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Writes to a new file at `path`, over what was there. InvalidUsage while it is open.
  Status Open(const std::string& path, bool mark_rounds);
  void Close();
  bool is_open() const { return open_.load(std::memory_order_relaxed); }

  void Asked(const std::string& tensor, OpKind kind);
  // What one round of negotiation brought.
  void Round(const RoundResult& result);
  void Start(const std::string& tensor, OpKind kind);
  // Begins an activity inside the operation; the one before it ends.
  void Begin(const std::string& tensor, std::string_view activity);
  void End(const std::string& tensor);
  void Flush();

 private:
  struct Row {
    int number = 0;
    int open = 0;  // begun and not ended
  };
  Row& RowOf(const std::string& tensor);
  void Emit(char phase, int row, std::string_view name, std::string_view more = "");
  void CloseDownTo(Row& row, int open);
  void FlushLocked();

  const int rank_;
  std::atomic<bool> open_{false};
  std::mutex mutex_;
  UniqueFd fd_;
  bool mark_rounds_ = false;
  std::unordered_map<std::string, Row> rows_;
  std::string buffer_;
  int64_t end_ = 0;  // where the closing bracket stands
  bool first_ = true;
  int64_t flushed_ns_ = 0;
};

}  // namespace tutti::coordinator
