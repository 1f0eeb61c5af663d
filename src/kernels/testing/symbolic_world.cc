#include "kernels/testing/symbolic_world.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::testing {

Term Terms::Number(const Node& node) {
  const uint64_t packed = static_cast<uint64_t>(node.kind) << 62 |
                          static_cast<uint64_t>(node.a) << 31 | static_cast<uint64_t>(node.b);
  const auto [at, is_new] = numbers_.try_emplace(packed, static_cast<Term>(nodes_.size()));
  if (is_new) nodes_.push_back(node);
  return at->second;
}

std::string Terms::Text(Term term) const {
  if (term == kNothing) return "nothing";
  const auto [kind, a, b] = nodes_[static_cast<size_t>(term)];
  if (kind == Kind::kInput) return std::to_string(a) + "[" + std::to_string(b) + "]";
  if (kind == Kind::kFinished) return "final(" + Text(a) + ")";
  return "(" + Text(a) + "+" + Text(b) + ")";
}

bool Terms::CountInputs(Term term, size_t index, std::vector<int>& seen) const {
  const auto [kind, a, b] = nodes_[static_cast<size_t>(term)];
  if (kind == Kind::kSum) return CountInputs(a, index, seen) && CountInputs(b, index, seen);
  if (kind == Kind::kFinished || static_cast<size_t>(b) != index) return false;
  ++seen[static_cast<size_t>(a)];
  return true;
}

bool Terms::IsFullSum(Term term, int num_ranks, size_t index) const {
  if (term == kNothing) return false;
  const auto [kind, a, b] = nodes_[static_cast<size_t>(term)];
  if (kind != Kind::kFinished) return false;
  std::vector<int> seen(static_cast<size_t>(num_ranks));
  return CountInputs(a, index, seen) &&
         std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; });
}

Term Terms::Fold(const std::vector<int>& ranks, size_t index) {
  Term sum = Input(ranks[0], index);
  for (size_t i = 1; i < ranks.size(); ++i) sum = Sum(sum, Input(ranks[i], index));
  return sum;
}

std::vector<int> RanksTo(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

World::World(Shape shape) : shape_(std::move(shape)) {
  const size_t n = Index(shape_.num_ranks);
  links_.resize(n * n);
  programs_.resize(n);
  next_.resize(n);
  waits_.resize(n);
  met_.resize(n);
  meetings_.resize(n);
  results_.resize(n, std::vector<Term>(Outputs(), kNothing));
  for (size_t r = 0; r < n; ++r) {
    const bool apart = shape_.place == Place::kApart;
    input_.push_back(shape_.place == Place::kInputInOutput ? shape_.own[r] : 0);
    output_.push_back(apart ? Inputs() : shape_.place == Place::kOutputInInput ? shape_.own[r] : 0);
    memory_.emplace_back(std::max(input_[r] + Inputs(), output_[r] + Outputs()), kNothing);
    for (size_t i = 0; i < Inputs(); ++i)
      memory_[r][input_[r] + i] = terms_.Input(static_cast<int>(r), i);
  }
}

std::string World::Differs(int rank, size_t at, Term expected) const {
  const Term found = output(rank)[at];
  if (found == expected) return {};
  return "element " + std::to_string(at) + " of rank " + std::to_string(rank) + " is " +
         terms_.Text(found) + ", not " + terms_.Text(expected);
}

std::string World::DiffersFromSum(int rank, size_t at, size_t index, bool same_bits) const {
  if (same_bits && rank > 0) return Differs(rank, at, output(0)[at]);
  const Term found = output(rank)[at];
  if (terms_.IsFullSum(found, num_ranks(), index)) return {};
  return "element " + std::to_string(at) + " of rank " + std::to_string(rank) + " is " +
         terms_.Text(found);
}

void World::Meet(int rank) {
  const int number = ++meetings_[Index(rank)];
  Do(rank, [this, rank] {
    ++met_[Index(rank)];
    return true;
  });
  Do(rank, [this, number] {
    return std::all_of(met_.begin(), met_.end(), [number](int met) { return met >= number; });
  });
}

Term World::Read(int rank, size_t at, size_t begin, size_t count) {
  if (at >= count) {
    Fail("element " + std::to_string(at) + " of rank " + std::to_string(rank) +
         " is read beyond the buffer");
    return kNothing;
  }
  const Term term = memory_[Index(rank)][begin + at];
  if (term == kNothing)
    Fail("element " + std::to_string(at) + " of rank " + std::to_string(rank) +
         " is read while nothing is there");
  return term;
}

void World::WriteOutput(int rank, size_t at, Term term) {
  if (at >= Outputs())
    return Fail("element " + std::to_string(at) + " of rank " + std::to_string(rank) +
                " is written beyond the buffer");
  if (next_[Index(rank)] == programs_[Index(rank)].size())
    return Fail("rank " + std::to_string(rank) + " is written to after its last step");
  memory_[Index(rank)][output_[Index(rank)] + at] = term;
}

void World::FillOutput(int rank, size_t from, size_t count) {
  for (size_t i = from; i < from + count; ++i)
    memory_[Index(rank)][output_[Index(rank)] + i] = terms_.Input(rank, i);
}

Term World::Sum(Term a, Term b) {
  return a == kNothing || b == kNothing ? kNothing : terms_.Sum(a, b);
}

void World::Send(Link& link, std::vector<Term> chunk) {
  link.lengths.push_back(chunk.size());
  link.chunks.push_back(std::move(chunk));
}

std::vector<Term> World::Receive(Link& link, size_t n) {
  std::vector<Term> chunk = std::move(link.chunks.front());
  link.chunks.pop_front();
  if (chunk.size() != n) {
    Fail("a chunk of " + std::to_string(chunk.size()) + " elements is received as " +
         std::to_string(n));
    chunk.resize(n, kNothing);
  }
  return chunk;
}

// After the last step the output is set aside, and the user may do anything to the buffers.
bool World::StepOf(int rank) {
  const size_t r = Index(rank);
  if (!programs_[r][next_[r]]()) {
    waits_[r] = true;
    return false;
  }
  std::fill(waits_.begin(), waits_.end(), false);
  if (++next_[r] == programs_[r].size()) {
    const auto begin = memory_[r].begin() + static_cast<std::ptrdiff_t>(output_[r]);
    results_[r].assign(begin, begin + static_cast<std::ptrdiff_t>(Outputs()));
    std::fill(memory_[r].begin(), memory_[r].end(), kNothing);
  }
  return true;
}

// Returns the rank to try next, or -1 where all ranks are done or wait. Ranks are looked at upwards
// from the rank after `last`, from rank 0, downwards from the last rank, or from any rank.
int World::NextRank(int order, uint64_t& chance, int last) const {
  int first = order == 0 ? last + 1 : order == 2 ? num_ranks() - 1 : 0;
  if (order > 2) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    first = static_cast<int>(chance % static_cast<uint64_t>(num_ranks()));
  }
  const int step = order == 2 ? num_ranks() - 1 : 1;
  for (int i = 0; i < num_ranks(); ++i) {
    const int rank = (first + i * step) % num_ranks();
    if (next_[Index(rank)] < programs_[Index(rank)].size() && !waits_[Index(rank)]) return rank;
  }
  return -1;
}

std::string World::Run(int order) {
  // A rank without steps is done at once. A last step without effect spares a special case.
  for (int r = 0; r < num_ranks(); ++r) Do(r, [] { return true; });
  uint64_t chance = 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(order) + 1);
  int rank = -1;
  while (failure_.empty() && (rank = NextRank(order, chance, rank)) >= 0) StepOf(rank);
  if (!failure_.empty()) return failure_;
  for (int r = 0; r < num_ranks(); ++r) {
    const size_t done = next_[Index(r)], all = programs_[Index(r)].size();
    if (done < all)
      return "deadlock: rank " + std::to_string(r) + " waits in step " + std::to_string(done) +
             " of " + std::to_string(all);
  }
  for (size_t i = 0; i < links_.size(); ++i)
    if (!links_[i].chunks.empty())
      return "nobody takes " + std::to_string(links_[i].chunks.size()) + " chunks from " +
             std::to_string(i / Index(num_ranks())) + " to " +
             std::to_string(i % Index(num_ranks()));
  for (const auto& check : checks_)
    if (std::string failure = check(); !failure.empty()) return failure;
  return {};
}

}  // namespace tutti::testing
