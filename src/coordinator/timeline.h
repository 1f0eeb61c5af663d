#pragma once

// The timeline of one rank: what became of every tensor and when, as Chrome-trace JSON that
// chrome://tracing and Perfetto open.
//
// One row (tid) a tensor of a process set, one process (pid) a rank, times in microseconds of this
// machine's wall clock. Per tensor: NEGOTIATE_<OP> from being asked for on this rank until it is
// known that all ranks have asked, whether or not the answer came from the response cache; then
// <OP> with the activities inside. The time in NEGOTIATE is what this rank waited for others, and
// the rank where it is shortest is the one that was waited for. Its end carries the number of the
// round, which is the same on all ranks, so that a merge knows which spans are of one agreement.
// Where requests were exchanged an instant names the ranks they came from; in a round of states
// alone nobody learns who was last, and the ranks' own files, merged, say it.
//
// Hosts' clocks differ. Times are written as this machine has them, never shifted: ranks of one
// machine stay exactly aligned, nothing waits for a measurement, and no time is ever corrected by
// an estimate that a better one follows. The metadata say instead how far the clock is from rank
// 0's and within what error (clock_meter.h), measured when the timeline is opened and from then on
// while it is, since clocks drift; whoever merges files shifts them (python/tutti/timeline.py).
// Event "clock", args: host (the same for ranks that have one clock), and where it is known
// to_rank0_us, what to add to times of this file, and error_us.
//
// The file is valid JSON at any moment, also when the process is killed: it always ends in the
// array's bracket, and events are added by one write over that bracket. The kernel looks for a
// deadly signal between the pages of a write, so that none goes beyond its page. What is left of a
// page that the next event does not fit into is filled with spaces, the bracket last; it then moves
// to the next page by a single store of two bytes, of which each lies in one of the pages (a
// mapping of both), and no signal comes in the midst of an instruction. Only events longer than a
// page, those with names of thousands of bytes, do without this.
//
// Any thread may call. Times of one tensor are those of the calls.

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

// Nanoseconds since 1970, and a name for whatever counts them.
struct WallClock {
  std::function<int64_t()> now_ns;
  std::string host;  // empty: this machine
  static WallClock OfSystem();
};

class Timeline {
 public:
  // Events wait so long for others, to be written together.
  static constexpr int64_t kFlushNs = 20'000'000;

  // A timeline that is not open: every call does nothing, at the cost of a load. `flush_later` is
  // called when events wait and none waited before; it has to see to it that Flush is called after
  // kFlushNs. It is called on whichever thread brought the event, and must not call the timeline.
  explicit Timeline(int rank, WallClock clock = WallClock::OfSystem(),
                    std::function<void()> flush_later = nullptr);
  ~Timeline() { Close(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Writes to a new file at `path`, over what was there. InvalidUsage while it is open.
  Status Open(const std::string& path, bool mark_rounds);
  void Close();
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void Measured(const ClockDistance& distance);

  // `set` is the number of the process set.
  void Asked(int set, const std::string& tensor, OpKind kind);
  // Notes the result of one round of negotiation: what all ranks have asked for is agreed on now,
  // and queued.
  void Round(int set, uint64_t number, const RoundResult& result);
  // Begins an activity inside the operation; the one before it ends.
  void Begin(int set, const std::string& tensor, std::string_view activity);
  void End(int set, const std::string& tensor);
  // Writes what there is.
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
