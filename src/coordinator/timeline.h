#pragma once

// The timeline of one rank: the history of every tensor as Chrome-trace JSON for chrome://tracing
// and Perfetto.
//
// A row (tid) stands for a tensor of a process set, a process (pid) for a rank; times are in
// microseconds of this machine's wall clock. Per tensor: NEGOTIATE_<OP> from the request on this
// rank until all ranks are known to have asked, whether or not the answer came from the response
// cache; then <OP> with the activities inside. In NEGOTIATE this rank waited for others; the others
// waited for the rank whose NEGOTIATE is shortest. The end of NEGOTIATE carries the number of the
// round, which is the same on all ranks, and by which a merge finds the spans of an agreement. In a
// round with requests an instant names the ranks that sent them. A round of states alone tells
// nobody which rank came last, but the merged files of the ranks do.
//
// Hosts' clocks differ. Times are written as this machine has them, never shifted: ranks of one
// machine stay exactly aligned, nothing waits for a measurement, and no time is ever corrected by
// an estimate that a better estimate follows. Instead the metadata tell the distance of the clock
// from rank 0's and the error of the distance (clock_meter.h). The distance is measured when the
// timeline is opened and repeatedly while the timeline is open, since clocks drift; a merge of
// files shifts their times (python/tutti/timeline.py). Event "clock", args: host (the same for
// ranks that share a clock), and for a known distance to_rank0_us, to be added to times of this
// file, and error_us.
//
// The file is valid JSON at any moment, even after the process is killed: the file always ends in
// the array's bracket, and events are added by one write over the bracket. The kernel looks for a
// deadly signal between the pages of a write, and therefore no write goes beyond its page. When the
// next event does not fit into a page, the rest of the page is filled with spaces, the bracket
// last. The bracket then moves to the next page by a single store of two bytes, one in each page (a
// mapping of both), and no signal comes in the midst of an instruction. Only events longer than a
// page, with names of thousands of bytes, do without this protection.
//
// Any thread may call. The times of a tensor are the times of the calls.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "coordinator/clock_meter.h"
#include "coordinator/controller.h"

namespace tutti::coordinator {

// Nanoseconds since 1970, and a name for the source of the time.
struct WallClock {
  std::function<int64_t()> now_ns;
  std::string host;  // empty: this machine
  static WallClock OfSystem();
};

class Timeline {
 public:
  // How long events wait for more events, to be written together.
  static constexpr int64_t kFlushNs = 20'000'000;

  // Makes a timeline that is not open: every call does nothing, at the cost of a load.
  // `flush_later` is called when events wait and none waited before, and must arrange a call of
  // Flush after kFlushNs. `flush_later` is called on the thread that brought the event, and must
  // not call the timeline.
  explicit Timeline(int rank, WallClock clock = WallClock::OfSystem(),
                    std::function<void()> flush_later = nullptr);
  ~Timeline() { Close(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Writes to a new file at `path`, over an older file. InvalidUsage while the timeline is open.
  Status Open(const std::string& path, bool mark_rounds);
  void Close();
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void Measured(const ClockDistance& distance);

  // `set` is the number of the process set.
  void Asked(int set, const std::string& tensor, OpKind kind);
  // Notes the result of one round of negotiation: tensors requested by all ranks are agreed on now,
  // and queued.
  void Round(int set, uint64_t number, const RoundResult& result);
  // Begins an activity inside the operation; the previous activity ends.
  void Begin(int set, const std::string& tensor, std::string_view activity);
  void End(int set, const std::string& tensor);
  // Writes the waiting events.
  void Flush();

 private:
  struct Row {
    int number = 0;
    int open = 0;  // begun and not ended
  };
  int64_t Now() const { return clock_.now_ns(); }
  Row& RowOf(int set, const std::string& tensor) TUTTI_REQUIRES(mutex_);
  void Emit(int64_t now_ns, char phase, int row, std::string_view name, std::string_view more = "")
      TUTTI_REQUIRES(mutex_);
  void EmitClock(std::string_view distance) TUTTI_REQUIRES(mutex_);
  void CloseDownTo(int64_t now_ns, Row& row, int open, std::string_view more = "")
      TUTTI_REQUIRES(mutex_);
  void FlushSoon() TUTTI_REQUIRES(mutex_);
  void FlushLocked() TUTTI_REQUIRES(mutex_);
  [[nodiscard]] bool Write(std::string_view text, int64_t at) const TUTTI_REQUIRES(mutex_);
  [[nodiscard]] bool EnterNextPage(size_t room) TUTTI_REQUIRES(mutex_);

  const int rank_;
  WallClock clock_;
  const std::function<void()> flush_later_;
  const size_t page_bytes_;
  std::atomic<bool> open_{false};
  Mutex mutex_;
  UniqueFd fd_ TUTTI_GUARDED_BY(mutex_);
  bool mark_rounds_ TUTTI_GUARDED_BY(mutex_) = false;
  std::map<int, std::unordered_map<std::string, Row>> rows_ TUTTI_GUARDED_BY(mutex_);
  size_t num_rows_ TUTTI_GUARDED_BY(mutex_) = 0;
  int last_row_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::string buffer_ TUTTI_GUARDED_BY(mutex_);
  int64_t end_ TUTTI_GUARDED_BY(mutex_) = 0;  // The closing bracket stands there.
  bool first_ TUTTI_GUARDED_BY(mutex_) = true;
  int64_t flushed_ns_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool flush_is_coming_ TUTTI_GUARDED_BY(mutex_) = false;  // flush_later_ was called
};

}  // namespace tutti::coordinator
