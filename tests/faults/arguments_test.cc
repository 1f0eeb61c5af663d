// Calls that are wrong by themselves: each is refused with a sentence, and the communicator is as
// good as before.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "conformance/cases.h"
#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

// One rank: whatever is accepted by mistake ends at once.
class ArgumentsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NCCL(ncclCommInitAll(&comm_, 1, nullptr)); }
  void TearDown() override {
    float one = 1;
    EXPECT_NCCL(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, comm_, nullptr));
    EXPECT_NCCL(ncclCommDestroy(comm_));
  }
  ncclResult_t AllReduce(size_t count, ncclDataType_t type, ncclRedOp_t op) {
    return ncclAllReduce(in_.data(), out_.data(), count, type, op, comm_, nullptr);
  }

  ncclComm_t comm_ = nullptr;
  std::array<float, 64> in_{};
  std::array<float, 64> out_{};
};

#define EXPECT_REFUSED(code, call)                         \
  do {                                                     \
    EXPECT_EQ(call, code) << #call;                        \
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(" ")) \
        << #call << " was refused without a sentence";     \
  } while (false)

TEST_F(ArgumentsTest, CommunicatorsThatAreNone) {
  std::array<uint64_t, 64> foreign{};
  ncclComm_t dead = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&dead, 1, nullptr));
  ASSERT_NCCL(ncclCommDestroy(dead));
  for (ncclComm_t bad : {ncclComm_t{nullptr}, reinterpret_cast<ncclComm_t>(foreign.data()), dead}) {
    int number = 0;
    ncclResult_t state;
    ncclComm_t child = nullptr;
    ncclUniqueId id;
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclAllReduce(in_.data(), out_.data(), 1, ncclFloat32, ncclSum, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclReduce(in_.data(), out_.data(), 1, ncclFloat32, ncclSum, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclBroadcast(in_.data(), out_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclBcast(out_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclAllGather(in_.data(), out_.data(), 1, ncclFloat32, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclReduceScatter(in_.data(), out_.data(), 1, ncclFloat32,
                                                          ncclSum, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclAlltoAll(in_.data(), out_.data(), 1, ncclFloat32, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclGather(in_.data(), out_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclScatter(in_.data(), out_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclSend(in_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclRecv(out_.data(), 1, ncclFloat32, 0, bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, tuttiBarrier(bad, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommCount(bad, &number));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommUserRank(bad, &number));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommGetAsyncError(bad, &state));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommSplit(bad, 0, 0, &child, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommGetUniqueId(bad, &id));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommFinalize(bad));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommRevoke(bad, NCCL_REVOKE_DEFAULT));
    if (bad == nullptr) continue;
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommDestroy(bad));
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommAbort(bad));
  }
}

TEST_F(ArgumentsTest, TypesOperatorsAndCounts) {
  for (const int type : {-1, static_cast<int>(ncclNumTypes), 99}) {
    EXPECT_REFUSED(ncclInvalidArgument, AllReduce(1, static_cast<ncclDataType_t>(type), ncclSum));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(fmt::format("{}", type)));
  }
  for (const int op : {-1, static_cast<int>(ncclNumOps), 1000}) {
    EXPECT_REFUSED(ncclInvalidArgument, AllReduce(1, ncclFloat32, static_cast<ncclRedOp_t>(op)));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(fmt::format("{}", op)));
  }
  const size_t endless = std::numeric_limits<size_t>::max();
  EXPECT_REFUSED(ncclInvalidArgument, AllReduce(endless, ncclFloat32, ncclSum));
  EXPECT_REFUSED(ncclInvalidArgument, AllReduce(endless / 4, ncclFloat64, ncclSum));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllGather(in_.data(), out_.data(), endless, ncclInt8, comm_, nullptr));
}

TEST_F(ArgumentsTest, RootsAndPeers) {
  for (const int root : {-1, 1, 1 << 20}) {
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclBroadcast(in_.data(), out_.data(), 1, ncclFloat32, root, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclReduce(in_.data(), out_.data(), 1, ncclFloat32, ncclSum,
                                                   root, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclGather(in_.data(), out_.data(), 1, ncclFloat32, root, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclScatter(in_.data(), out_.data(), 1, ncclFloat32, root, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument, ncclSend(in_.data(), 1, ncclFloat32, root, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclRecv(out_.data(), 1, ncclFloat32, root, comm_, nullptr));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(fmt::format("{}", root)));
  }
  EXPECT_NE(ncclSend(in_.data(), 1, ncclFloat32, 0, comm_, nullptr), ncclSuccess)
      << "a send to itself without a receive in the same group";
  for (const auto& [count, type] :
       {std::pair(size_t{2}, ncclInt32), std::pair(size_t{1}, ncclInt64),
        std::pair(size_t{3}, ncclFloat32)}) {
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(in_.data(), 2, ncclFloat32, 0, comm_, nullptr));
    EXPECT_NCCL(ncclRecv(out_.data(), count, type, 0, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidUsage, ncclGroupEnd());
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("sends itself 2 elements of float32"));
  }
}

// What arithmetic shows to be impossible is refused, and not tried.
TEST_F(ArgumentsTest, CountsBeyondAnAddressSpace) {
  for (const size_t bytes : {size_t{1} << 50, size_t{1} << 48, (size_t{1} << 48) - 4}) {
    const size_t count = bytes / sizeof(float);
    EXPECT_REFUSED(ncclInvalidArgument, AllReduce(count, ncclFloat32, ncclSum));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclBroadcast(in_.data(), out_.data(), count, ncclFloat32, 0, comm_, nullptr));
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclSend(in_.data(), count, ncclFloat32, 0, comm_, nullptr));
  }
  // It would end beyond the last address.
  auto* const last = reinterpret_cast<float*>(~uintptr_t{0} - 63);
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllReduce(last, last, 32, ncclFloat32, ncclSum, comm_, nullptr));
  void* handle = nullptr;
  ncclWindow_t window = nullptr;
  const size_t endless = std::numeric_limits<size_t>::max();
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommRegister(comm_, in_.data(), endless, &handle));
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, 4096));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclCommWindowRegister(comm_, memory, endless, &window, NCCL_WIN_DEFAULT));
  EXPECT_NCCL(ncclMemFree(memory));
}

// Buffers need not be aligned, as the header says.
TEST_F(ArgumentsTest, BuffersAtOddAddresses) {
  std::array<char, 4 * 37 + 1> in{}, out{};
  for (size_t i = 0; i < 37; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(in.data() + 1 + 4 * i, &value, sizeof(value));
  }
  EXPECT_NCCL(
      ncclAllReduce(in.data() + 1, out.data() + 1, 37, ncclFloat32, ncclSum, comm_, nullptr));
  EXPECT_EQ(in, out);
}

TEST_F(ArgumentsTest, ConfigsOfNoRelease) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  for (const size_t size :
       {size_t{0}, size_t{8}, size_t{1} << 20, std::numeric_limits<size_t>::max()}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = size;
    ncclComm_t comm = nullptr;
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  }
}

// A setting that cannot be followed is named, and also where the job could do without it.
TEST(BadSettingsTest, AreNamed) {
  const auto refused = [](const char* variable, const char* value) {
    const Environment bad(Environment::Settings{{variable, value}});
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result == ncclSuccess) result = ncclCommInitRank(&comm, 1, id, 0);
    EXPECT_TRUE(result == ncclInvalidUsage || result == ncclInvalidArgument) << variable << result;
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(variable));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(value));
    EXPECT_NCCL(ncclCommAbort(comm));  // null is allowed
  };
  refused("NCCL_OOB_NET_IFNAME", "nonsense7");
  refused("NCCL_SOCKET_IFNAME", "nonsense7");
  refused("NCCL_COMM_ID", "nonsense");
  refused("NCCL_NET", "nonsense");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the program
TEST_F(ArgumentsTest, MoreMemoryThanThereIs) {
  const void* send = in_.data();
  void* recv = out_.data();
  size_t count = 1;
  for (const size_t buffers : {size_t{1} << 56, size_t{1} << 61}) {
    EXPECT_REFUSED(ncclSystemError, tuttiAllReduceMany(&send, &recv, &count, buffers, ncclFloat32,
                                                       ncclSum, comm_, nullptr));
  }
}

TEST(MemoryTest, AnExchangeInPlaceSaysWhatItLacks) {
  ThreadWorld world(2, {{"NCCL_SHM_DISABLE", "1"}});
  ASSERT_TRUE(world.ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight = {.rlim_cur = rlim_t{1} << 40, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  static std::array<float, 4> data;  // far from the end of the address space, unlike a stack
  RunRankThreads(2, [&](int rank) {
    float* const mine = &data[static_cast<size_t>(2 * rank)];
    const size_t count = size_t{1} << 38;
    EXPECT_EQ(ncclAlltoAll(mine, mine, count, ncclFloat32, world.comm(rank), nullptr),
              ncclSystemError);
    EXPECT_THAT(ncclGetLastError(world.comm(rank)),
                HasSubstr(fmt::format("{} bytes", 2 * 4 * count)));
  });
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}
#endif

TEST_F(ArgumentsTest, NullPointers) {
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllReduce(nullptr, out_.data(), 1, ncclFloat32, ncclSum, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllReduce(in_.data(), nullptr, 1, ncclFloat32, ncclSum, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclReduce(in_.data(), nullptr, 1, ncclFloat32, ncclSum, 0, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclGather(in_.data(), nullptr, 1, ncclFloat32, 0, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclScatter(nullptr, out_.data(), 1, ncclFloat32, 0, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiAllGatherV(in_.data(), 1, out_.data(), nullptr, nullptr,
                                                      ncclFloat32, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiGatherV(in_.data(), 1, out_.data(), nullptr, nullptr,
                                                   ncclFloat32, 0, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiScatterV(in_.data(), nullptr, nullptr, out_.data(), 1,
                                                    ncclFloat32, 0, comm_, nullptr));
  EXPECT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommCount(comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommGetAsyncError(comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetUniqueId(nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetVersion(nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitAll(nullptr, 1, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclMemAlloc(nullptr, 10));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiStreamCreate(nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommSplit(comm_, 0, 0, nullptr, nullptr));
  ncclRedOp_t op;
  float scalar = 1;
  EXPECT_REFUSED(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32,
                                                               ncclScalarHostImmediate, comm_));
  EXPECT_REFUSED(ncclInvalidArgument, ncclRedOpCreatePreMulSum(nullptr, &scalar, ncclFloat32,
                                                               ncclScalarHostImmediate, comm_));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32,
                                          std::bit_cast<ncclScalarResidence_t>(9), comm_));
}

TEST_F(ArgumentsTest, OperatorsOfAnotherTypeOrCommunicator) {
  ncclComm_t other = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&other, 1, nullptr));
  float scalar = 2;
  ncclRedOp_t op;
  ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm_));
  EXPECT_REFUSED(ncclInvalidArgument, AllReduce(1, ncclInt32, op));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllReduce(in_.data(), out_.data(), 1, ncclFloat32, op, other, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclRedOpDestroy(op, other));
  EXPECT_REFUSED(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm_));
  EXPECT_NCCL(ncclRedOpDestroy(op, comm_));
  EXPECT_REFUSED(ncclInvalidArgument, ncclRedOpDestroy(op, comm_));
  EXPECT_NCCL(ncclCommDestroy(other));
}

TEST_F(ArgumentsTest, Streams) {
  std::array<uint64_t, 16> foreign{};
  auto* const bad = reinterpret_cast<cudaStream_t>(foreign.data());
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclAllReduce(in_.data(), out_.data(), 1, ncclFloat32, ncclSum, comm_, bad));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiStreamSynchronize(bad));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiStreamDestroy(bad));
}

TEST_F(ArgumentsTest, RanksAndNumbersOfRanks) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm = comm_;
  for (const auto& [num_ranks, rank] : {std::pair{0, 0}, {-1, 0}, {2, 2}, {2, -1}, {1, 1}}) {
    comm = comm_;
    EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitRank(&comm, num_ranks, id, rank));
    EXPECT_EQ(comm, nullptr);
  }
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitRank(nullptr, 1, id, 0));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitAll(&comm, 0, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 2, 0, 3, &id, nullptr));
  std::array<ncclComm_t, 2> two{};
  const std::array<int, 2> same = {3, 3};
  EXPECT_NE(ncclCommInitAll(two.data(), 2, same.data()), ncclSuccess);
  int self = 0;
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclCommShrink(comm_, &self, 1, &comm, nullptr, NCCL_SHRINK_DEFAULT));
  int nobody = 7;
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclCommShrink(comm_, &nobody, 1, &comm, nullptr, NCCL_SHRINK_DEFAULT));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommGrow(comm_, 1, nullptr, -1, &comm, nullptr));
}

TEST_F(ArgumentsTest, CountsPerRank) {
  const std::array<size_t, 1> two = {2};
  const std::array<size_t, 1> three = {3};
  EXPECT_REFUSED(ncclInvalidArgument, tuttiAllGatherV(in_.data(), 3, out_.data(), two.data(),
                                                      nullptr, ncclFloat32, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 tuttiAlltoAllV(in_.data(), two.data(), nullptr, out_.data(), three.data(), nullptr,
                                ncclFloat32, comm_, nullptr));
  const auto gather = [&](const void* send, size_t count, void* recv, const size_t* counts,
                          int root) {
    return tuttiGatherV(send, count, recv, counts, nullptr, ncclFloat32, root, comm_, nullptr);
  };
  EXPECT_NCCL(gather(in_.data(), 2, out_.data(), two.data(), 0));
  EXPECT_REFUSED(ncclInvalidArgument, gather(in_.data(), 2, out_.data(), three.data(), 0));
  EXPECT_REFUSED(ncclInvalidArgument, gather(in_.data(), 2, out_.data(), two.data(), 1));
  EXPECT_REFUSED(ncclInvalidArgument, gather(nullptr, 2, out_.data(), two.data(), 0));
  EXPECT_REFUSED(ncclInvalidArgument, gather(in_.data(), 2, nullptr, two.data(), 0));
  EXPECT_REFUSED(ncclInvalidArgument, tuttiScatterV(in_.data(), three.data(), nullptr, out_.data(),
                                                    2, ncclFloat32, 0, comm_, nullptr));
  const std::array<size_t, 1> endless = {std::numeric_limits<size_t>::max()};
  EXPECT_REFUSED(ncclInvalidArgument, tuttiReduceScatterV(in_.data(), out_.data(), endless.data(),
                                                          ncclFloat32, ncclSum, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 gather(in_.data(), endless[0], out_.data(), endless.data(), 0));
}

TEST_F(ArgumentsTest, Windows) {
  void* memory = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 8192), ncclSuccess);
  auto* const bytes = static_cast<char*>(memory);
  ncclWindow_t window = nullptr, other = nullptr;
  void* pointer = nullptr;
  const auto reg = [&](void* buffer, size_t size, ncclWindow_t* out, int flags) {
    return ncclCommWindowRegister(comm_, buffer, size, out, flags);
  };
  EXPECT_REFUSED(ncclInvalidArgument, reg(memory, 4096, nullptr, 0));
  EXPECT_REFUSED(ncclInvalidArgument, reg(memory, 0, &window, 0));
  EXPECT_REFUSED(ncclInvalidArgument, reg(nullptr, 0, &window, 0));
  EXPECT_REFUSED(ncclInvalidArgument, reg(memory, 8193, &window, 0));
  alignas(4096) std::array<char, 4096> foreign;
  // Memory that others cannot map is no mistake: there is no window.
  EXPECT_EQ(reg(foreign.data(), foreign.size(), &window, 0), ncclSuccess);
  EXPECT_EQ(window, nullptr);
  EXPECT_REFUSED(ncclInvalidArgument, reg(bytes + 8, 4096, &window, 0));
  EXPECT_REFUSED(ncclInvalidArgument, reg(memory, 4096, &window, 0x100));
  EXPECT_EQ(window, nullptr);
  ASSERT_EQ(reg(memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  ASSERT_EQ(reg(bytes + 4096, 4096, &other, NCCL_WIN_DEFAULT), ncclSuccess);
  EXPECT_NE(window, other);
  EXPECT_EQ(ncclWinGetUserPtr(comm_, other, &pointer), ncclSuccess);
  EXPECT_EQ(pointer, bytes + 4096);
  EXPECT_REFUSED(ncclInvalidArgument, ncclWinGetUserPtr(comm_, nullptr, &pointer));
  EXPECT_EQ(ncclCommWindowDeregister(comm_, nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommWindowDeregister(comm_, window), ncclSuccess);
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommWindowDeregister(comm_, window));
  EXPECT_REFUSED(ncclInvalidArgument, ncclWinGetUserPtr(comm_, window, &pointer));
  // `other` goes with the communicator.
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
}

TEST_F(ArgumentsTest, AddressesOfWindows) {
  ncclWindow_t window = nullptr;
  ASSERT_NCCL(ncclCommWindowRegister(comm_, nullptr, 8192, &window, NCCL_WIN_DEFAULT));
  void* pointer = this;
  const auto foreign = reinterpret_cast<ncclWindow_t>(in_.data());
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(foreign, 0, 0, &pointer));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 0, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 8192, 0, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, SIZE_MAX, 0, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 1, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, -1, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 8192, 0, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, 1, &pointer));
  EXPECT_EQ(ncclGetLsaDevicePointer(window, 8191, 0, &pointer), ncclSuccess);
  EXPECT_NE(pointer, nullptr);
  EXPECT_EQ(ncclGetLsaMultimemDevicePointer(window, 0, &pointer), ncclSuccess);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaMultimemDevicePointer(window, 8192, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetMultimemDevicePointer(window, 0, {}, &pointer));
  EXPECT_REFUSED(ncclInvalidUsage, ncclGetMultimemDevicePointer(window, 0, {this}, &pointer));

  ncclComm_t other = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&other, 1, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclWinGetUserPtr(other, window, &pointer));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommWindowDeregister(other, window));
  EXPECT_NCCL(ncclCommDestroy(other));
  EXPECT_NCCL(ncclCommWindowDeregister(comm_, window));
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 0, &pointer));
}

TEST_F(ArgumentsTest, OneSidedCalls) {
  EXPECT_REFUSED(ncclInvalidUsage, ncclSignal(0, 0, 0, 0, comm_, nullptr));
  ncclWindow_t window = nullptr;
  ASSERT_NCCL(ncclCommWindowRegister(comm_, nullptr, 256, &window, NCCL_WIN_DEFAULT));
  struct Bad {
    int peer = 0, signal = 0, context = 0;
    unsigned flags = 0;
    size_t count = 1, offset = 0;
  };
  for (const Bad& bad :
       {Bad{.peer = 1}, Bad{.peer = -1}, Bad{.signal = 1}, Bad{.context = 1}, Bad{.flags = 1},
        Bad{.offset = 253}, Bad{.count = 65}, Bad{.offset = SIZE_MAX}, Bad{.count = SIZE_MAX},
        Bad{.count = SIZE_MAX / 4 + 2}}) {
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclPutSignal(in_.data(), bad.count, ncclFloat32, bad.peer, window, bad.offset,
                                 bad.signal, bad.context, bad.flags, comm_, nullptr));
    if (bad.count != 1 || bad.offset != 0) continue;
    EXPECT_REFUSED(ncclInvalidArgument,
                   ncclSignal(bad.peer, bad.signal, bad.context, bad.flags, comm_, nullptr));
    ncclWaitSignalDesc_t desc = {1, bad.peer, bad.signal, bad.context};
    if (bad.flags == 0)
      EXPECT_REFUSED(ncclInvalidArgument, ncclWaitSignal(1, &desc, comm_, nullptr));
  }
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclPutSignal(nullptr, 1, ncclFloat32, 0, window, 0, 0, 0, 0, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclPutSignal(in_.data(), 1, ncclFloat32, 0, nullptr, 0, 0, 0, 0, comm_, nullptr));
  ncclWaitSignalDesc_t desc = {-1, 0, 0, 0};
  EXPECT_REFUSED(ncclInvalidArgument, ncclWaitSignal(1, &desc, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclWaitSignal(1, nullptr, comm_, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclWaitSignal(-1, &desc, comm_, nullptr));

  ncclComm_t other = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&other, 1, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument,
                 ncclPutSignal(in_.data(), 1, ncclFloat32, 0, window, 0, 0, 0, 0, other, nullptr));
  EXPECT_NCCL(ncclCommDestroy(other));

  EXPECT_NCCL(ncclPutSignal(in_.data(), 64, ncclFloat32, 0, window, 0, 0, 0, 0, comm_, nullptr));
  EXPECT_NCCL(ncclPutSignal(nullptr, 0, ncclFloat32, 0, window, 256, 0, 0, 0, comm_, nullptr));
  desc.opCnt = 2;
  EXPECT_NCCL(ncclWaitSignal(1, &desc, comm_, nullptr));
  EXPECT_NCCL(ncclCommWindowDeregister(comm_, window));
}

TEST_F(ArgumentsTest, SuspendAndResume) {
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommSuspend(comm_, 0));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommSuspend(comm_, NCCL_SUSPEND_MEM | 2));
  EXPECT_REFUSED(ncclInvalidUsage, ncclCommResume(comm_));
}

TEST_F(ArgumentsTest, DeviceInterfaceSaysWhatThereIs) {
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  EXPECT_EQ(ncclCommQueryProperties(comm_, &properties), ncclSuccess);
  EXPECT_EQ(properties.rank, 0);
  EXPECT_EQ(properties.nRanks, 1);
  EXPECT_TRUE(properties.deviceApiSupport);
  // An older header's struct ends earlier; nothing is written behind it.
  properties.size = offsetof(ncclCommProperties_t, nRanks);
  properties.nRanks = 77;
  EXPECT_EQ(ncclCommQueryProperties(comm_, &properties), ncclSuccess);
  EXPECT_EQ(properties.nRanks, 77);
  properties.magic = 0;
  EXPECT_REFUSED(ncclInvalidUsage, ncclCommQueryProperties(comm_, &properties));
  // One of a later release with more in it, and one with as much.
  properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  properties.version = NCCL_VERSION_CODE + 100;
  EXPECT_EQ(ncclCommQueryProperties(comm_, &properties), ncclSuccess);
  properties.size += sizeof(int);
  EXPECT_REFUSED(ncclInvalidUsage, ncclCommQueryProperties(comm_, &properties));
  EXPECT_REFUSED(ncclInvalidArgument, ncclCommQueryProperties(comm_, nullptr));

  EXPECT_EQ(ncclTeamWorld(comm_).nRanks, 1);
  EXPECT_EQ(ncclTeamLsa(comm_).stride, 1);
  EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamCft(comm_, NCCL_CFT_TEAM_FLAT).nRanks, 0);
  EXPECT_EQ(ncclTeamRankToWorld(comm_, ncclTeam_t{4, 1, 2}, 3), 4);
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 12), 6);
  void* pointer = this;
  EXPECT_REFUSED(ncclInvalidArgument, ncclGetPeerDevicePointer(nullptr, 0, 0, &pointer));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_REFUSED(ncclInvalidArgument, ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr));
}

TEST_F(ArgumentsTest, DeviceCommunicators) {
  ncclDevComm_t devcomm;
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  EXPECT_REFUSED(ncclInvalidArgument, ncclDevCommCreate(nullptr, &requirements, &devcomm));
  EXPECT_REFUSED(ncclInvalidArgument, ncclDevCommCreate(comm_, nullptr, &devcomm));
  EXPECT_REFUSED(ncclInvalidArgument, ncclDevCommCreate(comm_, &requirements, nullptr));
  EXPECT_REFUSED(ncclInvalidArgument, ncclDevCommDestroy(comm_, nullptr));
  requirements.version = NCCL_VERSION_CODE + 1;
  EXPECT_REFUSED(ncclInvalidUsage, ncclDevCommCreate(comm_, &requirements, &devcomm));
}

TEST_F(ArgumentsTest, Encryption) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclSetEncryption(&config), ncclSuccess);
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  EXPECT_REFUSED(ncclInvalidArgument, ncclSetEncryption(&config));
  config.psk = "31 bytes, which are not enough.";
  EXPECT_REFUSED(ncclInvalidArgument, ncclSetEncryption(&config));
  config.psk = "32 bytes, which are just enough.";
  EXPECT_EQ(ncclSetEncryption(&config), ncclSuccess);
  config.mode = 2;
  EXPECT_REFUSED(ncclInvalidArgument, ncclSetEncryption(&config));
  config.magic = 0;
  EXPECT_REFUSED(ncclInvalidArgument, ncclSetEncryption(&config));
  EXPECT_EQ(ncclSetEncryption(nullptr), ncclSuccess);
}

TEST_F(ArgumentsTest, ConfigOfOneCall) {
  const auto all_reduce = [&](const ncclCollConfig_t* config) {
    return ncclAllReduceConfig(in_.data(), out_.data(), 1, ncclFloat32, ncclSum, comm_, nullptr,
                               config);
  };
  in_[0] = 3;
  EXPECT_EQ(all_reduce(nullptr), ncclSuccess);
  EXPECT_EQ(out_[0], 3);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  ncclConfigExt_t of_a_vendor = {};
  of_a_vendor.key.vendorId = 4711;
  config.ext = &of_a_vendor;
  config.userProfilerTag = 5;
  config.algSelection = "nvls";
  EXPECT_REFUSED(ncclInvalidUsage, all_reduce(&config));
  config.forceAlgSelection = 0;
  out_[0] = 0;
  EXPECT_EQ(all_reduce(&config), ncclSuccess);
  EXPECT_EQ(out_[0], 3);
  config.algSelection = "fastest";
  EXPECT_REFUSED(ncclInvalidUsage, all_reduce(&config));
  config.algSelection = nullptr;

  of_a_vendor.key.vendorId = TUTTI_VENDOR_ID;
  for (const auto& [option, value] : {std::pair{1, 2}, {2, 0}, {3, 1}}) {
    of_a_vendor.key.optionId = option;
    of_a_vendor.val.i = value;
    EXPECT_REFUSED(ncclInvalidArgument, all_reduce(&config));
  }

  of_a_vendor.next = &of_a_vendor;
  EXPECT_REFUSED(ncclInvalidArgument, all_reduce(&config));
  const auto wrong = [&](auto change) {
    ncclCollConfig_t changed = NCCL_COLLCONFIG_INITIALIZER;
    change(changed);
    return all_reduce(&changed);
  };
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.magic = 0; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.size = 16; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.minCTAs = 0; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.minCTAs = 4, c.maxCTAs = 3; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.cgaClusterSize = 9; }));
  EXPECT_REFUSED(ncclInvalidArgument,
                 wrong([](auto& c) { c.userProfilerTag = uint64_t{1} << 63; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.forceAlgSelection = 2; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) { c.CTAPolicy = 4; }));
  EXPECT_REFUSED(ncclInvalidArgument, wrong([](auto& c) {
                   c.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(&c);
                 }));
}

// What is found wrong only when all of a group is known stops the operations of other communicators
// too, in whatever order they were called.
TEST(GroupArgumentsTest, WithAWrongMessageIssuesNothingAnywhere) {
  for (const bool wrong_first : {true, false}) {
    ThreadWorld world(2);
    ASSERT_TRUE(world.ok());
    ncclComm_t alone = nullptr;
    ASSERT_NCCL(ncclCommInitAll(&alone, 1, nullptr));
    float data = 1, sum = 0, lost = 0;
    const auto wrong = [&] { EXPECT_NCCL(ncclRecv(&lost, 1, ncclFloat32, 0, alone, nullptr)); };
    EXPECT_NCCL(ncclGroupStart());
    if (wrong_first) wrong();
    EXPECT_NCCL(ncclAllReduce(&data, &sum, 1, ncclFloat32, ncclSum, world.comm(0), nullptr));
    if (!wrong_first) wrong();
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    // Had the refused AllReduce been issued, this one would be the second of rank 0.
    RunRankThreads(2, [&](int rank) {
      int number = 1;
      EXPECT_NCCL(
          ncclAllReduce(&number, &number, 1, ncclInt32, ncclSum, world.comm(rank), nullptr));
      EXPECT_EQ(number, 2);
    });
    EXPECT_NCCL(ncclCommDestroy(alone));
  }
}

TEST(GroupArgumentsTest, HoldsOperationsOrMakesCommunicatorsAndNotBoth) {
  ncclComm_t comm = nullptr, child = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  float data = 1, sum = 0;
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&data, &sum, 1, ncclFloat32, ncclSum, comm, nullptr));
  EXPECT_NCCL(ncclCommSplit(comm, 0, 0, &child, nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(sum, 0);
  EXPECT_NCCL(ncclCommAbort(child));  // null is allowed
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(LastErrorTest, BelongsToTheThread) {
  EXPECT_EQ(ncclCommCount(nullptr, nullptr), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclCommCount"));
  RunRankThreads(1, [](int) { EXPECT_STREQ(ncclGetLastError(nullptr), ""); });
}

}  // namespace
}  // namespace tutti::testing
