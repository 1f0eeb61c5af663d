#pragma once

// A set of ranks as sorted intervals: a set of all ranks takes a single interval. A value; one
// thread at a time.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/wire.h"

namespace tutti::coordinator {

class RankSet {
 public:
  RankSet() = default;
  static RankSet Of(int rank) {
    RankSet set;
    set.Add(rank);
    return set;
  }

  void Add(int rank) { AddInterval(rank, rank + 1); }
  void Union(const RankSet& other);
  bool Contains(int rank) const;
  bool empty() const { return intervals_.empty(); }
  int size() const;
  // REQUIRES: not empty.
  int lowest() const { return intervals_.front().first; }
  // Returns the ranks below `num_ranks` that are not in the set.
  RankSet Complement(int num_ranks) const;
  std::vector<int> ToVector() const;
  // Returns the ranks of the job that have these places in `members`.
  RankSet Global(const std::vector<int>& members) const;
  // Returns the ranks as text, such as "0" or "0, 2-5 and 7".
  std::string ToString() const;
  // Returns the text of ToString after the word, such as "rank 0" or "ranks 0 and 1".
  std::string Describe() const;

  void Write(WireWriter& writer) const;
  // Reads a set. Returns false when the bytes are no set of ranks below `num_ranks`.
  [[nodiscard]] bool Read(WireReader& reader, int num_ranks);

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  void AddInterval(int begin, int end);

  std::vector<std::pair<int, int>> intervals_;  // [begin, end), apart by at least one rank
};

}  // namespace tutti::coordinator
