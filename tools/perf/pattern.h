#pragma once

// Makes input data whose exact results are known, and compares results with them.
//
// A rank's input is a table of kPeriod elements that repeats. The period is prime: a block that
// lands a chunk (a power of two) too early or too late does not look right by chance. Only as many
// tables are computed as the job has ranks. The result for any stretch of any buffer is then a
// stretch of a repeating table, compared by memcmp.
//
// Values are chosen to make every intermediate result exact, whatever the order of the reduction:
//
//   copies    Random bits, NaN patterns included, because nothing may touch them.
//   sum       Integers: random bits, modulo the type. Floats: integers whose absolute values sum up
//             to what the mantissa holds; with fp8 and many ranks most ranks bring 0, in turns.
//   prod      Integers: odd random bits, modulo the type. Floats: signs, and one 2, one 1.5 and one
//             0.5.
//   min, max  Any values without NaN.
//   mulsum    As sum, with rank scalars of 1, 2 and 0.5 (integers: 1, 2 and 3).
//   avg       As sum, with small integers. Integers truncate toward zero; floats allow for rounding
//             unless the number of ranks is a power of two.
//
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nccl.h"
#include "perf/collectives.h"

namespace tutti::tools {

enum class Reduction { kNone, kSum, kProd, kMin, kMax, kAvg, kMulSum };

std::string_view Name(Reduction reduction);
// Returns NCCL's operator for a reduction; PreMulSum is made at run time.
ncclRedOp_t OperatorOf(Reduction reduction);

class Pattern {
 public:
  static constexpr size_t kPeriod = 4099;

  // REQUIRES: `reduction` is kNone exactly where nothing is reduced.
  Pattern(ncclDataType_t type, Reduction reduction, int num_ranks);

  // Returns the scalar of a rank for PreMulSum, in the first bytes.
  uint64_t Scalar(int rank) const;

  // Writes elements [begin, begin + count) of the input of `rank` to `data`.
  void Fill(void* data, int rank, size_t begin, size_t count);

  // Returns how many of `count` elements at `data` differ from elements [begin, begin + count) of
  // the input of `source_rank`, or of the reduction (Region::kReduced). Stores the index of the
  // first wrong element in *first and a sentence about the element in *sentence; leaves both alone
  // where all elements are right.
  size_t CountWrong(const void* data, int source_rank, size_t begin, size_t count, size_t* first,
                    std::string* sentence);

 private:
  using Table = std::vector<uint8_t>;
  const Table& TableOf(int source_rank);
  Table MakeInput(int rank) const;
  Table MakeReduced() const;
  uint64_t Input(int rank, size_t index) const;
  double FloatInput(int rank, size_t index) const;
  uint64_t IntegerInput(int rank, size_t index) const;
  uint64_t FloatResult(size_t index) const;
  uint64_t IntegerResult(size_t index) const;
  int64_t Bounded(int rank, size_t index) const;
  double FloatScalar(int rank) const;
  bool Matches(uint64_t got, uint64_t expected) const;
  std::string Show(uint64_t bits) const;

  const ncclDataType_t type_;
  const Reduction reduction_;
  const int num_ranks_;
  const size_t element_size_;
  double tolerance_ = 0;       // absolute tolerance per unit of the largest input
  std::vector<Table> tables_;  // by rank, then the reduction; a table is empty until its first use
};

}  // namespace tutti::tools
