#include "perf/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "perf/numbers.h"

namespace tutti::tools {
namespace {

// Returns a well mixed 64-bit value for each pair, by the usual 64-bit finisher.
uint64_t Hash(uint64_t a, uint64_t b) {
  uint64_t x = (a + 1) * 0x9e3779b97f4a7c15u + (b + 1) * 0xd1b54a32d192ed03u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The largest input keeps sums of many ranks exact in the wide types as well.
constexpr int64_t kLargestInput = int64_t{1} << 20;

// Returns the largest sum of absolute values that inputs may reach: the largest exact sum of the
// type, and less in types that hold more than any job needs.
int64_t SumLimit(ncclDataType_t type) {
  return std::min<int64_t>(ExactIntegers(type), int64_t{1} << 40);
}

}  // namespace

std::string_view Name(Reduction reduction) {
  constexpr std::string_view kNames[] = {"none", "sum", "prod", "min", "max", "avg", "mulsum"};
  return kNames[static_cast<size_t>(reduction)];
}

ncclRedOp_t OperatorOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kProd:
      return ncclProd;
    case Reduction::kMin:
      return ncclMin;
    case Reduction::kMax:
      return ncclMax;
    case Reduction::kAvg:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

Pattern::Pattern(ncclDataType_t type, Reduction reduction, int num_ranks)
    : type_(type),
      reduction_(reduction),
      num_ranks_(num_ranks),
      element_size_(ElementSize(type)),
      tables_(static_cast<size_t>(num_ranks) + 1) {
  const bool power_of_two = (num_ranks & (num_ranks - 1)) == 0;
  // Up to 64 ranks a quotient by a power of two is exact in every type (fp8 e4m3 has nine binary
  // places).
  if (reduction == Reduction::kAvg && IsFloat(type) && (!power_of_two || num_ranks > 64)) {
    // A rounding per step and one per division; the average is at most the largest input.
    const double largest = std::max<double>(1.0, static_cast<double>(SumLimit(type) / num_ranks));
    tolerance_ = (num_ranks + 2) * RoundingError(type) *
                 std::min<double>(largest, static_cast<double>(kLargestInput));
  }
}

double Pattern::FloatScalar(int rank) const {
  constexpr double kScalars[] = {1, 2, 0.5};
  return kScalars[rank % 3];
}

uint64_t Pattern::Scalar(int rank) const {
  return IsFloat(type_) ? EncodeFloat(type_, FloatScalar(rank))
                        : static_cast<uint64_t>(rank % 3 + 1);
}

// Returns an integer such that the absolute values over all ranks sum up to at most SumLimit.
int64_t Pattern::Bounded(int rank, size_t index) const {
  const int64_t limit = SumLimit(type_);
  const uint64_t hash = Hash(static_cast<uint64_t>(rank), index);
  int64_t magnitude = std::min(limit / num_ranks_, kLargestInput);
  if (magnitude == 0) {
    const auto turn =
        static_cast<int64_t>((static_cast<size_t>(rank) + index) % static_cast<size_t>(num_ranks_));
    if (turn >= limit) return 0;
    magnitude = 1;
  }
  const auto value = static_cast<int64_t>(hash % static_cast<uint64_t>(magnitude + 1));
  return IsSigned(type_) && (hash >> 63) ? -value : value;
}

double Pattern::FloatInput(int rank, size_t index) const {
  const uint64_t hash = Hash(static_cast<uint64_t>(rank), index);
  switch (reduction_) {
    case Reduction::kProd: {
      // Three ranks per element, in turns, bring a factor; with fewer ranks one rank brings
      // several.
      const auto turn = (static_cast<size_t>(rank) + index) % static_cast<size_t>(num_ranks_);
      const double factor = turn == 0 ? 2 : turn == 1 ? 1.5 : turn == 2 ? 0.5 : 1;
      return hash >> 63 ? -factor : factor;
    }
    case Reduction::kMin:
    case Reduction::kMax: {
      const int64_t range = std::min(ExactIntegers(type_), kLargestInput);
      return static_cast<double>(static_cast<int64_t>(hash % static_cast<uint64_t>(2 * range + 1)) -
                                 range);
    }
    case Reduction::kMulSum:
      return static_cast<double>(Bounded(rank, index)) / FloatScalar(rank);
    default:
      return static_cast<double>(Bounded(rank, index));
  }
}

uint64_t Pattern::IntegerInput(int rank, size_t index) const {
  const uint64_t hash = Hash(static_cast<uint64_t>(rank), index);
  if (reduction_ == Reduction::kAvg) return static_cast<uint64_t>(Bounded(rank, index));
  return reduction_ == Reduction::kProd ? hash | 1 : hash;
}

uint64_t Pattern::Input(int rank, size_t index) const {
  if (reduction_ == Reduction::kNone) return Hash(static_cast<uint64_t>(rank), index);
  return IsFloat(type_) ? EncodeFloat(type_, FloatInput(rank, index)) : IntegerInput(rank, index);
}

uint64_t Pattern::FloatResult(size_t index) const {
  double result = FloatInput(0, index);
  if (reduction_ == Reduction::kMulSum) result *= FloatScalar(0);
  for (int rank = 1; rank < num_ranks_; ++rank) {
    const double input = FloatInput(rank, index);
    switch (reduction_) {
      case Reduction::kProd:
        result *= input;
        break;
      case Reduction::kMin:
        result = std::min(result, input);
        break;
      case Reduction::kMax:
        result = std::max(result, input);
        break;
      case Reduction::kMulSum:
        result += input * FloatScalar(rank);
        break;
      default:
        result += input;
    }
  }
  return EncodeFloat(type_, reduction_ == Reduction::kAvg ? result / num_ranks_ : result);
}

uint64_t Pattern::IntegerResult(size_t index) const {
  const auto less = [this](uint64_t a, uint64_t b) {
    return IsSigned(type_) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  };
  const auto input = [&](int rank) {
    const uint64_t value = static_cast<uint64_t>(DecodeInteger(type_, IntegerInput(rank, index)));
    return reduction_ == Reduction::kMulSum ? value * Scalar(rank) : value;
  };
  uint64_t result = input(0);
  for (int rank = 1; rank < num_ranks_; ++rank) {
    const uint64_t value = input(rank);
    switch (reduction_) {
      case Reduction::kProd:
        result *= value;
        break;
      case Reduction::kMin:
        result = less(value, result) ? value : result;
        break;
      case Reduction::kMax:
        result = less(result, value) ? value : result;
        break;
      default:
        result += value;
    }
  }
  if (reduction_ != Reduction::kAvg) return result;
  return static_cast<uint64_t>(static_cast<int64_t>(result) / num_ranks_);
}

Pattern::Table Pattern::MakeInput(int rank) const {
  Table table(kPeriod * element_size_);
  for (size_t i = 0; i < kPeriod; ++i) {
    const uint64_t bits = Input(rank, i);
    std::memcpy(&table[i * element_size_], &bits, element_size_);
  }
  return table;
}

Pattern::Table Pattern::MakeReduced() const {
  Table table(kPeriod * element_size_);
  for (size_t i = 0; i < kPeriod; ++i) {
    const uint64_t bits = IsFloat(type_) ? FloatResult(i) : IntegerResult(i);
    std::memcpy(&table[i * element_size_], &bits, element_size_);
  }
  return table;
}

const Pattern::Table& Pattern::TableOf(int source_rank) {
  Table& table =
      source_rank == Region::kReduced ? tables_.back() : tables_[static_cast<size_t>(source_rank)];
  if (table.empty())
    table = source_rank == Region::kReduced ? MakeReduced() : MakeInput(source_rank);
  return table;
}

void Pattern::Fill(void* data, int rank, size_t begin, size_t count) {
  const Table& table = TableOf(rank);
  auto* target = static_cast<uint8_t*>(data);
  for (size_t at = begin % kPeriod; count > 0; at = 0) {
    const size_t now = std::min(count, kPeriod - at);
    std::memcpy(target, &table[at * element_size_], now * element_size_);
    target += now * element_size_;
    count -= now;
  }
}

bool Pattern::Matches(uint64_t got, uint64_t expected) const {
  if (tolerance_ == 0 || reduction_ == Reduction::kNone) return false;
  return std::fabs(DecodeFloat(type_, got) - DecodeFloat(type_, expected)) <= tolerance_;
}

std::string Pattern::Show(uint64_t bits) const {
  if (reduction_ == Reduction::kNone) return fmt::format("bits {:0{}x}", bits, element_size_ * 2);
  if (IsFloat(type_)) return fmt::format("{}", DecodeFloat(type_, bits));
  const int64_t value = DecodeInteger(type_, bits);
  return IsSigned(type_) ? fmt::format("{}", value)
                         : fmt::format("{}", static_cast<uint64_t>(value));
}

size_t Pattern::CountWrong(const void* data, int source_rank, size_t begin, size_t count,
                           size_t* first, std::string* sentence) {
  const Table& table = TableOf(source_rank);
  const auto* source = static_cast<const uint8_t*>(data);
  size_t wrong = 0;
  size_t done = 0;
  for (size_t at = begin % kPeriod; done < count; at = 0) {
    const size_t now = std::min(count - done, kPeriod - at);
    const uint8_t* const expected = &table[at * element_size_];
    const uint8_t* const got = source + done * element_size_;
    const bool same = std::memcmp(got, expected, now * element_size_) == 0;
    for (size_t i = 0; !same && i < now; ++i) {
      uint64_t got_bits = 0;
      uint64_t expected_bits = 0;
      std::memcpy(&got_bits, got + i * element_size_, element_size_);
      std::memcpy(&expected_bits, expected + i * element_size_, element_size_);
      if (got_bits == expected_bits || Matches(got_bits, expected_bits)) continue;
      if (wrong++ == 0) {
        *first = done + i;
        *sentence = fmt::format("{} where {} is right", Show(got_bits), Show(expected_bits));
      }
    }
    done += now;
  }
  return wrong;
}

}  // namespace tutti::tools
