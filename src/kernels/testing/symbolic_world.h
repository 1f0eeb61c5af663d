#pragma once

// A world of symbolic memory in which tests run the algorithms of kernels/ for many ranks in one
// thread. An element is a term, such as "final((0[5]+1[5]))": the finished sum of element 5 of the
// inputs of ranks 0 and 1. A wrong peer, offset, length or order of additions shows in the term.
//
// The control flow of an algorithm does not depend on data. Each rank's template therefore runs
// first, over primitives that record steps (symbolic_primitives.h). World::Run then makes the steps
// of all ranks, in an order of the test's choice. A step that has to wait for a peer is tried again
// later. Ranks that all wait are a deadlock. After a rank's last step its buffers are as good as
// freed: a peer that still reads them finds nothing, and fails.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::testing {

// Numbers a term. Equal terms have equal numbers.
using Term = int;
inline constexpr Term kNothing = -1;

class Terms {
 public:
  Term Input(int rank, size_t index) {
    return Number({Kind::kInput, rank, static_cast<int>(index)});
  }
  Term Sum(Term a, Term b) { return Number({Kind::kSum, a, b}); }
  Term Finished(Term a) { return Number({Kind::kFinished, a, 0}); }
  // Returns the sum of the ranks' elements `index`, added in the order of `ranks`.
  Term Fold(const std::vector<int>& ranks, size_t index);
  std::string Text(Term term) const;
  // Returns whether the term is the finished sum of the inputs' elements `index` of all ranks, each
  // rank once, in any order, and finished once.
  bool IsFullSum(Term term, int num_ranks, size_t index) const;

 private:
  enum class Kind : uint8_t { kInput, kSum, kFinished };
  struct Node {
    Kind kind;
    int a, b;
  };
  Term Number(const Node& node);
  bool CountInputs(Term term, size_t index, std::vector<int>& seen) const;

  std::unordered_map<uint64_t, Term> numbers_;  // By the node, packed.
  std::vector<Node> nodes_;
};

// Returns 0, 1, … n - 1.
std::vector<int> RanksTo(int n);

// Says how a rank's buffers share memory.
enum class Place {
  kApart,
  kSame,           // Input and output are one buffer.
  kInputInOutput,  // The input is the own part of the output.
  kOutputInInput,  // The output is the own part of the input.
};

// The FIFO from one rank to another. A chunk takes one slot, whatever its length.
struct Link {
  std::deque<std::vector<Term>> chunks;
  std::vector<size_t> lengths;  // The lengths of all chunks so far.
};

class World {
 public:
  struct Shape {
    int num_ranks = 1;
    size_t input_elems = 0;
    size_t output_elems = 0;
    Place place = Place::kApart;
    std::vector<size_t> own = {};  // Where each rank's part of the long buffer begins.
    size_t capacity = 2;           // The slots of each FIFO.
  };
  explicit World(Shape shape);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int num_ranks() const { return shape_.num_ranks; }
  const Shape& shape() const { return shape_; }
  Terms& terms() { return terms_; }

  // Adds a step to a rank's program. A step returns false, without any effect, while it waits.
  using Step = std::function<bool()>;
  void Do(int rank, Step step) { programs_[Index(rank)].push_back(std::move(step)); }
  // Adds the two steps of a barrier.
  void Meet(int rank);
  // Has `check` called once all ranks are done. The text is the failure, or empty.
  void AtEnd(std::function<std::string()> check) { checks_.push_back(std::move(check)); }

  // The orders of Run: in turn, the lowest rank as far as possible, the highest rank as far as
  // possible, and by chance with the order as the seed.
  static constexpr int kOrders = 4;
  // Makes all steps. Returns the first failure, or an empty text. REQUIRES: called once.
  std::string Run(int order);

  // Returns a rank's output, as the output was after the rank's last step.
  const std::vector<Term>& output(int rank) const { return results_[Index(rank)]; }
  // Returns an empty text where the output of a rank has the term at a place, else both terms.
  std::string Differs(int rank, size_t at, Term expected) const;
  // As Differs, for a finished sum of all ranks in any order. With `same_bits` the order must be
  // that of rank 0.
  std::string DiffersFromSum(int rank, size_t at, size_t index, bool same_bits) const;

  // The functions below are for primitives.
  Term ReadInput(int rank, size_t at) { return Read(rank, at, input_[Index(rank)], Inputs()); }
  Term ReadOutput(int rank, size_t at) { return Read(rank, at, output_[Index(rank)], Outputs()); }
  void WriteOutput(int rank, size_t at, Term term);
  // Makes the output the work area of an algorithm that begins with its input there.
  void FillOutput(int rank, size_t from, size_t count);
  Term Sum(Term a, Term b);
  Link& LinkOf(int from, int to) { return links_[Index(from) * Index(num_ranks()) + Index(to)]; }
  bool HasRoom(const Link& link) const { return link.chunks.size() < shape_.capacity; }
  void Send(Link& link, std::vector<Term> chunk);
  // Takes the next chunk, which must have `n` elements.
  std::vector<Term> Receive(Link& link, size_t n);
  // Notes a failure. Only the first counts.
  void Fail(const std::string& failure) {
    if (failure_.empty()) failure_ = failure;
  }

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }
  size_t Inputs() const { return shape_.input_elems; }
  size_t Outputs() const { return shape_.output_elems; }
  Term Read(int rank, size_t at, size_t begin, size_t count);
  // Makes a rank's next step if the step need not wait.
  bool StepOf(int rank);
  int NextRank(int order, uint64_t& chance, int last) const;

  Shape shape_;
  Terms terms_;
  std::vector<std::vector<Term>> memory_;  // By rank.
  std::vector<size_t> input_, output_;     // Where the buffers begin in a rank's memory.
  std::vector<Link> links_;                // From each rank to each.
  std::vector<std::vector<Step>> programs_;
  std::vector<size_t> next_;   // Each rank's next step.
  std::vector<bool> waits_;    // The rank waited when it was last tried.
  std::vector<int> met_;       // The barriers that each rank has reached.
  std::vector<int> meetings_;  // The barriers in each rank's program.
  std::vector<std::function<std::string()>> checks_;
  std::vector<std::vector<Term>> results_;
  std::string failure_;
};

}  // namespace tutti::testing
