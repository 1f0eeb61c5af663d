#include "transport/net/socket/paths.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {
namespace {

// How often the time between two tries doubles at most.
constexpr int kMostDoublings = 5;

}  // namespace

// Without data sockets there is one socket, which only one path can carry.
SocketPaths::SocketPaths(PathAddresses addresses, size_t data_sockets, const Times& times)
    : together_(std::clamp<size_t>(addresses.together, 1, std::max<size_t>(data_sockets, 1))),
      data_sockets_(data_sockets),
      times_(times) {
  for (const SocketAddress& address : addresses.all) {
    paths_.emplace_back();
    paths_.back().address = address;
  }
  together_ = std::min(together_, paths_.size());
}

// The control socket goes by the first usable path, and the data sockets by all usable paths in
// turn. Spares are used when none of the first paths is usable.
std::vector<size_t> SocketPaths::Spread(std::optional<size_t> trial) const {
  std::vector<size_t> used;
  const auto add = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      if (!paths_[i].lost || trial == i) used.push_back(i);
    }
  };
  add(0, together_);
  if (used.empty()) add(together_, paths_.size());
  std::vector<size_t> spread = {used.front()};
  for (size_t i = 0; i < data_sockets_; ++i) spread.push_back(used[i % used.size()]);
  return spread;
}

void SocketPaths::NoteTry(size_t path, int64_t now_ns) {
  if (paths_[path].tried_since_ns == 0) paths_[path].tried_since_ns = now_ns;
}

void SocketPaths::NoteReached(size_t path) {
  paths_[path].tried_since_ns = 0;
  paths_[path].was_reached = true;
}

void SocketPaths::BeginTries() {
  for (Path& path : paths_) path.tried_since_ns = 0;
}

// The only path is never hopeless, since there is no better path.
bool SocketPaths::IsHopeless(size_t path, int64_t now_ns) const {
  const int64_t since_ns = paths_[path].tried_since_ns;
  return paths_.size() > 1 && since_ns != 0 && now_ns - since_ns > times_.patience_ns;
}

// The only path is never given up. When the last good path is given up, all others count as good
// again.
void SocketPaths::GiveUp(size_t path, int64_t now_ns) {
  if (paths_.size() == 1 || paths_[path].lost) return;
  Path& lost = paths_[path];
  lost.lost = true;
  lost.tried_since_ns = 0;
  lost.retry_ns = now_ns + RetryAfterNs(lost);
  ++lost.times_lost;
  if (!std::all_of(paths_.begin(), paths_.end(), [](const Path& each) { return each.lost; })) {
    return;
  }
  for (size_t i = 0; i < paths_.size(); ++i) paths_[i].lost = i == path;
}

int64_t SocketPaths::RetryAfterNs(const Path& path) const {
  return times_.retry_ns << std::min(path.times_lost, kMostDoublings);
}

// Lost spares are not tried: a spare carries nothing while a first path works.
std::optional<size_t> SocketPaths::Due(int64_t now_ns) const {
  for (size_t i = 0; i < together_; ++i) {
    if (paths_[i].lost && now_ns >= paths_[i].retry_ns) return i;
  }
  return std::nullopt;
}

bool SocketPaths::AnyToRetry() const {
  return std::any_of(paths_.begin(), paths_.begin() + static_cast<ptrdiff_t>(together_),
                     [](const Path& path) { return path.lost; });
}

// Handles a failed trial. The time is not doubled, because no operation waited for the trial.
void SocketPaths::Postpone(size_t path, int64_t now_ns) {
  paths_[path].retry_ns = now_ns + times_.retry_ns;
}

std::string SocketPaths::TakeNotice() {
  std::string lost;
  std::string back;
  for (Path& path : paths_) {
    if (path.lost == path.told_lost) continue;
    path.told_lost = path.lost;
    std::string& list = path.lost ? lost : back;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", path.address.HostText());
  }
  std::string notice;
  if (!lost.empty()) notice = fmt::format("goes on without {}, which does not answer", lost);
  if (!back.empty()) {
    notice += fmt::format("{}goes by {} again", notice.empty() ? "" : ", and ", back);
  }
  return notice;
}

}  // namespace tutti
