// Tests the results of the operations, end to end, against values computed here element by element.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "base/float_formats.h"
#include "coordinator/performer.h"
#include "coordinator/staging.h"
#include "coordinator/testing/adasum_oracle.h"
#include "coordinator/testing/job.h"
#include "testing/threads.h"

namespace tutti::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An element of any type, as a double.
double Read(tuttiElementType_t type, const std::byte* at) {
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (type) {
    case tuttiUint8:
    case tuttiBool:
      return as(uint8_t{});
    case tuttiInt8:
      return as(int8_t{});
    case tuttiUint16:
      return as(uint16_t{});
    case tuttiInt16:
      return as(int16_t{});
    case tuttiInt32:
      return as(int32_t{});
    case tuttiInt64:
      return static_cast<double>(as(int64_t{}));
    case tuttiFloat16:
      return Float16::ToDouble(as(uint16_t{}));
    case tuttiFloat32:
      return as(float{});
    case tuttiFloat64:
      return as(double{});
    case tuttiBfloat16:
      return Bfloat16::ToDouble(as(uint16_t{}));
    case tuttiUint32:
      return as(uint32_t{});
    case tuttiUint64:
      return static_cast<double>(as(uint64_t{}));
    case tuttiFloat8e4m3:
      return Float8e4m3::ToDouble(as(uint8_t{}));
    case tuttiFloat8e5m2:
      return Float8e5m2::ToDouble(as(uint8_t{}));
  }
  return NAN;
}

void Write(tuttiElementType_t type, double value, std::byte* at) {
  const auto put = [&](auto element) { std::memcpy(at, &element, sizeof(element)); };
  switch (type) {
    case tuttiUint8:
    case tuttiBool:
      return put(static_cast<uint8_t>(value));
    case tuttiInt8:
      return put(static_cast<int8_t>(value));
    case tuttiUint16:
      return put(static_cast<uint16_t>(value));
    case tuttiInt16:
      return put(static_cast<int16_t>(value));
    case tuttiInt32:
      return put(static_cast<int32_t>(value));
    case tuttiInt64:
      return put(static_cast<int64_t>(value));
    case tuttiFloat16:
      return put(Float16::FromDouble(value));
    case tuttiFloat32:
      return put(static_cast<float>(value));
    case tuttiFloat64:
      return put(value);
    case tuttiBfloat16:
      return put(Bfloat16::FromDouble(value));
    case tuttiUint32:
      return put(static_cast<uint32_t>(value));
    case tuttiUint64:
      return put(static_cast<uint64_t>(value));
    case tuttiFloat8e4m3:
      return put(Float8e4m3::FromDouble(value));
    case tuttiFloat8e5m2:
      return put(Float8e5m2::FromDouble(value));
  }
}

bool IsSigned(int type) {
  return type != tuttiUint8 && type != tuttiUint16 && type != tuttiBool && type != tuttiUint32 &&
         type != tuttiUint64;
}

// Small numbers, because no type may round or overflow in sums of three.
double Element(int type, int rank, int i) {
  if (type == tuttiBool) return (rank + i) % 3 == 0 ? 1 : 0;
  const int value = (i + rank) % 4 + 1;
  return IsSigned(type) && (i % 2 == 1) ? -value : value;
}

double Expected(int type, int op, int ranks, int i) {
  std::vector<double> v;
  for (int r = 0; r < ranks; ++r) v.push_back(Element(type, r, i));
  const double sum = std::accumulate(v.begin(), v.end(), 0.0);
  const double product =
      std::accumulate(v.begin(), v.end(), 1.0, [](double a, double b) { return a * b; });
  const double least = *std::min_element(v.begin(), v.end());
  const double most = *std::max_element(v.begin(), v.end());
  if (type == tuttiBool) return op == tuttiReduceSum || op == tuttiReduceMax ? most : least;
  switch (op) {
    case tuttiReduceAverage: {
      const double average = sum / ranks;
      return kElementTypes[static_cast<size_t>(type)].is_float ? average : std::trunc(average);
    }
    case tuttiReduceMin:
      return least;
    case tuttiReduceMax:
      return most;
    case tuttiReduceProduct:
      return product;
    default:
      return sum;
  }
}

constexpr int kReductions[] = {tuttiReduceAverage, tuttiReduceSum, tuttiReduceMin, tuttiReduceMax,
                               tuttiReduceProduct};

TEST(OperationsTest, AllreduceOfEveryTypeAndOperator) {
  constexpr int kRanks = 3;
  constexpr int kCount = 37;
  RunJob(kRanks, [&](TestRank& self) {
    for (int type = 0; type < kNumElementTypes; ++type) {
      const size_t size = kElementTypes[static_cast<size_t>(type)].size;
      const auto t = static_cast<tuttiElementType_t>(type);
      for (const int op : kReductions) {
        std::vector<std::byte> in(kCount * size), out(kCount * size);
        for (int i = 0; i < kCount; ++i) {
          Write(t, Element(type, self.rank(), i), in.data() + static_cast<size_t>(i) * size);
        }
        const std::vector<int64_t> shape = {kCount};
        auto tensor = TestRank::Describe("t", tuttiOpAllreduce, t, shape, in.data(), out.data());
        tensor.op = static_cast<tuttiReduceOp_t>(op);
        const int64_t handle = self.Enqueue(tensor);
        self.Wait(handle);
        self.Release(handle);
        for (int i = 0; i < kCount; ++i) {
          const double got = Read(t, out.data() + static_cast<size_t>(i) * size);
          const double want = Expected(type, op, kRanks, i);
          // An average is rounded to the type, in steps, like everything in the 8-bit floats, the
          // coarsest of which has two bits of mantissa. All else is exact.
          const auto& info = kElementTypes[static_cast<size_t>(type)];
          const bool rounds = info.is_float && (op == tuttiReduceAverage || info.size == 1);
          ASSERT_NEAR(got, want, rounds ? std::abs(want) / 4 : 0)
              << "type " << kElementTypes[static_cast<size_t>(type)].name << " op " << op
              << " element " << i;
        }
      }
    }
  });
}

// Numbers that a multiplication by 1/3 of each, or a factor in float64, would miss by a bit.
TEST(OperationsTest, AveragesDivideTheSumAndFactorsAreOfTheType) {
  constexpr int kCount = 289;
  RunJob(3, [&](TestRank& self) {
    const auto reduce = [&](auto values, tuttiElementType_t type, tuttiReduceOp_t op,
                            double postscale) {
      auto out = values;
      const std::vector<int64_t> shape = {static_cast<int64_t>(values.size())};
      auto tensor =
          TestRank::Describe("t", tuttiOpAllreduce, type, shape, values.data(), out.data());
      tensor.op = op;
      tensor.postscale = postscale;
      const int64_t handle = self.Enqueue(tensor);
      self.Wait(handle);
      self.Release(handle);
      return out;
    };
    std::vector<float> single(kCount);
    std::vector<double> wide(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      single[i] = static_cast<float>(i * 7 % 201) - 100;
      wide[i] = single[i];
    }
    EXPECT_EQ(reduce(single, tuttiFloat32, tuttiReduceAverage, 1), single);
    EXPECT_EQ(reduce(wide, tuttiFloat64, tuttiReduceAverage, 1), wide);
    const std::vector<float> one = {single[3]};  // travels inline the second time
    for (int time = 0; time < 3; ++time)
      EXPECT_EQ(reduce(one, tuttiFloat32, tuttiReduceAverage, 1), one);

    const double factor = 0.1915194503788923;
    std::vector<float> scaled = single;
    for (float& value : scaled) value = 3 * value * static_cast<float>(factor);
    EXPECT_EQ(reduce(single, tuttiFloat32, tuttiReduceSum, factor), scaled);
  });
}

// The smallest float16 would vanish if each rank divided it by the number of ranks.
TEST(OperationsTest, AveragesOfTheSmallestHalvesStay) {
  RunJob(4, [](TestRank& self) {
    for (const bool compressed : {false, true}) {
      const float least = 0x1p-23f;
      std::byte value[4] = {};
      const tuttiElementType_t type = compressed ? tuttiFloat32 : tuttiFloat16;
      Write(type, least, value);
      const std::vector<int64_t> shape = {1};
      auto tensor =
          TestRank::Describe(compressed ? "c" : "h", tuttiOpAllreduce, type, shape, value, value);
      tensor.op = tuttiReduceAverage;
      if (compressed) tensor.compression = tuttiCompressionFloat16;
      const int64_t handle = self.Enqueue(tensor);
      self.Wait(handle);
      self.Release(handle);
      EXPECT_EQ(Read(type, value), least);
    }
  });
}

TEST(OperationsTest, ScaleFactorsCompressionAndFusion) {
  RunJob(2, [](TestRank& self) {
    constexpr int kTensors = 6;
    for (const auto compression :
         {tuttiCompressionNone, tuttiCompressionFloat16, tuttiCompressionBfloat16}) {
      for (const auto type : {tuttiFloat32, tuttiFloat64, tuttiInt32, tuttiInt16}) {
        const size_t size = kElementTypes[type].size;
        std::vector<std::vector<std::byte>> buffers(kTensors);
        std::vector<int64_t> handles;
        for (size_t k = 0; k < kTensors; ++k) {
          const size_t count = 10 + k;
          buffers[k].resize(count * size);
          for (size_t i = 0; i < count; ++i) {
            Write(type, static_cast<double>(i + k) * (self.rank() + 1),
                  buffers[k].data() + i * size);
          }
          const std::vector<int64_t> shape = {static_cast<int64_t>(count)};
          const std::string name = "t" + std::to_string(k);
          auto tensor = TestRank::Describe(name.c_str(), tuttiOpAllreduce, type, shape,
                                           buffers[k].data(), buffers[k].data());
          tensor.prescale = 0.5;
          tensor.postscale = 4;
          tensor.compression = compression;
          handles.push_back(self.Enqueue(tensor));
        }
        for (size_t k = 0; k < kTensors; ++k) {
          self.Wait(handles[k]);
          self.Release(handles[k]);
          for (size_t i = 0; i < 10 + k; ++i) {
            const auto x = static_cast<double>(i + k);
            const bool is_float = type == tuttiFloat32 || type == tuttiFloat64;
            const double want =
                4 * (is_float ? 1.5 * x : std::trunc(0.5 * x) + std::trunc(0.5 * 2 * x));
            ASSERT_EQ(Read(type, buffers[k].data() + i * size), want) << type << ' ' << i;
          }
        }
      }
    }
    EXPECT_LT(self.Counter("batches"), self.Counter("tensors"));
  });
}

TEST(OperationsTest, AllgatherOfUnevenRowsAloneAndFused) {
  RunJob(3, [](TestRank& self) {
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<int32_t>> in(4);
      std::vector<int64_t> handles;
      for (int k = 0; k < 4; ++k) {
        const int rows = self.rank() * (k + 1) + (k == 0 ? 1 : 0);  // rank 0 often brings none
        in[static_cast<size_t>(k)].assign(static_cast<size_t>(rows * 2), self.rank() * 10 + k);
        const std::vector<int64_t> shape = {rows, 2};
        handles.push_back(self.Enqueue(
            TestRank::Describe(("g" + std::to_string(k)).c_str(), tuttiOpAllgather, tuttiInt32,
                               shape, in[static_cast<size_t>(k)].data(), nullptr)));
      }
      for (int k = 0; k < 4; ++k) {
        std::vector<int32_t> want;
        for (int r = 0; r < 3; ++r) {
          want.insert(want.end(), static_cast<size_t>((r * (k + 1) + (k == 0 ? 1 : 0)) * 2),
                      r * 10 + k);
        }
        std::vector<int64_t> shape;
        EXPECT_EQ(self.Take<int32_t>(handles[static_cast<size_t>(k)], &shape), want);
        EXPECT_THAT(shape, ElementsAre(static_cast<int64_t>(want.size() / 2), 2));
      }
    }
  });
}

TEST(OperationsTest, BroadcastFromEveryRoot) {
  RunJob(3, [](TestRank& self) {
    for (int root = 0; root < 3; ++root) {
      std::vector<double> values(5, self.rank());
      const std::vector<int64_t> shape = {5};
      auto tensor = TestRank::Describe("b", tuttiOpBroadcast, tuttiFloat64, shape, values.data(),
                                       values.data());
      tensor.root = root;
      const int64_t handle = self.Enqueue(tensor);
      self.Wait(handle);
      self.Release(handle);
      EXPECT_THAT(values, Each(root));
    }
  });
}

TEST(OperationsTest, AlltoallOfUnevenSplits) {
  RunJob(3, [](TestRank& self) {
    // Rank r sends r + j rows to rank j, and a last row to nobody; every row tells its source and
    // its target.
    std::vector<int16_t> in;
    std::vector<int64_t> splits;
    for (int j = 0; j < 3; ++j) {
      splits.push_back(self.rank() + j);
      for (int row = 0; row < self.rank() + j; ++row) {
        in.push_back(static_cast<int16_t>(self.rank()));
        in.push_back(static_cast<int16_t>(j));
      }
    }
    in.insert(in.end(), 2, int16_t{99});
    const std::vector<int64_t> shape = {static_cast<int64_t>(in.size() / 2), 2};
    auto tensor = TestRank::Describe("a", tuttiOpAlltoall, tuttiInt16, shape, in.data(), nullptr);
    tensor.splits = splits.data();
    tensor.nsplits = 3;
    const int64_t handle = self.Enqueue(tensor);
    self.Wait(handle);
    std::vector<int64_t> received(3);
    int count = 0;
    ASSERT_EQ(tuttiCoordinatorReceivedSplits(self.get(), handle, received.data(), 3, &count),
              ncclSuccess);
    EXPECT_THAT(received, ElementsAre(self.rank(), self.rank() + 1, self.rank() + 2));
    std::vector<int16_t> want;
    for (int r = 0; r < 3; ++r) {
      for (int row = 0; row < r + self.rank(); ++row) {
        want.push_back(static_cast<int16_t>(r));
        want.push_back(static_cast<int16_t>(self.rank()));
      }
    }
    EXPECT_EQ(self.Take<int16_t>(handle), want);
  });
}

TEST(OperationsTest, ReducescatterOfUnevenRows) {
  RunJob(3, [](TestRank& self) {
    for (const auto op : {tuttiReduceSum, tuttiReduceAverage}) {
      for (const double prescale : {1.0, 2.0}) {
        std::vector<float> in(5 * 2);
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i / 2 * 3);
        const std::vector<int64_t> rows = {2, 2, 1};
        const std::vector<int64_t> shape = {5, 2};
        auto tensor =
            TestRank::Describe("r", tuttiOpReducescatter, tuttiFloat32, shape, in.data(), nullptr);
        tensor.op = op;
        tensor.prescale = prescale;
        std::vector<int64_t> got_shape;
        const auto got = self.Take<float>(self.Enqueue(tensor), &got_shape);
        EXPECT_THAT(got_shape, ElementsAre(rows[static_cast<size_t>(self.rank())], 2));
        for (size_t i = 0; i < got.size(); ++i) {
          const auto row = static_cast<float>(self.rank() * 2) + static_cast<float>(i / 2);
          const float scale = static_cast<float>(prescale) * (op == tuttiReduceSum ? 3 : 1);
          EXPECT_FLOAT_EQ(got[i], row * 3 * scale);
        }
      }
    }
  });
}

TEST(OperationsTest, ABarrierHoldsUntilTheLastRankComes) {
  std::atomic<int> arrived{0};
  std::array<std::atomic<pid_t>, 3> threads = {};
  RunJob(3, [&](TestRank& self) {
    threads[static_cast<size_t>(self.rank())] = testing::ThisThread();
    for (int round = 1; round <= 3; ++round) {
      // Each rank comes when the ranks before it wait in the barrier.
      for (int before = 0; before < self.rank(); ++before) {
        while (arrived < 3 * (round - 1) + before + 1) std::this_thread::yield();
        EXPECT_TRUE(testing::AwaitAsleep(threads[static_cast<size_t>(before)]));
      }
      ++arrived;
      const int64_t handle = self.Enqueue(
          TestRank::Describe("barrier", tuttiOpBarrier, tuttiUint8, {}, nullptr, nullptr));
      self.Wait(handle);
      self.Release(handle);
      EXPECT_GE(arrived.load(), 3 * round);
    }
  });
}

TEST(OperationsTest, AdasumOfAnyNumberOfRanksAndEveryFloat) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    RunJob(ranks, [&](TestRank& self) {
      for (const auto type : {tuttiFloat32, tuttiFloat64, tuttiFloat16, tuttiBfloat16}) {
        constexpr size_t kCount = 20;
        const size_t size = kElementTypes[type].size;
        std::vector<std::vector<double>> vectors;
        for (int r = 0; r < ranks; ++r) {
          auto& v = vectors.emplace_back();
          for (size_t i = 0; i < kCount; ++i) {
            // The last rank brings zeros, which must leave the others unchanged.
            v.push_back(r > 0 && r == ranks - 1 ? 0 : std::round(8 * std::sin(double(i) + r)));
          }
        }
        std::vector<std::byte> buffer(kCount * size);
        const auto mine = static_cast<size_t>(self.rank());
        for (size_t i = 0; i < kCount; ++i) Write(type, vectors[mine][i], buffer.data() + i * size);
        self.Allreduce("t", type, buffer.data(), kCount, tuttiReduceAdasum);
        const std::vector<double> want = AdasumOf(vectors);
        for (size_t i = 0; i < kCount; ++i) {
          const double tolerance = type == tuttiFloat64   ? 1e-12
                                   : type == tuttiFloat32 ? 1e-4
                                   : type == tuttiFloat16 ? 0.02
                                                          : 0.15;
          ASSERT_NEAR(Read(type, buffer.data() + i * size), want[i], tolerance)
              << ranks << " ranks, type " << type;
        }
      }
    });
  }
}

// Tensors of a step are combined together, each as if alone.
TEST(OperationsTest, AdasumOfManyTensors) {
  constexpr size_t kTensors = 4;
  RunJob(3, [](TestRank& self) {
    std::vector<std::vector<double>> tensors;
    std::vector<int64_t> handles;
    const auto value = [](int rank, size_t tensor, size_t i) {
      return std::cos(double(i) + rank + 2 * double(tensor));
    };
    const auto length = [](size_t tensor) { return 10 * tensor + 1; };
    for (size_t t = 0; t < kTensors; ++t) {
      auto& tensor = tensors.emplace_back();
      for (size_t i = 0; i < length(t); ++i) tensor.push_back(value(self.rank(), t, i));
    }
    for (size_t t = 0; t < kTensors; ++t) {
      const std::vector<int64_t> shape = {static_cast<int64_t>(length(t))};
      const std::string name = "t" + std::to_string(t);
      auto ask = TestRank::Describe(name.c_str(), tuttiOpAllreduce, tuttiFloat64, shape,
                                    tensors[t].data(), tensors[t].data());
      ask.op = tuttiReduceAdasum;
      handles.push_back(self.Enqueue(ask));
    }
    for (size_t t = 0; t < kTensors; ++t) {
      self.Wait(handles[t]);
      self.Release(handles[t]);
      std::vector<std::vector<double>> vectors(3);
      for (int r = 0; r < 3; ++r) {
        for (size_t i = 0; i < length(t); ++i) {
          vectors[static_cast<size_t>(r)].push_back(value(r, t, i));
        }
      }
      const std::vector<double> want = AdasumOf(std::move(vectors));
      for (size_t i = 0; i < length(t); ++i) ASSERT_NEAR(tensors[t][i], want[i], 1e-12) << t;
    }
  });
}

TEST(OperationsTest, HierarchicalAllreduceAndAllgather) {
  const testing::Environment environment(
      {{"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"}, {"HOROVOD_HIERARCHICAL_ALLGATHER", "1"}});
  RunJob(4, [](TestRank& self) {
    for (const size_t count : {1u, 3u, 8u, 1001u}) {
      for (const int op : kReductions) {
        for (const auto type : {tuttiInt32, tuttiFloat32}) {
          std::vector<std::byte> buffer(count * 4);
          for (size_t i = 0; i < count; ++i) {
            Write(type, Element(type, self.rank(), static_cast<int>(i)), buffer.data() + i * 4);
          }
          const std::vector<int64_t> shape = {static_cast<int64_t>(count)};
          auto tensor =
              TestRank::Describe("t", tuttiOpAllreduce, type, shape, buffer.data(), buffer.data());
          tensor.op = static_cast<tuttiReduceOp_t>(op);
          const int64_t handle = self.Enqueue(tensor);
          self.Wait(handle);
          self.Release(handle);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(Read(type, buffer.data() + i * 4), Expected(type, op, 4, static_cast<int>(i)))
                << count << ' ' << op << ' ' << i;
          }
        }
      }
      std::vector<int32_t> rows(count * static_cast<size_t>(self.rank() + 1), self.rank());
      const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size())};
      const auto got = self.Take<int32_t>(self.Enqueue(
          TestRank::Describe("g", tuttiOpAllgather, tuttiInt32, shape, rows.data(), nullptr)));
      std::vector<int32_t> want;
      for (int r = 0; r < 4; ++r) {
        want.insert(want.end(), count * static_cast<size_t>(r + 1), r);
      }
      EXPECT_EQ(got, want);
    }
  });
}

// Hosts of two ranks average; their averages are combined.
TEST(OperationsTest, HierarchicalAdasum) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"}});
  RunJob(4, [](TestRank& self) {
    constexpr size_t kCount = 101;
    std::vector<std::vector<double>> vectors(4);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < kCount; ++i) {
        vectors[r].push_back(std::cos(static_cast<double>(i * (r + 1))));
      }
    }
    std::vector<double> mine = vectors[static_cast<size_t>(self.rank())];
    self.Allreduce("t", tuttiFloat64, mine.data(), kCount, tuttiReduceAdasum);
    const std::vector<double> want = AdasumOfHosts(vectors, 2);
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(mine[i], want[i], 1e-12) << i;
  });
}

// Every operator's neutral element leaves any operand as it is.
TEST(StagingTest, NeutralElements) {
  for (int type = 0; type < kNumElementTypes; ++type) {
    if (type == tuttiUint16 || type == tuttiInt16 || type == tuttiBool) continue;  // wider wires
    const size_t size = kElementTypes[static_cast<size_t>(type)].size;
    const auto t = static_cast<tuttiElementType_t>(type);
    std::vector<std::byte> neutral(size);
    const auto fill = [&](ReduceOp op) {
      FillNeutral(kElementTypes[static_cast<size_t>(type)].wire, op, neutral.data(), 1);
      return Read(t, neutral.data());
    };
    EXPECT_EQ(fill(ReduceOp::kSum), 0);
    EXPECT_EQ(fill(ReduceOp::kAverage), 0);
    EXPECT_EQ(fill(ReduceOp::kProduct), 1);
    EXPECT_GE(fill(ReduceOp::kMin), 127) << type;
    EXPECT_LE(fill(ReduceOp::kMax), IsSigned(type) ? -128 : 0) << type;
  }
}

TEST(PerformerTest, TheFirstRanksGetTheRestOfTheRows) {
  EXPECT_THAT(ReducescatterRows(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(ReducescatterRows(2, 3), ElementsAre(1, 1, 0));
}

}  // namespace
}  // namespace tutti::coordinator
