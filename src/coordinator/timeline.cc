#include "coordinator/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "sys/host.h"

namespace tutti::coordinator {
namespace {

// The bytes of events that are written at once.
constexpr size_t kFlushBytes = 3072;
// Rows of tensors whose names never come again must not pile up.
constexpr size_t kMaxRows = 65536;

int64_t SystemNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Nanoseconds as microseconds with their fraction.
std::string Microseconds(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns / 1000), std::abs(ns % 1000));
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      // Names may be any bytes, JSON may not.
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

WallClock WallClock::OfSystem() { return {SystemNs, ""}; }

Timeline::Timeline(int rank, WallClock clock, std::function<void()> flush_later)
    : rank_(rank),
      clock_(std::move(clock)),
      flush_later_(std::move(flush_later)),
      page_bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {}

Status Timeline::Open(const std::string& path, bool mark_rounds) {
  const MutexLock lock(mutex_);
  if (is_open()) return InvalidUsage("a timeline is being written already");
  UniqueFd fd = OpenToWrite(path, O_RDWR | O_TRUNC);
  if (!fd.valid()) {
    return InvalidArgument("the timeline {} cannot be written: {}", path, strerrordesc_np(errno));
  }
  if (pwrite(fd.get(), "[\n]\n", 4, 0) != 4) {
    return ErrnoError(errno, fmt::format("writing the timeline {}", path));
  }
  fd_ = std::move(fd);
  mark_rounds_ = mark_rounds;
  rows_.clear();
  num_rows_ = 0;
  last_row_ = 0;
  end_ = 2;
  first_ = true;
  if (clock_.host.empty()) clock_.host = fmt::format("{:016x}", HostHash(""));
  const int64_t now_ns = Now();
  Emit(now_ns, 'M', 0, "process_name", fmt::format(R"(,"args":{{"name":"rank {}"}})", rank_));
  Emit(now_ns, 'M', 0, "process_sort_index", fmt::format(R"(,"args":{{"sort_index":{}}})", rank_));
  Emit(now_ns, 'M', 0, "thread_name", R"(,"args":{"name":"rounds"})");
  EmitClock(rank_ == 0 ? R"(,"to_rank0_us":0,"error_us":0)" : "");
  FlushLocked();
  open_ = true;
  return Status::Ok();
}

void Timeline::Close() {
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  FlushLocked();
  fd_ = UniqueFd();
  open_ = false;
}

void Timeline::Measured(const ClockDistance& distance) {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  EmitClock(fmt::format(R"(,"to_rank0_us":{},"error_us":{})", Microseconds(distance.to_rank0_ns),
                        Microseconds(distance.error_ns)));
  FlushLocked();
}

void Timeline::EmitClock(std::string_view distance) {
  Emit(Now(), 'M', 0, "clock",
       fmt::format(R"(,"args":{{"host":{}{}}})", Quoted(clock_.host), distance));
}

Timeline::Row& Timeline::RowOf(int set, const std::string& tensor) {
  if (num_rows_ >= kMaxRows) {
    rows_.clear();
    num_rows_ = 0;
  }
  const auto [found, added] = rows_[set].try_emplace(tensor);
  if (added) {
    ++num_rows_;
    found->second.number = ++last_row_;
    const std::string label = set == 0 ? tensor : fmt::format("{} (process set {})", tensor, set);
    Emit(Now(), 'M', found->second.number, "thread_name",
         fmt::format(R"(,"args":{{"name":{}}})", Quoted(label)));
  }
  return found->second;
}

void Timeline::Emit(int64_t now_ns, char phase, int row, std::string_view name,
                    std::string_view more) {
  fmt::format_to(std::back_inserter(buffer_),
                 R"({}{{"ph":"{}","pid":{},"tid":{},"ts":{}.{:03},"name":{}{}}})"
                 "\n",
                 first_ ? "" : ",", phase, rank_, row, now_ns / 1000, now_ns % 1000, Quoted(name),
                 more);
  first_ = false;
  if (buffer_.size() >= kFlushBytes) FlushLocked();
}

void Timeline::FlushSoon() {
  if (NowNs() - flushed_ns_ >= kFlushNs) return FlushLocked();
  if (flush_later_ && !std::exchange(flush_is_coming_, true)) flush_later_();
}

void Timeline::FlushLocked() {
  flushed_ns_ = NowNs();
  flush_is_coming_ = false;
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const size_t room = page_bytes_ - static_cast<size_t>(end_) % page_bytes_;
    // Lines that fit into this page with the bracket behind them.
    size_t size = rest.substr(0, room - 1).rfind('\n') + 1;
    if (size == 0) {
      size = rest.find('\n') + 1;
      // An event too long for a page is written all the same.
      if (size < page_bytes_) {
        if (!EnterNextPage(room)) break;
        continue;
      }
    }
    std::string lines(rest.substr(0, size));
    lines += size + 1 < room ? "]\n" : "]";
    if (!Write(lines, end_)) break;
    end_ += static_cast<int64_t>(size);
    rest.remove_prefix(size);
  }
  // A full disk ends the timeline, not the job; the file written before stays valid.
  if (!rest.empty()) {
    static_cast<void>(ftruncate(fd_.get(), end_) == 0 && Write("]\n", end_));
  }
  buffer_.clear();
}

bool Timeline::Write(std::string_view text, int64_t at) const {
  return pwrite(fd_.get(), text.data(), text.size(), at) == static_cast<ssize_t>(text.size());
}

// Moves the bracket to the first byte of the next page, `room` bytes ahead.
bool Timeline::EnterNextPage(size_t room) {
  std::string padding(room, ' ');
  padding.back() = ']';
  const int64_t next = end_ + static_cast<int64_t>(room);
  if (!Write(padding, end_) || !Write(" \n", next)) return false;
  end_ = next - 1;
  struct __attribute__((packed)) Straddling {
    uint16_t bytes;
  };
  Straddling moved;
  std::memcpy(&moved, " ]", sizeof(moved));
  void* const pages = mmap(nullptr, 2 * page_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(),
                           next - static_cast<int64_t>(page_bytes_));
  if (pages == MAP_FAILED) {  // such as on a file system without mappings
    if (!Write(" ]", end_)) return false;
  } else {
    auto* const boundary = static_cast<char*>(pages) + page_bytes_;
    // Brings both pages in, so that the store below faults in none of them.
    *static_cast<volatile char*>(boundary - 2) = *static_cast<volatile char*>(boundary - 2);
    *static_cast<volatile char*>(boundary) = ' ';
    reinterpret_cast<volatile Straddling*>(boundary - 1)->bytes = moved.bytes;
    munmap(pages, 2 * page_bytes_);
  }
  end_ = next;
  return true;
}

// `more` belongs to the innermost open activity.
void Timeline::CloseDownTo(int64_t now_ns, Row& row, int open, std::string_view more) {
  for (; row.open > open; --row.open) {
    Emit(now_ns, 'E', row.number, "", std::exchange(more, ""));
  }
}

void Timeline::Asked(int set, const std::string& tensor, OpKind kind) {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  Row& row = RowOf(set, tensor);
  const int64_t now_ns = Now();
  CloseDownTo(now_ns, row, 0);
  Emit(now_ns, 'B', row.number, fmt::format("NEGOTIATE_{}", UpperName(kind)));
  row.open = 1;
  FlushSoon();
}

void Timeline::Round(int set, uint64_t number, const RoundResult& result) {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  const int64_t now_ns = Now();
  const std::string round = fmt::format(R"(,"args":{{"round":{}}})", number);
  if (mark_rounds_) Emit(now_ns, 'i', 0, "CYCLE_START", R"(,"s":"t")" + round);
  for (const auto& [tensor, ranks] : result.newly_ready) {
    const auto row = rows_[set].find(tensor);
    if (row == rows_[set].end()) continue;
    Emit(now_ns, 'i', row->second.number, ranks.ToString(), R"(,"s":"t")");
  }
  for (const Response& response : result.responses) {
    if (!response.pending || !response.error.empty()) continue;
    Row& row = RowOf(set, response.agreement().name);
    CloseDownTo(now_ns, row, 0, round);
    Emit(now_ns, 'B', row.number, UpperName(response.agreement().request.kind));
    Emit(now_ns, 'B', row.number, "QUEUE");
    row.open = 2;
  }
  FlushSoon();
}

void Timeline::Begin(int set, const std::string& tensor, std::string_view activity) {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  Row& row = RowOf(set, tensor);
  const int64_t now_ns = Now();
  CloseDownTo(now_ns, row, 1);
  Emit(now_ns, 'B', row.number, activity);
  ++row.open;
  FlushSoon();
}

void Timeline::End(int set, const std::string& tensor) {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  CloseDownTo(Now(), RowOf(set, tensor), 0);
  FlushSoon();
}

void Timeline::Flush() {
  if (!is_open()) return;
  const MutexLock lock(mutex_);
  if (!is_open()) return;
  FlushLocked();
}

}  // namespace tutti::coordinator
