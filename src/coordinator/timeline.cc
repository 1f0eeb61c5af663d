#include "coordinator/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace tutti::coordinator {
namespace {

// One write of less than a page; and no event is older than this when it is written, as long as
// others follow.
constexpr size_t kFlushBytes = 3072;
constexpr int64_t kFlushNs = 100'000'000;
// Rows of tensors whose names never come again must not pile up.
constexpr size_t kMaxRows = 65536;

double WallMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
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

Status Timeline::Open(const std::string& path, bool mark_rounds) {
  const std::lock_guard lock(mutex_);
  if (is_open()) return InvalidUsage("a timeline is being written already");
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) {
    return InvalidArgument("the timeline {} cannot be written: {}", path, strerrordesc_np(errno));
  }
  if (pwrite(fd.get(), "[\n]\n", 4, 0) != 4) {
    return ErrnoError(errno, fmt::format("writing the timeline {}", path));
  }
  fd_ = std::move(fd);
  mark_rounds_ = mark_rounds;
  rows_.clear();
  end_ = 2;
  first_ = true;
  Emit('M', 0, "process_name", fmt::format(",\"args\":{{\"name\":\"rank {}\"}}", rank_));
  Emit('M', 0, "process_sort_index", fmt::format(",\"args\":{{\"sort_index\":{}}}", rank_));
  Emit('M', 0, "thread_name", ",\"args\":{\"name\":\"rounds\"}");
  FlushLocked();
  open_ = true;
  return Status::Ok();
}

void Timeline::Close() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  FlushLocked();
  fd_ = UniqueFd();
  open_ = false;
}

Timeline::Row& Timeline::RowOf(const std::string& tensor) {
  if (rows_.size() >= kMaxRows) rows_.clear();
  const auto [found, added] = rows_.try_emplace(tensor);
  if (added) {
    found->second.number = static_cast<int>(rows_.size());
    Emit('M', found->second.number, "thread_name",
         fmt::format(",\"args\":{{\"name\":{}}}", Quoted(tensor)));
  }
  return found->second;
}

void Timeline::Emit(char phase, int row, std::string_view name, std::string_view more) {
  buffer_ +=
      fmt::format("{}{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"name\":{}{}}}\n",
                  first_ ? "" : ",", phase, rank_, row, WallMicroseconds(), Quoted(name), more);
  first_ = false;
  if (buffer_.size() >= kFlushBytes || NowNs() - flushed_ns_ >= kFlushNs) FlushLocked();
}

void Timeline::FlushLocked() {
  flushed_ns_ = NowNs();
  if (buffer_.empty()) return;
  const size_t size = buffer_.size();
  buffer_ += "]\n";
  // A full disk ends the timeline, not the job; what was written before stays valid.
  if (pwrite(fd_.get(), buffer_.data(), buffer_.size(), end_) ==
      static_cast<ssize_t>(buffer_.size())) {
    end_ += static_cast<int64_t>(size);
  } else {
    static_cast<void>(ftruncate(fd_.get(), end_) == 0 && pwrite(fd_.get(), "]\n", 2, end_) == 2);
  }
  buffer_.clear();
}

void Timeline::CloseDownTo(Row& row, int open) {
  for (; row.open > open; --row.open) Emit('E', row.number, "");
}

void Timeline::Asked(const std::string& tensor, OpKind kind) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  Row& row = RowOf(tensor);
  Emit('B', row.number, fmt::format("NEGOTIATE_{}", UpperName(kind)));
  row.open = 1;
}

void Timeline::Round(const RoundResult& result) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  if (mark_rounds_) Emit('i', 0, "ROUND", ",\"s\":\"t\"");
  for (const auto& [tensor, ranks] : result.newly_ready) {
    const auto row = rows_.find(tensor);
    if (row == rows_.end()) continue;
    Emit('i', row->second.number, ranks.ToString(), ",\"s\":\"t\"");
  }
}

void Timeline::Start(const std::string& tensor, OpKind kind) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  Row& row = RowOf(tensor);
  CloseDownTo(row, 0);
  Emit('B', row.number, UpperName(kind));
  Emit('B', row.number, "QUEUE");
  row.open = 2;
}

void Timeline::Begin(const std::string& tensor, std::string_view activity) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  Row& row = RowOf(tensor);
  CloseDownTo(row, 1);
  Emit('B', row.number, activity);
  ++row.open;
}

void Timeline::End(const std::string& tensor) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  CloseDownTo(RowOf(tensor), 0);
}

void Timeline::Flush() {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  FlushLocked();
}

}  // namespace tutti::coordinator
