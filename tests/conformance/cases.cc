#include "conformance/cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <thread>

#include "base/hash.h"
#include "conformance/guarded.h"
#include "conformance/place.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using oracle::Expected;
using oracle::Op;

constexpr std::byte kUntouched{0x5A};

uint64_t Random(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

bool Gathers(Collective collective) {
  return collective == Collective::kGather || collective == Collective::kGatherV;
}

bool IsFp8(ncclDataType_t type) { return type == ncclFloat8e4m3 || type == ncclFloat8e5m2; }

// Whether inputs can be chosen so that no order of the ranks rounds anywhere (see Element).
bool CanBeExact(const Case& c, int num_ranks) {
  if (!oracle::IsFloat(c.type)) return true;
  switch (c.op) {
    case Op::kAvg:
      return num_ranks <= 8 && std::has_single_bit(static_cast<unsigned>(num_ranks));
    case Op::kMin:
    case Op::kMax:
      return true;
    default:
      return num_ranks <= 8;
  }
}

bool IsExact(const Case& c, int num_ranks) { return !c.rounds && CanBeExact(c, num_ranks); }

// A float input. Exact: few and small integers for sums, so that 8 of them fit the mantissa of e5m2
// (3 bits with the hidden one); powers of two for products, so that 8 of them fit the exponents of
// e4m3.
long double Element(const Case& c, bool exact, uint64_t random) {
  const long double unit = static_cast<long double>(random % 10007) / 10006;  // 0 to 1
  if (c.op == Op::kProd) {
    const long double sign = random >> 40 & 1 ? -1 : 1;
    if (!exact) return sign * (0.5L + unit);
    constexpr std::array<long double, 3> kPowers = {0.5L, 1, 2};
    return sign * kPowers[random % 3];
  }
  if (!exact) return 4 * unit - 2;
  const int most = IsFp8(c.type) ? 1 : 3;
  return static_cast<int>(random % static_cast<uint64_t>(2 * most + 1)) - most;
}

uint64_t Scalar(const Case& c, int rank, int num_ranks) {
  uint64_t bits = 0;
  if (!oracle::IsFloat(c.type)) {
    oracle::FromInteger(c.type, static_cast<uint64_t>(rank) + 2, &bits);
    return bits;
  }
  const long double sign = rank % 2 == 0 ? 1 : -1;
  const bool exact = IsExact(c, num_ranks);
  const long double size = exact ? (IsFp8(c.type) ? 1 : 1 + rank % 3) : 0.7L + 0.1L * rank;
  oracle::FromReal(c.type, sign * size, &bits);
  return bits;
}

// Elements [first, first + count) of what `rank` sends. Everything follows from the case, the rank
// and the index.
std::vector<std::byte> Input(const Case& c, int num_ranks, int rank, size_t first, size_t count) {
  const size_t size = oracle::SizeOf(c.type);
  std::vector<std::byte> elements(count * size);
  const bool exact = IsExact(c, num_ranks);
  const bool any_bits = !oracle::IsFloat(c.type) || !Reduces(c.collective);
  const bool any_number = c.op == Op::kMin || c.op == Op::kMax;
  const uint64_t salt = Random(c.seed * 1000003 + static_cast<uint64_t>(rank));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t random = Random(salt ^ (first + i));
    std::byte* const out = elements.data() + i * size;
    if (any_bits || any_number) {
      std::memcpy(out, &random, size);
      if (any_bits || oracle::ToReal(c.type, out) == oracle::ToReal(c.type, out)) continue;
    }
    oracle::FromReal(c.type, Element(c, exact, random), out);
  }
  return elements;
}

// How many elements rank `from` has for rank `to` where ranks bring different amounts; some have
// none.
size_t PartCount(const Case& c, int to) {
  return to % 3 == 2 ? 0 : c.count / static_cast<size_t>(1 + to % 2);
}
size_t PairCount(const Case& c, int from, int to) {
  return c.count * static_cast<size_t>((from * 3 + to * 5 + 1) % 4) / 2;
}

struct Parts {
  std::vector<size_t> counts;
  std::vector<size_t> offsets;
  size_t total = 0;
};

// `gap` elements after each part belong to nobody.
template <class F>
Parts MakeParts(int num_ranks, size_t gap, F count_of) {
  Parts parts;
  for (int i = 0; i < num_ranks; ++i) {
    parts.counts.push_back(count_of(i));
    parts.offsets.push_back(parts.total);
    parts.total += parts.counts.back() + gap;
  }
  return parts;
}

// A rank's part in a case: its buffers and what must be in the one it receives into.
struct RankCase {
  const Case& c;
  int rank;
  int num_ranks;
  size_t send_elems = 0;
  size_t recv_elems = 0;
  // Where the smaller buffer lies in the larger one, in place.
  size_t send_at = 0;
  size_t recv_at = 0;
  bool in_place = false;
  Parts sends;
  Parts recvs;

  RankCase(const Case& the_case, int the_rank, int the_num_ranks)
      : c(the_case), rank(the_rank), num_ranks(the_num_ranks), in_place(the_case.in_place) {
    Measure();
  }
  size_t size() const { return oracle::SizeOf(c.type); }
  int Before(int distance) const { return (rank + 2 * num_ranks - distance) % num_ranks; }
  int After(int distance) const { return (rank + distance) % num_ranks; }

  void Measure();
  std::vector<std::byte> Sent() const { return Input(c, num_ranks, rank, 0, send_elems); }
  Expected Received() const;
  ncclResult_t Call(const void* send, void* recv, ncclComm_t comm, cudaStream_t stream) const;

 private:
  Expected Reduced(size_t first, size_t count) const;
  Expected Gathered() const;
  void Put(Expected& expected, size_t at, int from, size_t first, size_t count) const;
  ncclResult_t CallSendRecv(const void* send, void* recv, ncclComm_t comm,
                            cudaStream_t stream) const;
  ncclResult_t CallReduction(const void* send, void* recv, ncclComm_t comm,
                             cudaStream_t stream) const;
};

void RankCase::Measure() {
  const size_t n = static_cast<size_t>(num_ranks);
  const size_t own = static_cast<size_t>(rank) * c.count;
  const bool is_root = rank == c.root;
  send_elems = recv_elems = c.count;
  switch (c.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      break;
    case Collective::kReduceScatter:
      send_elems = n * c.count;
      recv_at = own;
      break;
    case Collective::kReduceScatterV:
      recvs = MakeParts(num_ranks, 0, [&](int i) { return PartCount(c, i); });
      send_elems = recvs.total;
      recv_elems = recvs.counts[static_cast<size_t>(rank)];
      recv_at = recvs.offsets[static_cast<size_t>(rank)];
      break;
    case Collective::kAllGather:
      recv_elems = n * c.count;
      send_at = own;
      break;
    case Collective::kAllGatherV:
      recvs = MakeParts(num_ranks, 3, [&](int i) { return PartCount(c, i); });
      recv_elems = recvs.total;
      send_elems = recvs.counts[static_cast<size_t>(rank)];
      send_at = recvs.offsets[static_cast<size_t>(rank)];
      break;
    case Collective::kAlltoAll:
      send_elems = recv_elems = n * c.count;
      break;
    case Collective::kAlltoAllV:
      sends = MakeParts(num_ranks, 1, [&](int i) { return PairCount(c, rank, i); });
      recvs = MakeParts(num_ranks, 2, [&](int i) { return PairCount(c, i, rank); });
      send_elems = sends.total;
      recv_elems = recvs.total;
      in_place = false;
      break;
    case Collective::kGather:
      recv_elems = is_root ? n * c.count : 0;
      send_at = own;
      in_place &= is_root;
      break;
    case Collective::kScatter:
      send_elems = is_root ? n * c.count : 0;
      recv_at = own;
      in_place &= is_root;
      break;
    case Collective::kGatherV:
      recvs = MakeParts(num_ranks, 3, [&](int i) { return PartCount(c, i); });
      recv_elems = is_root ? recvs.total : 0;
      send_elems = recvs.counts[static_cast<size_t>(rank)];
      send_at = recvs.offsets[static_cast<size_t>(rank)];
      in_place &= is_root;
      break;
    case Collective::kScatterV:
      sends = MakeParts(num_ranks, 2, [&](int i) { return PartCount(c, i); });
      send_elems = is_root ? sends.total : 0;
      recv_elems = sends.counts[static_cast<size_t>(rank)];
      recv_at = sends.offsets[static_cast<size_t>(rank)];
      in_place &= is_root;
      break;
    case Collective::kSendRecv:
      recv_elems = 2 * c.count;
      in_place = false;
      break;
  }
}

Expected RankCase::Reduced(size_t first, size_t count) const {
  oracle::Reduction reduction = {c.type, c.op, IsExact(c, num_ranks), {}};
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const void*> arrays;
  for (int r = 0; r < num_ranks; ++r) {
    inputs.push_back(Input(c, num_ranks, r, first, count));
    arrays.push_back(inputs.back().data());
    reduction.scalars.push_back(Scalar(c, r, num_ranks));
  }
  return oracle::Reduce(reduction, arrays, count);
}

// Puts what `from` sent from its element `first` on to place `at`.
void RankCase::Put(Expected& expected, size_t at, int from, size_t first, size_t count) const {
  const std::vector<std::byte> elements = Input(c, num_ranks, from, first, count);
  std::copy(elements.begin(), elements.end(),
            expected.elements.begin() + static_cast<ptrdiff_t>(at * size()));
}

Expected RankCase::Gathered() const {
  Expected expected;
  expected.bitwise = true;
  expected.elements.assign(recv_elems * size(), kUntouched);
  for (int i = 0; i < num_ranks && recv_elems > 0; ++i) {
    const auto place = static_cast<size_t>(i);
    const auto here = static_cast<size_t>(rank);
    switch (c.collective) {
      case Collective::kAlltoAll:
        Put(expected, place * c.count, i, here * c.count, c.count);
        break;
      case Collective::kAlltoAllV: {
        const Parts theirs = MakeParts(num_ranks, 1, [&](int to) { return PairCount(c, i, to); });
        Put(expected, recvs.offsets[place], i, theirs.offsets[here], recvs.counts[place]);
        break;
      }
      case Collective::kAllGatherV:
      case Collective::kGatherV:
        Put(expected, recvs.offsets[place], i, 0, recvs.counts[place]);
        break;
      default:
        Put(expected, place * c.count, i, 0, c.count);
    }
  }
  return expected;
}

Expected RankCase::Received() const {
  switch (c.collective) {
    case Collective::kAllReduce:
      return Reduced(0, c.count);
    case Collective::kReduce: {
      if (rank == c.root) return Reduced(0, c.count);
      // Elsewhere the buffer is not used.
      if (in_place) return oracle::Copy(c.type, Sent().data(), c.count);
      const std::vector<std::byte> untouched(c.count * size(), kUntouched);
      return oracle::Copy(c.type, untouched.data(), c.count);
    }
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
      return Reduced(recv_at, recv_elems);
    case Collective::kBroadcast:
      return oracle::Copy(c.type, Input(c, num_ranks, c.root, 0, c.count).data(), c.count);
    case Collective::kScatter:
    case Collective::kScatterV:
      return oracle::Copy(c.type, Input(c, num_ranks, c.root, recv_at, recv_elems).data(),
                          recv_elems);
    case Collective::kSendRecv: {
      Expected expected;
      expected.bitwise = true;
      expected.elements.resize(recv_elems * size());
      Put(expected, 0, Before(1), 0, c.count);
      Put(expected, c.count, Before(2), 0, c.count);
      return expected;
    }
    default:
      return Gathered();
  }
}

ncclResult_t RankCase::CallSendRecv(const void* send, void* recv, ncclComm_t comm,
                                    cudaStream_t stream) const {
  ncclGroupStart();
  auto* const second = static_cast<std::byte*>(recv) + c.count * size();
  ncclSend(send, c.count, c.type, After(1), comm, stream);
  ncclRecv(recv, c.count, c.type, Before(1), comm, stream);
  ncclSend(send, c.count, c.type, After(2), comm, stream);
  ncclRecv(second, c.count, c.type, Before(2), comm, stream);
  return ncclGroupEnd();
}

ncclResult_t RankCase::CallReduction(const void* send, void* recv, ncclComm_t comm,
                                     cudaStream_t stream) const {
  ncclRedOp_t op = ncclSum;
  switch (c.op) {
    case Op::kSum:
      break;
    case Op::kProd:
      op = ncclProd;
      break;
    case Op::kMax:
      op = ncclMax;
      break;
    case Op::kMin:
      op = ncclMin;
      break;
    case Op::kAvg:
      op = ncclAvg;
      break;
    case Op::kPreMulSum: {
      uint64_t scalar = Scalar(c, rank, num_ranks);
      const ncclResult_t made =
          ncclRedOpCreatePreMulSum(&op, &scalar, c.type, ncclScalarHostImmediate, comm);
      if (made != ncclSuccess) return made;
      break;
    }
  }
  ncclResult_t result;
  if (c.collective == Collective::kAllReduce)
    result = ncclAllReduce(send, recv, c.count, c.type, op, comm, stream);
  else if (c.collective == Collective::kReduce)
    result = ncclReduce(send, recv, c.count, c.type, op, c.root, comm, stream);
  else if (c.collective == Collective::kReduceScatter)
    result = ncclReduceScatter(send, recv, c.count, c.type, op, comm, stream);
  else
    result = tuttiReduceScatterV(send, recv, recvs.counts.data(), c.type, op, comm, stream);
  if (c.op == Op::kPreMulSum && result == ncclSuccess) result = ncclRedOpDestroy(op, comm);
  return result;
}

ncclResult_t RankCase::Call(const void* send, void* recv, ncclComm_t comm,
                            cudaStream_t stream) const {
  const bool is_root = rank == c.root;
  switch (c.collective) {
    case Collective::kBroadcast:
      if (in_place && c.seed % 2 == 0)
        return ncclBcast(recv, c.count, c.type, c.root, comm, stream);
      return ncclBroadcast(send, recv, c.count, c.type, c.root, comm, stream);
    case Collective::kAllGather:
      return ncclAllGather(send, recv, c.count, c.type, comm, stream);
    case Collective::kAllGatherV:
      return tuttiAllGatherV(send, send_elems, recv, recvs.counts.data(), recvs.offsets.data(),
                             c.type, comm, stream);
    case Collective::kAlltoAll:
      return ncclAlltoAll(send, recv, c.count, c.type, comm, stream);
    case Collective::kAlltoAllV:
      return tuttiAlltoAllV(send, sends.counts.data(), sends.offsets.data(), recv,
                            recvs.counts.data(), recvs.offsets.data(), c.type, comm, stream);
    case Collective::kGather:
      return ncclGather(send, recv, c.count, c.type, c.root, comm, stream);
    case Collective::kGatherV:
      return tuttiGatherV(send, send_elems, recv, is_root ? recvs.counts.data() : nullptr,
                          is_root ? recvs.offsets.data() : nullptr, c.type, c.root, comm, stream);
    case Collective::kScatter:
      return ncclScatter(send, recv, c.count, c.type, c.root, comm, stream);
    case Collective::kScatterV:
      return tuttiScatterV(send, is_root ? sends.counts.data() : nullptr,
                           is_root ? sends.offsets.data() : nullptr, recv, recv_elems, c.type,
                           c.root, comm, stream);
    case Collective::kSendRecv:
      return CallSendRecv(send, recv, comm, stream);
    default:
      return CallReduction(send, recv, comm, stream);
  }
}

// One rank's run of a case over fresh buffers.
class RankRun {
 public:
  RankRun(const Case& c, ncclComm_t comm, int rank, int num_ranks)
      : rank_case_(c, rank, num_ranks),
        comm_(comm),
        sent_(rank_case_.Sent()),
        in_place_(rank_case_.in_place),
        recv_buffer_(in_place_ ? SharedBytes() : RecvBytes(), SkewBytes(), Allocated()),
        send_buffer_(in_place_ ? 0 : sent_.size(), SkewBytes(), Allocated()) {
    recv_buffer_.Fill(kUntouched);
    std::copy(sent_.begin(), sent_.end(), send());
    recv_buffer_.Upload();
    send_buffer_.Upload();
  }

  ncclResult_t Issue(cudaStream_t stream) {
    return rank_case_.Call(SendArgument(), RecvArgument(), comm_, stream);
  }

  // Looks at what has come of it; a hash of what was received.
  uint64_t Check(const Expected& expected) {
    recv_buffer_.Download();
    send_buffer_.Download();
    const std::string wrong = oracle::Compare(rank_case_.c.type, expected, recv());
    EXPECT_EQ(wrong, "") << Where();
    EXPECT_TRUE(recv_buffer_.Intact()) << Where() << " wrote beside the receive buffer";
    if (!in_place_) {
      EXPECT_TRUE(send_buffer_.Intact()) << Where() << " wrote beside the send buffer";
      EXPECT_TRUE(std::equal(sent_.begin(), sent_.end(), send()))
          << Where() << " changed what it sends";
    }
    return tutti::Fnv1a::OfObjects(std::span<const std::byte>(recv(), RecvBytes()));
  }

  std::string Where() const {
    return fmt::format("{} on rank {}", Describe(rank_case_.c, rank_case_.num_ranks),
                       rank_case_.rank);
  }

 private:
  size_t SkewBytes() const { return rank_case_.c.skew * rank_case_.size(); }
  size_t RecvBytes() const { return rank_case_.recv_elems * rank_case_.size(); }
  // In place: what holds both, of which one lies in the other.
  size_t SharedBytes() const {
    return std::max(sent_.size() + rank_case_.send_at * rank_case_.size(),
                    RecvBytes() + rank_case_.recv_at * rank_case_.size());
  }
  bool Allocated() const {
    const Memory memory = rank_case_.c.memory;
    return memory == Memory::kAllocated || (memory == Memory::kMixed && rank_case_.rank % 2 == 1);
  }
  size_t RecvAt() const { return in_place_ ? rank_case_.recv_at * rank_case_.size() : 0; }
  size_t SendAt() const { return in_place_ ? rank_case_.send_at * rank_case_.size() : 0; }
  Guarded& sender() { return in_place_ ? recv_buffer_ : send_buffer_; }
  std::byte* recv() { return recv_buffer_.data() + RecvAt(); }
  std::byte* send() { return sender().data() + SendAt(); }

  // Who does not send or receive may pass null.
  const void* SendArgument() {
    const Case& c = rank_case_.c;
    const bool sends = HasRoot(c.collective) && !Reduces(c.collective) && !Gathers(c.collective)
                           ? rank_case_.rank == c.root || in_place_
                           : true;
    return sends ? sender().argument() + SendAt() : nullptr;
  }
  void* RecvArgument() {
    const Case& c = rank_case_.c;
    const bool receives =
        rank_case_.rank == c.root || in_place_ ||
        (!Gathers(c.collective) && (c.collective != Collective::kReduce || c.seed % 2 == 0));
    return receives ? recv_buffer_.argument() + RecvAt() : nullptr;
  }

  const RankCase rank_case_;
  const ncclComm_t comm_;
  const std::vector<std::byte> sent_;
  const bool in_place_;
  Guarded recv_buffer_;
  Guarded send_buffer_;
};

// Runs it once; with `graph`, the operation is captured, and runs as the graph does. False where
// the library refused.
bool RunOnce(ncclComm_t comm, const RankCase& rank_case, const Expected& expected,
             cudaStream_t stream, bool graph, uint64_t& hash) {
  const Case& c = rank_case.c;
  RankRun run(c, comm, rank_case.rank, rank_case.num_ranks);
  ncclResult_t result = ncclSuccess;
  if (graph) {
    CapturedGraph captured(stream, [&] { result = run.Issue(stream); });
    captured.Replay();
    // In place a second replay would reduce what is reduced already.
    if (!c.in_place) captured.Replay();
  } else {
    result = run.Issue(stream);
  }
  std::string problem = Explain(result, comm);
  if (problem.empty()) problem = Explain(Finish(comm, stream));
  if (!problem.empty()) {
    ADD_FAILURE() << run.Where() << ": " << problem;
    return false;
  }
  hash = run.Check(expected);
  return true;
}

uint64_t RunTwice(ncclComm_t comm, const Case& c, cudaStream_t stream, bool graph) {
  int rank = 0;
  int num_ranks = 0;
  EXPECT_NCCL(ncclCommUserRank(comm, &rank));
  EXPECT_NCCL(ncclCommCount(comm, &num_ranks));
  const RankCase rank_case(c, rank, num_ranks);
  const Expected expected = rank_case.Received();
  uint64_t first = 0;
  uint64_t second = 0;
  if (!RunOnce(comm, rank_case, expected, stream, graph, first) || c.once) return first;
  if (RunOnce(comm, rank_case, expected, stream, graph, second)) {
    EXPECT_EQ(first, second) << Describe(c, num_ranks) << " on rank " << rank
                             << " gave other bits the second time";
  }
  return first;
}

}  // namespace

bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kReduceScatterV;
}

bool HasRoot(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kScatter || collective == Collective::kScatterV ||
         Gathers(collective);
}

std::string Describe(const Case& c, int num_ranks) {
  constexpr std::array<const char*, kNumCollectives> kNames = {
      "AllReduce", "Reduce",     "ReduceScatter", "ReduceScatterV", "Broadcast",
      "AllGather", "AllGatherV", "AlltoAll",      "AlltoAllV",      "Gather",
      "GatherV",   "Scatter",    "ScatterV",      "SendRecv"};
  std::string text = fmt::format("{} of {} {}", kNames[static_cast<size_t>(c.collective)], c.count,
                                 oracle::Name(c.type));
  if (Reduces(c.collective)) text += fmt::format(", {}", oracle::Name(c.op));
  if (HasRoot(c.collective)) text += fmt::format(", root {}", c.root);
  return text +
         fmt::format(", {} ranks, {}{}{}", num_ranks, c.in_place ? "in place" : "out of place",
                     c.rounds ? ", rounding" : "",
                     c.skew > 0 ? fmt::format(", skewed by {}", c.skew) : "") +
         std::array{"", ", allocated memory", ", mixed memory"}[static_cast<size_t>(c.memory)];
}

uint64_t RunCase(ncclComm_t comm, const Case& c, cudaStream_t stream) {
  return RunTwice(comm, c, stream, /*graph=*/false);
}

uint64_t RunCaptured(ncclComm_t comm, const Case& c, cudaStream_t stream) {
  return RunTwice(comm, c, stream, /*graph=*/true);
}

void RunCaseByOneThread(const std::vector<ncclComm_t>& comms, const Case& c) {
  std::vector<std::unique_ptr<RankRun>> runs;
  const auto num_ranks = static_cast<int>(comms.size());
  for (int r = 0; r < num_ranks; ++r) {
    UseDevice(r);
    runs.push_back(std::make_unique<RankRun>(c, comms[static_cast<size_t>(r)], r, num_ranks));
  }
  EXPECT_NCCL(ncclGroupStart());
  for (auto& run : runs) EXPECT_NCCL(run->Issue(nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  for (ncclComm_t comm : comms) EXPECT_NCCL(Finish(comm));
  for (int r = 0; r < num_ranks; ++r) {
    UseDevice(r);
    runs[static_cast<size_t>(r)]->Check(RankCase(c, r, num_ranks).Received());
  }
}

std::vector<uint64_t> RunCases(ncclComm_t comm, const std::vector<Case>& cases) {
  std::vector<uint64_t> hashes;
  for (const Case& c : cases) {
    hashes.push_back(RunCase(comm, c));
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess) break;
  }
  return hashes;
}

}  // namespace tutti::testing
