#pragma once

// Tests the contract of all Operations, for every implementation, whether its ranks are threads of
// a test or processes of a launcher: hence no GoogleTest here.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "coordinator/adasum.h"
#include "coordinator/operations.h"
#include "coordinator/testing/adasum_oracle.h"

namespace tutti::coordinator {

class OperationsContract {
 public:
  OperationsContract(Operations& operations, int rank, int num_ranks)
      : operations_(operations), rank_(rank), n_(num_ranks) {}

  // Returns "", or the first error on this rank.
  std::string Check() {
    CheckTwoLevels();
    for (int type = 0; type < 12; ++type) {
      for (const ncclRedOp_t op : kOperators) {
        CheckReducescatter(static_cast<ncclDataType_t>(type), op, type % 2 == 0);
      }
    }
    for (const size_t size : kSizes) {
      CheckAlltoall(size);
      CheckSendReceive(size);
      for (int root = 0; root < n_; ++root) CheckBroadcast(size, root);
    }
    CheckScattered();
    Expect(operations_.Barrier(), "a barrier");
    return failure_;
  }

  // Checks the operations that a plugin must have on the memory of GPUs
  // (OperationsGroup::gpu_memory), on memory of the host. Returns as Check does.
  std::string CheckForGpus() {
    for (const ncclDataType_t type : {ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64,
                                      ncclUint64, ncclFloat32, ncclFloat64}) {
      for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin}) {
        CheckAllreduce(type, op, 1000, /*in_place=*/true);
        CheckReducescatter(type, op, /*in_place=*/false);
      }
    }
    for (const size_t size : kSizes) {
      CheckAllgather(size);
      CheckAlltoall(size);
      CheckSendReceive(size);
      for (int root = 0; root < n_; ++root) CheckBroadcast(size, root);
    }
    return failure_;
  }

  // Checks the operations used by hierarchical operations. Returns as Check does.
  std::string CheckTwoLevels() {
    for (int type = 0; type < 12; ++type) {
      for (const ncclRedOp_t op : kOperators) {
        for (const size_t count : {0u, 1u, 7u, 1000u}) {
          CheckAllreduce(static_cast<ncclDataType_t>(type), op, count, count % 2 == 0);
        }
      }
    }
    CheckAllreduce(ncclFloat32, ncclSum, 700'001, true);
    CheckAllreduce(ncclFloat32, ncclSum, 700'001, false);
    for (const size_t size : kSizes) CheckAllgather(size);
    if (operations_.levels() != nullptr) CheckAdasum(*operations_.levels());
    return failure_;
  }

 private:
  static constexpr ncclRedOp_t kOperators[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  static constexpr size_t kSizes[] = {0, 1, 1000, 300'000};

  // Small numbers, exact in every type, as their sums and products are. For averages multiples of
  // n, which are powers of 2 only for such an n, hence the tolerance in Close.
  double ValueOf(int rank, size_t i, ncclRedOp_t op) const {
    const double value = 1 + static_cast<double>((static_cast<size_t>(rank) + i) % 2);
    return op == ncclAvg ? value * n_ : value;
  }
  double Expected(size_t i, ncclRedOp_t op) const {
    double result = ValueOf(0, i, op);
    for (int rank = 1; rank < n_; ++rank) {
      const double value = ValueOf(rank, i, op);
      if (op == ncclProd) result *= value;
      if (op == ncclMax) result = std::max(result, value);
      if (op == ncclMin) result = std::min(result, value);
      if (op == ncclSum || op == ncclAvg) result += value;
    }
    return op == ncclAvg ? result / n_ : result;
  }
  static bool Close(double got, double expected, ncclRedOp_t op) {
    const double tolerance = op == ncclAvg ? 0.13 : 0;  // fp8 has three bits or two
    return std::abs(got - expected) <= tolerance * expected;
  }

  template <typename T>
  static void Write(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof(value));
  }
  template <typename T>
  static double Read(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  template <typename Format>
  static double ReadNarrow(const std::byte* at) {
    typename Format::Bits bits;
    std::memcpy(&bits, at, sizeof(bits));
    return Format::ToFloat(bits);
  }
  static void Put(ncclDataType_t type, std::byte* at, double v) {
    switch (type) {
      case ncclInt8:
        return Write(at, static_cast<int8_t>(v));
      case ncclUint8:
        return Write(at, static_cast<uint8_t>(v));
      case ncclInt32:
        return Write(at, static_cast<int32_t>(v));
      case ncclUint32:
        return Write(at, static_cast<uint32_t>(v));
      case ncclInt64:
        return Write(at, static_cast<int64_t>(v));
      case ncclUint64:
        return Write(at, static_cast<uint64_t>(v));
      case ncclFloat16:
        return Write(at, Float16::FromDouble(v));
      case ncclFloat32:
        return Write(at, static_cast<float>(v));
      case ncclFloat64:
        return Write(at, v);
      case ncclBfloat16:
        return Write(at, Bfloat16::FromDouble(v));
      case ncclFloat8e4m3:
        return Write(at, Float8e4m3::FromDouble(v));
      default:
        return Write(at, Float8e5m2::FromDouble(v));
    }
  }
  static double Get(ncclDataType_t type, const std::byte* at) {
    switch (type) {
      case ncclInt8:
        return Read<int8_t>(at);
      case ncclUint8:
        return Read<uint8_t>(at);
      case ncclInt32:
        return Read<int32_t>(at);
      case ncclUint32:
        return Read<uint32_t>(at);
      case ncclInt64:
        return Read<int64_t>(at);
      case ncclUint64:
        return Read<uint64_t>(at);
      case ncclFloat16:
        return ReadNarrow<Float16>(at);
      case ncclFloat32:
        return Read<float>(at);
      case ncclFloat64:
        return Read<double>(at);
      case ncclBfloat16:
        return ReadNarrow<Bfloat16>(at);
      case ncclFloat8e4m3:
        return ReadNarrow<Float8e4m3>(at);
      default:
        return ReadNarrow<Float8e5m2>(at);
    }
  }
  std::vector<std::byte> Input(ncclDataType_t type, ncclRedOp_t op, size_t count) const {
    const size_t size = WireSize(type);
    std::vector<std::byte> data(count * size);
    for (size_t i = 0; i < count; ++i) Put(type, data.data() + i * size, ValueOf(rank_, i, op));
    return data;
  }

  void CheckAllreduce(ncclDataType_t type, ncclRedOp_t op, size_t count, bool in_place) {
    std::vector<std::byte> in = Input(type, op, count), out(in.size());
    std::byte* const result = in_place ? in.data() : out.data();
    const std::vector<std::byte> before = in;
    Expect(operations_.Allreduce(in.data(), result, count, type, op), "an allreduce");
    CheckReduced(result, 0, count, type, op, "allreduce");
    if (!in_place && in != before) Fail("an allreduce changed its input");
  }
  void CheckReduced(const std::byte* data, size_t from, size_t count, ncclDataType_t type,
                    ncclRedOp_t op, const char* what) {
    for (size_t i = 0; i < count; ++i) {
      const double got = Get(type, data + i * WireSize(type));
      if (Close(got, Expected(from + i, op), op)) continue;
      return Fail(fmt::format("{} of {} elements of type {}, operator {}: [{}] is {} instead of {}",
                              what, count, static_cast<int>(type), static_cast<int>(op), i, got,
                              Expected(from + i, op)));
    }
  }
  void CheckReducescatter(ncclDataType_t type, ncclRedOp_t op, bool in_place) {
    std::vector<size_t> counts;
    for (int r = 0; r < n_; ++r) counts.push_back(static_cast<size_t>(r * 13 + (r == 1 ? 0 : 2)));
    const auto mine = static_cast<size_t>(rank_);
    const size_t before = std::accumulate(counts.begin(), counts.begin() + rank_, size_t{0});
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    std::vector<std::byte> in = Input(type, op, total), out(counts[mine] * WireSize(type));
    std::byte* const result = in_place ? in.data() + before * WireSize(type) : out.data();
    Expect(operations_.Reducescatter(in.data(), result, counts, type, op), "a reducescatter");
    CheckReduced(result, before, counts[mine], type, op, "reducescatter");
  }
  void CheckScattered() {
    if (!operations_.ReducesScattered()) return;
    std::vector<std::byte> in = Input(ncclFloat32, ncclSum, 100);
    Scattered buffers;
    // Other cuts on every rank.
    const auto cut = static_cast<size_t>(10 + rank_);
    buffers.Add(in.data(), in.data(), cut);
    buffers.Add(in.data() + 4 * cut, in.data() + 4 * cut, 100 - cut);
    Expect(operations_.AllreduceScattered(buffers, ncclFloat32, ncclSum), "a scattered allreduce");
    CheckReduced(in.data(), 0, 100, ncclFloat32, ncclSum, "scattered allreduce");
  }

  // Fewer elements than a host has ranks, and pieces that end inside a tensor.
  void CheckAdasum(const TwoLevels& levels) {
    const auto local_size = static_cast<size_t>(levels.shape.local_size);
    for (const std::vector<size_t>& counts : {std::vector<size_t>{1}, {0, 700, 301}}) {
      std::vector<double> mine, want;
      size_t begin = 0;
      for (const size_t count : counts) {
        std::vector<std::vector<double>> all(static_cast<size_t>(n_));
        for (size_t i = begin; i < begin + count; ++i) {
          for (int r = 0; r < n_; ++r) {
            all[static_cast<size_t>(r)].push_back(std::sin(static_cast<double>(i) + r));
          }
          mine.push_back(all[static_cast<size_t>(rank_)].back());
        }
        const std::vector<double> one = AdasumOfHosts(all, local_size);
        want.insert(want.end(), one.begin(), one.end());
        begin += count;
      }
      const HostAdasum<double> work(counts, mine, levels.shape.local_size);
      Expect(AdasumInTwoLevels(levels, work.vectors()), "an Adasum");
      for (size_t i = 0; i < mine.size(); ++i) {
        if (std::abs(mine[i] - want[i]) < 1e-12) continue;
        return Fail(
            fmt::format("an Adasum of hosts: [{}] is {} instead of {}", i, mine[i], want[i]));
      }
    }
  }

  static std::byte Byte(int from, int to, size_t i) {
    return std::byte((static_cast<size_t>(from) * 31 + static_cast<size_t>(to) * 7 + i) & 0xff);
  }
  static std::vector<std::byte> Bytes(int from, int to, size_t size) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = Byte(from, to, i);
    return bytes;
  }
  static void Append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }
  // Uneven, and nothing from the last where there are several.
  size_t Share(size_t size, int rank) const {
    return rank == n_ - 1 && n_ > 1 ? 0 : size * static_cast<size_t>(rank + 1);
  }
  void CheckAllgather(size_t size) {
    std::vector<size_t> bytes;
    std::vector<std::byte> expected;
    for (int r = 0; r < n_; ++r) {
      bytes.push_back(Share(size, r));
      Append(expected, Bytes(r, 0, bytes.back()));
    }
    const auto in = Bytes(rank_, 0, Share(size, rank_));
    std::vector<std::byte> out(expected.size());
    Expect(operations_.Allgather(in.data(), out.data(), bytes), "an allgather");
    if (out != expected) Fail(fmt::format("an allgather of {} bytes came out wrong", size));
  }
  void CheckBroadcast(size_t size, int root) {
    const auto expected = Bytes(root, 3, size);
    std::vector<std::byte> in = expected, out(size);
    const bool in_place = (size + static_cast<size_t>(root)) % 2 == 0;
    if (in_place && rank_ == root) out = in;
    const void* const from = in_place || rank_ != root ? out.data() : in.data();
    Expect(operations_.Broadcast(from, out.data(), size, root), "a broadcast");
    if (out != expected) Fail(fmt::format("a broadcast of {} bytes came out wrong", size));
  }
  size_t PairShare(size_t size, int from, int to) const {
    return (from + to) % 3 == 0 ? 0
                                : size * static_cast<size_t>(from + 1) + static_cast<size_t>(to);
  }
  void CheckAlltoall(size_t size) {
    std::vector<size_t> in_bytes, out_bytes;
    std::vector<std::byte> in, expected;
    for (int r = 0; r < n_; ++r) {
      in_bytes.push_back(PairShare(size, rank_, r));
      out_bytes.push_back(PairShare(size, r, rank_));
      Append(in, Bytes(rank_, r, in_bytes.back()));
      Append(expected, Bytes(r, rank_, out_bytes.back()));
    }
    std::vector<std::byte> out(expected.size());
    Expect(operations_.Alltoall(in.data(), in_bytes, out.data(), out_bytes), "an alltoall");
    if (out != expected) Fail(fmt::format("an alltoall of {} bytes came out wrong", size));
  }
  // Round a ring with lengths of each rank's own, then from the first rank to the last alone.
  void CheckSendReceive(size_t size) {
    if (n_ == 1) return;
    const int to = (rank_ + 1) % n_;
    const int from = (rank_ + n_ - 1) % n_;
    const auto in = Bytes(rank_, to, size + static_cast<size_t>(rank_) + 1);
    std::vector<std::byte> out(size + static_cast<size_t>(from) + 1);
    Expect(operations_.SendReceive(in.data(), in.size(), to, out.data(), out.size(), from),
           "a send with a receive");
    if (out != Bytes(from, rank_, out.size())) Fail("what was received is not what was sent");
    const auto message = Bytes(0, n_ - 1, size + 1);
    std::vector<std::byte> got(size + 1);
    if (rank_ == 0) {
      Expect(operations_.SendReceive(message.data(), message.size(), n_ - 1, nullptr, 0, -1),
             "a send");
    } else if (rank_ == n_ - 1) {
      Expect(operations_.SendReceive(nullptr, 0, -1, got.data(), got.size(), 0), "a receive");
      if (got != message) Fail("what was received alone is not what was sent");
    }
  }

  void Expect(const Status& status, const char* what) {
    if (!status.ok()) Fail(fmt::format("{} failed: {}", what, status.message()));
  }
  void Fail(std::string sentence) {
    if (failure_.empty()) failure_ = fmt::format("rank {} of {}: {}", rank_, n_, sentence);
  }

  Operations& operations_;
  const int rank_;
  const int n_;
  std::string failure_;
};

}  // namespace tutti::coordinator
