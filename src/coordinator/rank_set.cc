#include "coordinator/rank_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::coordinator {

void RankSet::AddInterval(int begin, int end) {
  // The first interval that touches [begin, end), and the next interval that does not.
  auto first = std::lower_bound(intervals_.begin(), intervals_.end(), begin,
                                [](const auto& interval, int b) { return interval.second < b; });
  auto last = first;
  for (; last != intervals_.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  if (first == last) {
    intervals_.insert(first, {begin, end});
    return;
  }
  *first = {begin, end};
  intervals_.erase(first + 1, last);
}

void RankSet::Union(const RankSet& other) {
  for (const auto& [begin, end] : other.intervals_) AddInterval(begin, end);
}

bool RankSet::Contains(int rank) const {
  const auto found =
      std::upper_bound(intervals_.begin(), intervals_.end(), rank,
                       [](int r, const auto& interval) { return r < interval.second; });
  return found != intervals_.end() && found->first <= rank;
}

int RankSet::size() const {
  int count = 0;
  for (const auto& [begin, end] : intervals_) count += end - begin;
  return count;
}

RankSet RankSet::Complement(int num_ranks) const {
  RankSet rest;
  int next = 0;
  for (const auto& [begin, end] : intervals_) {
    if (next < begin) rest.intervals_.emplace_back(next, begin);
    next = end;
  }
  if (next < num_ranks) rest.intervals_.emplace_back(next, num_ranks);
  return rest;
}

std::vector<int> RankSet::ToVector() const {
  std::vector<int> ranks;
  for (const auto& [begin, end] : intervals_) {
    for (int rank = begin; rank < end; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

RankSet RankSet::Global(const std::vector<int>& members) const {
  RankSet global;
  for (const int place : ToVector()) global.Add(members[static_cast<size_t>(place)]);
  return global;
}

std::string RankSet::ToString() const {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : intervals_) {
    if (end - begin > 2) {
      parts.push_back(fmt::format("{}-{}", begin, end - 1));
    } else {
      for (int rank = begin; rank < end; ++rank) parts.push_back(std::to_string(rank));
    }
  }
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

std::string RankSet::Describe() const {
  return fmt::format("{} {}", size() == 1 ? "rank" : "ranks", ToString());
}

void RankSet::Write(WireWriter& writer) const {
  writer.U32(static_cast<uint32_t>(intervals_.size()));
  for (const auto& [begin, end] : intervals_) {
    writer.U32(static_cast<uint32_t>(begin));
    writer.U32(static_cast<uint32_t>(end));
  }
}

bool RankSet::Read(WireReader& reader, int num_ranks) {
  intervals_.clear();
  const uint32_t count = reader.U32();
  if (count > reader.remaining() / 8) return false;
  uint32_t last = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t begin = reader.U32();
    const uint32_t end = reader.U32();
    if ((i > 0 && begin <= last) || begin >= end || end > static_cast<uint32_t>(num_ranks)) {
      return false;
    }
    last = end;
    intervals_.emplace_back(static_cast<int>(begin), static_cast<int>(end));
  }
  return !reader.failed();
}

}  // namespace tutti::coordinator
