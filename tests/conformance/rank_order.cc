#include "conformance/rank_order.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "conformance/place.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using oracle::Op;

// Elements of a pattern. No power of two and no multiple of a cache line, so that every element
// comes to lie everywhere.
constexpr size_t kPattern = 4099;
constexpr std::byte kUntouched{0x5A};

uint64_t Random(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Numbers of very different sizes, so that any other order of additions shows; some are any bits at
// all: infinities, NaNs of every payload, zeroes of both signs, subnormal numbers.
std::vector<std::byte> MakePattern(ncclDataType_t type, Op op, int rank) {
  const size_t size = oracle::SizeOf(type);
  std::vector<std::byte> elements(kPattern * size);
  for (size_t i = 0; i < kPattern; ++i) {
    const uint64_t random =
        Random(i * 64 + static_cast<uint64_t>(rank) * 7919 + static_cast<uint64_t>(type) * 104729);
    std::byte* const out = elements.data() + i * size;
    std::memcpy(out, &random, size);
    if (!oracle::IsFloat(type) || random >> 60 == 0) continue;
    const long double unit = static_cast<long double>(random % 1000003) / 1000003 + 0.5L;
    const int spread = op == Op::kProd ? 1 : 6;
    const int exponent = static_cast<int>(random >> 32 & 0xff) % spread;
    const long double sign = random >> 48 & 1 ? -1 : 1;
    oracle::FromReal(type, sign * unit * static_cast<long double>(1 << exponent), out);
  }
  return elements;
}

uint64_t ScalarOf(ncclDataType_t type, int rank) {
  uint64_t bits = 0;
  if (oracle::IsFloat(type))
    oracle::FromReal(type, (rank % 2 == 0 ? 1 : -1) * (0.7L + 0.11L * rank), &bits);
  else
    oracle::FromInteger(type, static_cast<uint64_t>(rank) + 2, &bits);
  return bits;
}

// Memory that a rank of the test's kind works on.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    if (WhereTestsRun() == Place::kDevice)
      device_ = std::make_unique<DeviceMemory>(bytes);
    else
      shared_.resize(bytes);
  }
  std::byte* data() { return device_ ? device_->data() : shared_.data(); }
  void Write(const std::vector<std::byte>& from) {
    if (device_)
      CopyToDevice(data(), from.data(), from.size());
    else
      std::copy(from.begin(), from.end(), shared_.begin());
  }
  std::vector<std::byte> Read() {
    std::vector<std::byte> all(bytes_);
    if (device_)
      CopyToHost(all.data(), data(), bytes_);
    else
      std::copy(shared_.begin(), shared_.end(), all.begin());
    return all;
  }

 private:
  size_t bytes_;
  std::unique_ptr<DeviceMemory> device_;
  Array<std::byte> shared_;
};

ncclRedOp_t BuiltIn(Op op) {
  constexpr std::array kOps = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  return op == Op::kPreMulSum ? ncclSum : kOps[static_cast<size_t>(op)];
}

}  // namespace

// Says what a rank brings to a case, and what it gets, in elements.
struct OrderOracle::Extent {
  size_t send = 0;
  size_t recv = 0;
  size_t recv_at = 0;  // Where the result lies in the whole.
  std::vector<size_t> counts = {};

  Extent(const OrderCase& c, int rank, int num_ranks) : send(c.count), recv(c.count) {
    const auto n = static_cast<size_t>(num_ranks), me = static_cast<size_t>(rank);
    if (c.collective == Collective::kReduceScatter) {
      send = n * c.count;
      recv_at = me * c.count;
    } else if (c.collective == Collective::kReduceScatterV) {
      send = 0;
      for (size_t r = 0; r < n; ++r) {
        counts.push_back(r % 3 == 2 ? 0 : c.count / (1 + r % 2) + r);
        if (r == me) recv_at = send;
        send += counts.back();
      }
      recv = counts[me];
    }
  }
};

OrderOracle::OrderOracle(ncclDataType_t type, Op op, int num_ranks)
    : type_(type), op_(op), num_ranks_(num_ranks) {
  std::vector<const void*> arrays;
  for (int r = 0; r < num_ranks; ++r) {
    inputs_.push_back(MakePattern(type, op, r));
    scalars_.push_back(ScalarOf(type, r));
  }
  for (const auto& input : inputs_) arrays.push_back(input.data());
  const oracle::Reduction reduction = {type, op, true, scalars_};
  expected_ = oracle::ReduceInOrder(reduction, arrays, kPattern).elements;
}

void OrderOracle::Fill(std::byte* to, const std::vector<std::byte>& pattern, size_t from,
                       size_t count) const {
  for (size_t done = 0; done < count;) {
    const size_t at = (from + done) % kPattern;
    const size_t now = std::min(kPattern - at, count - done);
    std::memcpy(to + done * size(), pattern.data() + at * size(), now * size());
    done += now;
  }
}

bool OrderOracle::Matches(const std::byte* actual, size_t from, size_t count, const OrderCase& c,
                          int rank) const {
  for (size_t done = 0; done < count;) {
    const size_t at = (from + done) % kPattern;
    const size_t now = std::min(kPattern - at, count - done);
    const std::byte* const want = expected_.data() + at * size();
    const std::byte* const have = actual + done * size();
    if (std::memcmp(have, want, now * size()) != 0) {
      size_t i = 0;
      while (std::memcmp(have + i * size(), want + i * size(), size()) == 0) ++i;
      uint64_t want_bits = 0, have_bits = 0;
      std::memcpy(&want_bits, want + i * size(), size());
      std::memcpy(&have_bits, have + i * size(), size());
      std::string inputs;
      for (const auto& input : inputs_) {
        uint64_t bits = 0;
        std::memcpy(&bits, input.data() + (at + i) * size(), size());
        inputs += fmt::format(" {:#x}", bits);
      }
      ADD_FAILURE() << fmt::format(
          "rank {} of {}, {} {}, {}: element {} of {} is {:#x}, should be {:#x}; inputs{} "
          "(from {}, skew {}, in place {}, many {}, captured {})",
          rank, num_ranks_, oracle::Name(type_), oracle::Name(op_), static_cast<int>(c.collective),
          done + i, count, have_bits, want_bits, inputs, c.from, c.skew, c.in_place, c.many,
          c.captured);
      return false;
    }
    done += now;
  }
  return true;
}

ncclResult_t OrderOracle::Call(const OrderCase& c, const Extent& extent, const void* send,
                               void* recv, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) const {
  ncclConfigExt_t order = {nullptr, {TUTTI_VENDOR_ID, tuttiCallDeterministic}, {1}};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.ext = &order;
  const ncclCollConfig_t* const asked = c.asks ? &config : nullptr;
  switch (c.collective) {
    case Collective::kReduce:
      return ncclReduceConfig(send, recv, c.count, type_, op, c.root, comm, stream, asked);
    case Collective::kReduceScatter:
      return ncclReduceScatterConfig(send, recv, c.count, type_, op, comm, stream, asked);
    case Collective::kReduceScatterV:
      return tuttiReduceScatterV(send, recv, extent.counts.data(), type_, op, comm, stream);
    default:
      break;
  }
  if (!c.many) return ncclAllReduceConfig(send, recv, c.count, type_, op, comm, stream, asked);
  std::vector<const void*> sends;
  std::vector<void*> recvs;
  std::vector<size_t> counts;
  for (size_t at = 0, length = 1; at < c.count; at += counts.back(), length = length * 2 + 1) {
    counts.push_back(std::min(length, c.count - at));
    sends.push_back(static_cast<const std::byte*>(send) + at * size());
    recvs.push_back(static_cast<std::byte*>(recv) + at * size());
  }
  // The library joins neighbours: every second pair of buffers changes places.
  for (size_t i = 3; i < counts.size(); i += 4) {
    std::swap(sends[i - 1], sends[i]);
    std::swap(recvs[i - 1], recvs[i]);
    std::swap(counts[i - 1], counts[i]);
  }
  return tuttiAllReduceMany(sends.data(), recvs.data(), counts.data(), counts.size(), type_, op,
                            comm, stream);
}

bool OrderOracle::Check(ncclComm_t comm, int rank, const OrderCase& c, cudaStream_t stream) const {
  const Extent extent(c, rank, num_ranks_);
  const size_t send_bytes = (c.skew + extent.send) * size();
  std::vector<std::byte> sent(std::max<size_t>(send_bytes, 1), kUntouched);
  Fill(sent.data() + c.skew * size(), inputs_[static_cast<size_t>(rank)], c.from, extent.send);
  // Another buffer is off its cache line by another amount.
  const size_t skew = c.in_place ? c.skew + extent.recv_at : 2 * c.skew;
  Buffer in(sent.size());
  std::unique_ptr<Buffer> apart;
  if (!c.in_place)
    apart = std::make_unique<Buffer>(std::max<size_t>(1, (skew + extent.recv) * size()));
  Buffer& out = c.in_place ? in : *apart;
  ncclRedOp_t op = BuiltIn(op_);
  bool fine = true;
  const auto ok = [&](ncclResult_t result) {
    EXPECT_EQ(Explain(result, comm), "");
    fine &= result == ncclSuccess;
    return fine;
  };
  uint64_t scalar = scalars_[static_cast<size_t>(rank)];
  if (op_ == Op::kPreMulSum &&
      !ok(ncclRedOpCreatePreMulSum(&op, &scalar, type_, ncclScalarHostImmediate, comm)))
    return false;
  const auto call = [&] {
    ok(Call(c, extent, in.data() + c.skew * size(), out.data() + skew * size(), op, comm, stream));
  };
  const auto check = [&] {
    if (!fine || (c.collective == Collective::kReduce && rank != c.root)) return;
    const std::vector<std::byte> received = out.Read();
    fine &= Matches(received.data() + skew * size(), c.from + extent.recv_at, extent.recv, c, rank);
  };
  if (c.captured) {
    CapturedGraph graph(stream, call);
    for (int i = 0; i < 2 && fine; ++i) {
      in.Write(sent);
      graph.Replay();
      check();
    }
  } else {
    in.Write(sent);
    call();
    if (fine) ok(Finish(comm, stream));
    check();
  }
  if (op_ == Op::kPreMulSum) ok(ncclRedOpDestroy(op, comm));
  return fine;
}

std::vector<std::pair<ncclDataType_t, Op>> TypesAndOperatorsInOrder() {
  std::vector<std::pair<ncclDataType_t, Op>> all;
  for (const ncclDataType_t type : {ncclBfloat16, ncclFloat32, ncclFloat16, ncclFloat64,
                                    ncclFloat8e4m3, ncclFloat8e5m2, ncclInt32, ncclUint8})
    for (int op = 0; op < oracle::kNumOps; ++op) all.emplace_back(type, static_cast<Op>(op));
  return all;
}

namespace {

constexpr std::array kReductions = {Collective::kAllReduce, Collective::kReduceScatter,
                                    Collective::kReduce, Collective::kReduceScatterV};

OrderCase CaseOf(size_t turn, size_t count, int num_ranks) {
  const uint64_t random = Random(turn * 31 + count);
  OrderCase c = {.collective = kReductions[turn % kReductions.size()], .count = count};
  c.from = random % kPattern;
  c.skew = random >> 16 & 7;
  c.root = static_cast<int>((random >> 24) % static_cast<uint64_t>(num_ranks));
  c.in_place = (random >> 32 & 1) != 0;
  c.many = c.collective == Collective::kAllReduce && (random >> 33 & 3) == 0;
  return c;
}

}  // namespace

void CheckOrderOfCounts(ncclComm_t comm, int rank, int num_ranks,
                        const std::vector<size_t>& counts) {
  std::vector<std::unique_ptr<OrderOracle>> oracles;
  for (const auto& [type, op] :
       {std::pair{ncclBfloat16, Op::kSum}, std::pair{ncclFloat32, Op::kSum},
        std::pair{ncclFloat16, Op::kAvg}, std::pair{ncclFloat64, Op::kSum},
        std::pair{ncclFloat8e5m2, Op::kPreMulSum}})
    oracles.push_back(std::make_unique<OrderOracle>(type, op, num_ranks));
  size_t turn = 0;
  for (const size_t count : counts) {
    // Four collectives and five pairs: all meet.
    const OrderOracle& one = *oracles[turn % oracles.size()];
    if (!one.Check(comm, rank, CaseOf(turn, count, num_ranks))) return;
    ++turn;
  }
}

void CheckOrderOfTypes(ncclComm_t comm, int rank, int num_ranks, bool captured) {
  cudaStream_t stream = UsualStream();
  if (captured) {
    EXPECT_NCCL(StreamCreate(&stream));
  }
  size_t turn = 0;
  for (const auto& [type, op] : TypesAndOperatorsInOrder()) {
    const OrderOracle one(type, op, num_ranks);
    bool fine = true;
    for (const Collective collective : kReductions) {
      for (const size_t count : {size_t{5}, size_t{700}, size_t{20011}}) {
        if (captured && count == 700) continue;
        OrderCase c = CaseOf(++turn, count, num_ranks);
        c.collective = collective;
        c.many &= collective == Collective::kAllReduce;
        c.captured = captured;
        fine = fine && one.Check(comm, rank, c, stream);
      }
    }
    if (!fine) break;
  }
  if (captured) {
    EXPECT_NCCL(StreamDestroy(stream));
  }
}

}  // namespace tutti::testing
