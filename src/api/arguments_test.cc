// Calls every function of the API with arguments that are wrong by themselves. Tables name the
// arguments of each function and the code of each mistake. A function without an entry fails the
// last test. The communicator of all calls has one rank.

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "api/context.h"
#include "nccl.h"
#include "nccl_device.h"
#include "nccl_device/later_releases.h"
#include "tutti/host_grid.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

constexpr ncclResult_t kArgument = ncclInvalidArgument;
constexpr ncclResult_t kUsage = ncclInvalidUsage;
constexpr size_t kEndless = std::numeric_limits<size_t>::max();

ncclComm_t MakeComm() {
  ncclComm_t made = nullptr;
  EXPECT_EQ(ncclCommInitAll(&made, 1, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  return made;
}
// Returns a communicator after `end`, which ends the communicator in one way.
ncclComm_t MakeEnded(const std::function<ncclResult_t(ncclComm_t)>& end) {
  const ncclComm_t made = MakeComm();
  EXPECT_EQ(end(made), ncclSuccess);
  return made;
}

// The communicator of all tests.
ncclComm_t TheComm() {
  static const ncclComm_t comm = MakeComm();
  return comm;
}

// Communicators that refuse operations, each for a reason of its own.
ncclComm_t Dead() {
  static const ncclComm_t comm = MakeEnded(ncclCommDestroy);
  return comm;
}
ncclComm_t Revoked() {
  static const ncclComm_t comm =
      MakeEnded([](ncclComm_t made) { return ncclCommRevoke(made, NCCL_REVOKE_DEFAULT); });
  return comm;
}
ncclComm_t Finalized() {
  static const ncclComm_t comm = MakeEnded(ncclCommFinalize);
  return comm;
}

alignas(64) std::array<uint64_t, 64> foreign_memory = {};
alignas(64) std::array<float, 64> in_memory = {}, out_memory = {};
template <class Handle>
Handle Foreign() {
  return reinterpret_cast<Handle>(foreign_memory.data());
}

// ---- Functions with the common arguments of operations

struct Arguments {
  ncclComm_t comm = TheComm();
  const void* send = in_memory.data();
  void* recv = out_memory.data();
  size_t count = 1;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // or a peer
  cudaStream_t stream = nullptr;
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  std::array<size_t, 1> counts = {1};
  const size_t* parts = counts.data();
};

// The arguments that a function has.
enum Has : uint32_t {
  kComm = 1,     // a communicator that exists
  kService = 2,  // the communicator must be in service
  kType = 4,
  kOp = 8,
  kRoot = 16,
  kCount = 32,
  kSend = 64,
  kRecv = 128,
  kStream = 256,
  kConfig = 512,
  kParts = 1024,
  kOperation = kComm | kService | kStream,
  kMove = kOperation | kType | kCount | kSend | kRecv,
};

struct Function {
  const char* name;
  uint32_t has;
  std::function<ncclResult_t(const Arguments&)> call;
  ncclResult_t good = ncclSuccess;  // The result with good arguments.
};

const std::vector<Function>& Operations() {
  using A = const Arguments&;
  static const auto* const functions = new std::vector<Function>{
      {"ncclAllReduce", kMove | kOp,
       [](A a) { return ncclAllReduce(a.send, a.recv, a.count, a.type, a.op, a.comm, a.stream); }},
      {"ncclReduce", kMove | kOp | kRoot,
       [](A a) {
         return ncclReduce(a.send, a.recv, a.count, a.type, a.op, a.root, a.comm, a.stream);
       }},
      {"ncclBroadcast", kMove | kRoot,
       [](A a) {
         return ncclBroadcast(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream);
       }},
      {"ncclBcast", (kMove | kRoot) & ~kSend,
       [](A a) { return ncclBcast(a.recv, a.count, a.type, a.root, a.comm, a.stream); }},
      {"ncclAllGather", kMove,
       [](A a) { return ncclAllGather(a.send, a.recv, a.count, a.type, a.comm, a.stream); }},
      {"ncclReduceScatter", kMove | kOp,
       [](A a) {
         return ncclReduceScatter(a.send, a.recv, a.count, a.type, a.op, a.comm, a.stream);
       }},
      {"ncclAlltoAll", kMove,
       [](A a) { return ncclAlltoAll(a.send, a.recv, a.count, a.type, a.comm, a.stream); }},
      {"ncclGather", kMove | kRoot,
       [](A a) { return ncclGather(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream); }},
      {"ncclScatter", kMove | kRoot,
       [](A a) { return ncclScatter(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream); }},
      {"ncclSend", (kMove | kRoot) & ~kRecv,
       [](A a) { return ncclSend(a.send, a.count, a.type, a.root, a.comm, a.stream); }, kUsage},
      {"ncclRecv", (kMove | kRoot) & ~kSend,
       [](A a) { return ncclRecv(a.recv, a.count, a.type, a.root, a.comm, a.stream); }, kUsage},
      {"ncclAllReduceConfig", kMove | kOp | kConfig,
       [](A a) {
         return ncclAllReduceConfig(a.send, a.recv, a.count, a.type, a.op, a.comm, a.stream,
                                    &a.config);
       }},
      {"ncclReduceConfig", kMove | kOp | kRoot | kConfig,
       [](A a) {
         return ncclReduceConfig(a.send, a.recv, a.count, a.type, a.op, a.root, a.comm, a.stream,
                                 &a.config);
       }},
      {"ncclBroadcastConfig", kMove | kRoot | kConfig,
       [](A a) {
         return ncclBroadcastConfig(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream,
                                    &a.config);
       }},
      {"ncclAllGatherConfig", kMove | kConfig,
       [](A a) {
         return ncclAllGatherConfig(a.send, a.recv, a.count, a.type, a.comm, a.stream, &a.config);
       }},
      {"ncclReduceScatterConfig", kMove | kOp | kConfig,
       [](A a) {
         return ncclReduceScatterConfig(a.send, a.recv, a.count, a.type, a.op, a.comm, a.stream,
                                        &a.config);
       }},
      {"ncclAlltoAllConfig", kMove | kConfig,
       [](A a) {
         return ncclAlltoAllConfig(a.send, a.recv, a.count, a.type, a.comm, a.stream, &a.config);
       }},
      {"ncclGatherConfig", kMove | kRoot | kConfig,
       [](A a) {
         return ncclGatherConfig(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream,
                                 &a.config);
       }},
      {"ncclScatterConfig", kMove | kRoot | kConfig,
       [](A a) {
         return ncclScatterConfig(a.send, a.recv, a.count, a.type, a.root, a.comm, a.stream,
                                  &a.config);
       }},
      {"tuttiAllGatherV", kMove | kParts,
       [](A a) {
         return tuttiAllGatherV(a.send, a.count, a.recv, a.parts, nullptr, a.type, a.comm,
                                a.stream);
       }},
      {"tuttiReduceScatterV", (kMove | kOp | kParts) & ~kCount,
       [](A a) {
         return tuttiReduceScatterV(a.send, a.recv, a.parts, a.type, a.op, a.comm, a.stream);
       }},
      {"tuttiAlltoAllV", (kMove | kParts) & ~kCount,
       [](A a) {
         return tuttiAlltoAllV(a.send, a.counts.data(), nullptr, a.recv, a.parts, nullptr, a.type,
                               a.comm, a.stream);
       }},
      {"tuttiGatherV", kMove | kRoot | kParts,
       [](A a) {
         return tuttiGatherV(a.send, a.count, a.recv, a.parts, nullptr, a.type, a.root, a.comm,
                             a.stream);
       }},
      {"tuttiScatterV", kMove | kRoot | kParts,
       [](A a) {
         return tuttiScatterV(a.send, a.parts, nullptr, a.recv, a.count, a.type, a.root, a.comm,
                              a.stream);
       }},
      {"tuttiAllReduceMany", kMove | kOp,
       [](A a) {
         return tuttiAllReduceMany(&a.send, &a.recv, &a.count, 1, a.type, a.op, a.comm, a.stream);
       }},
      {"tuttiBarrier", kOperation, [](A a) { return tuttiBarrier(a.comm, a.stream); }},
      {"ncclSignal", (kOperation | kRoot) & ~kStream,
       [](A a) { return ncclSignal(a.root, 0, 0, 0, a.comm, a.stream); }, kUsage},
      // A wait for no signal ends at once.
      {"ncclWaitSignal", kComm | kService | kRoot,
       [](A a) {
         ncclWaitSignalDesc_t desc = {0, a.root, 0, 0};
         return ncclWaitSignal(1, &desc, a.comm, a.stream);
       },
       kUsage},
      {"ncclPutSignal", kComm | kService | kType | kRoot | kCount,
       [](A a) {
         return ncclPutSignal(a.send, a.count, a.type, a.root, Foreign<ncclWindow_t>(), 0, 0, 0, 0,
                              a.comm, a.stream);
       },
       kArgument},
      {"ncclRedOpCreatePreMulSum", kComm | kService | kType,
       [](A a) {
         ncclRedOp_t op;
         const ncclResult_t made = ncclRedOpCreatePreMulSum(&op, out_memory.data(), a.type,
                                                            ncclScalarHostImmediate, a.comm);
         return made == ncclSuccess ? ncclRedOpDestroy(op, a.comm) : made;
       }},
      {"tuttiPlanDescribe", kComm | kType | kOp | kCount,
       [](A a) {
         return tuttiPlanDescribe(a.comm, "AllReduce", a.count, a.type, a.op, nullptr, 0, nullptr);
       }},
      {"ncclCommGetUniqueId", kComm | kService,
       [](A a) {
         ncclUniqueId id;
         const ncclResult_t made = ncclCommGetUniqueId(a.comm, &id);
         // The next grow takes the id, and then fails for the number of ranks.
         return made;
       },
       ncclSuccess},
      {"ncclCommSuspend", kComm | kService,
       [](A a) {
         const ncclResult_t suspended = ncclCommSuspend(a.comm, NCCL_SUSPEND_MEM);
         return suspended == ncclSuccess ? ncclCommResume(a.comm) : suspended;
       }},
      // The communicator is not suspended.
      {"ncclCommResume", kComm | kService, [](A a) { return ncclCommResume(a.comm); }, kUsage},
      {"ncclCommWindowRegister", kComm | kService,
       [](A a) {
         ncclWindow_t window = nullptr;
         const ncclResult_t made =
             ncclCommWindowRegister(a.comm, nullptr, 4096, &window, NCCL_WIN_DEFAULT);
         return made == ncclSuccess ? ncclCommWindowDeregister(a.comm, window) : made;
       }},
      {"ncclDevCommCreate", kComm | kService,
       [](A a) {
         const ncclDevCommRequirements_t none = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
         ncclDevComm_t made;
         const ncclResult_t result = ncclDevCommCreate(a.comm, &none, &made);
         return result == ncclSuccess ? ncclDevCommDestroy(a.comm, &made) : result;
       }},
      {"ncclCommSplit", kComm,
       [](A a) {
         ncclComm_t child = nullptr;
         const ncclResult_t made = ncclCommSplit(a.comm, 0, 0, &child, nullptr);
         return made == ncclSuccess ? ncclCommDestroy(child) : made;
       }},
      {"ncclCommRevoke", kComm,
       [](A a) {
         return a.comm == TheComm() ? ncclSuccess : ncclCommRevoke(a.comm, NCCL_REVOKE_DEFAULT);
       }},
      {"ncclCommFinalize", kComm,
       [](A a) { return a.comm == TheComm() ? ncclSuccess : ncclCommFinalize(a.comm); }},
      {"ncclCommCount", kComm,
       [](A a) {
         int count = 0;
         return ncclCommCount(a.comm, &count);
       }},
      {"ncclCommUserRank", kComm,
       [](A a) {
         int rank = 0;
         return ncclCommUserRank(a.comm, &rank);
       }},
      {"ncclCommCuDevice", kComm,
       [](A a) {
         int device = 0;
         return ncclCommCuDevice(a.comm, &device);
       }},
      {"ncclCommGetAsyncError", kComm,
       [](A a) {
         ncclResult_t error = ncclSuccess;
         return ncclCommGetAsyncError(a.comm, &error);
       }},
      {"tuttiCommDescribe", kComm,
       [](A a) { return tuttiCommDescribe(a.comm, nullptr, 0, nullptr); }},
      {"tuttiCommGetLostRanks", kComm,
       [](A a) {
         int count = 0;
         return tuttiCommGetLostRanks(a.comm, nullptr, 0, &count);
       }},
      {"tuttiCommGetHungRanks", kComm,
       [](A a) {
         int count = 0;
         return tuttiCommGetHungRanks(a.comm, nullptr, 0, &count);
       }},
      {"tuttiCommSetTimeout", kComm, [](A a) { return tuttiCommSetTimeout(a.comm, 60); }},
      {"ncclCommMemStats", kComm,
       [](A a) {
         uint64_t value = 0;
         return ncclCommMemStats(a.comm, ncclStatGpuMemTotal, &value);
       }},
      {"ncclCommQueryProperties", kComm,
       [](A a) {
         ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
         return ncclCommQueryProperties(a.comm, &properties);
       }},
      {"ncclCommRegister", kComm,
       [](A a) {
         void* handle = nullptr;
         const ncclResult_t made = ncclCommRegister(a.comm, a.recv, 4, &handle);
         return made == ncclSuccess ? ncclCommDeregister(a.comm, handle) : made;
       }},
      {"ncclGinBarrierCreateRequirement", kComm,
       [](A a) {
         ncclGinBarrierHandle_t handle;
         ncclDevResourceRequirements_t element = {};
         return ncclGinBarrierCreateRequirement(a.comm, {1, 0, 1}, 1, &handle, &element);
       }},
      {"ncclWinGetUserPtr", kComm,
       [](A a) {
         void* pointer = nullptr;
         return ncclWinGetUserPtr(a.comm, Foreign<ncclWindow_t>(), &pointer);
       },
       kArgument},
  };
  return *functions;
}

// A mistake in one argument.
struct Mistake {
  uint32_t in;  // Has
  const char* name;
  std::function<void(Arguments&)> make;
  ncclResult_t code = kArgument;
};

const std::vector<Mistake>& Mistakes() {
  using A = Arguments&;
  static const auto* const mistakes = new std::vector<Mistake>{
      {kComm, "a null communicator", [](A a) { a.comm = nullptr; }},
      {kComm, "foreign memory for a communicator", [](A a) { a.comm = Foreign<ncclComm_t>(); }},
      {kComm, "a place inside of a communicator",
       [](A a) {
         a.comm = reinterpret_cast<ncclComm_t>(reinterpret_cast<uintptr_t>(TheComm()) + 8);
       }},
      {kComm, "a destroyed communicator", [](A a) { a.comm = Dead(); }},
      {kService, "a revoked communicator", [](A a) { a.comm = Revoked(); }, kUsage},
      {kService, "a finalized communicator", [](A a) { a.comm = Finalized(); }, kUsage},
      {kType, "type -1", [](A a) { a.type = std::bit_cast<ncclDataType_t>(-1); }},
      {kType, "the type after the last",
       [](A a) { a.type = std::bit_cast<ncclDataType_t>(static_cast<int>(ncclNumTypes)); }},
      {kOp, "operator -1", [](A a) { a.op = std::bit_cast<ncclRedOp_t>(-1); }},
      {kOp, "the operator after the last",
       [](A a) { a.op = std::bit_cast<ncclRedOp_t>(static_cast<int>(ncclNumOps)); }},
      {kOp, "an operator of nobody", [](A a) { a.op = std::bit_cast<ncclRedOp_t>(100000); }},
      {kRoot, "root -1", [](A a) { a.root = -1; }},
      {kRoot, "the root after the last rank", [](A a) { a.root = 1; }},
      {kCount, "the largest count", [](A a) { a.count = kEndless; }},
      {kCount, "a count whose bytes overflow", [](A a) { a.count = kEndless / 4 + 2; }},
      {kCount, "a count beyond an address space", [](A a) { a.count = size_t{1} << 46; }},
      {kSend, "a null send buffer", [](A a) { a.send = nullptr; }},
      {kSend, "a send buffer at the end of memory",
       [](A a) { a.send = reinterpret_cast<const void*>(~uintptr_t{0} - 1); }},
      {kRecv, "a null receive buffer", [](A a) { a.recv = nullptr; }},
      {kRecv, "a receive buffer at the end of memory",
       [](A a) { a.recv = reinterpret_cast<void*>(~uintptr_t{0} - 1); }},
      {kStream, "a foreign stream", [](A a) { a.stream = Foreign<cudaStream_t>(); }},
      {kParts, "null counts", [](A a) { a.parts = nullptr; }},
      {kParts, "other counts than the rank's own",
       [](A a) {
         static constexpr std::array<size_t, 1> kTooMany = {size_t{1} << 46};
         a.parts = kTooMany.data();
       }},
      {kConfig, "a config without its beginning", [](A a) { a.config.magic = 0; }},
      {kConfig, "a config of no release", [](A a) { a.config.size = 8; }},
      {kConfig, "no blocks at all", [](A a) { a.config.maxCTAs = 0; }},
      {kConfig, "more blocks at least than at most",
       [](A a) { a.config.minCTAs = 5, a.config.maxCTAs = 4; }},
      {kConfig, "blocks in a switch below 1", [](A a) { a.config.nvlsCTAs = 0; }},
      {kConfig, "a cluster of 9", [](A a) { a.config.cgaClusterSize = 9; }},
      {kConfig, "a policy of unknown bits", [](A a) { a.config.CTAPolicy = 8; }},
      {kConfig, "a force that is no truth value", [](A a) { a.config.forceAlgSelection = 2; }},
      {kConfig, "a tag with NCCL's bit", [](A a) { a.config.userProfilerTag = uint64_t{1} << 63; }},
      {kConfig, "an algorithm of nobody", [](A a) { a.config.algSelection = "nonsense"; }, kUsage},
      {kConfig, "an event that is none",
       [](A a) { a.config.launchCompletionEvent = Foreign<cudaEvent_t>(); }},
      {kConfig, "an unknown option of this library",
       [](A a) {
         static ncclConfigExt_t option = {};
         option.key.vendorId = TUTTI_VENDOR_ID;
         option.key.optionId = 12345;
         a.config.ext = &option;
       }},
      {kConfig, "a list of options without an end",
       [](A a) {
         static ncclConfigExt_t option = {};
         option.next = &option;
         a.config.ext = &option;
       }},
  };
  return *mistakes;
}

// The sentence begins with the name of the called function, or of the function that it stands for.
void ExpectSentence(const std::string& name) {
  const std::string text = ncclGetLastError(nullptr);
  const std::string expected = name == "ncclBcast" ? "ncclBroadcast" : name;
  EXPECT_EQ(text.substr(0, text.find(':')), expected) << text;
  EXPECT_GT(text.size(), expected.size() + 10) << text;
}

TEST(ArgumentsTest, EachWrongArgumentOfAnOperationIsRefused) {
  for (const Function& function : Operations())
    for (const Mistake& mistake : Mistakes()) {
      if ((function.has & mistake.in) == 0) continue;
      SCOPED_TRACE(std::string(function.name) + " with " + mistake.name);
      Arguments arguments;
      mistake.make(arguments);
      EXPECT_EQ(function.call(arguments), mistake.code);
      ExpectSentence(function.name);
    }
}

TEST(ArgumentsTest, RightArgumentsAreTaken) {
  for (const Function& function : Operations())
    EXPECT_EQ(function.call(Arguments()), function.good)
        << function.name << ": " << ncclGetLastError(nullptr);
  // Without elements no buffer is needed.
  for (const Function& function : Operations())
    if ((function.has & kMove) == kMove && (function.has & kParts) == 0) {
      Arguments empty;
      empty.count = 0, empty.send = nullptr, empty.recv = nullptr;
      EXPECT_EQ(function.call(empty), ncclSuccess) << function.name;
    }
}

// A displacement of half an address space puts the part of a buffer on the stack beyond the end.
TEST(ArgumentsTest, PartsBeyondTheEndOfMemoryAreRefused) {
  std::array<float, 4> data = {};
  const size_t one = 1, none = 0, far = api::kAddressSpace / sizeof(float) / 2;
  const auto gather = [&](const size_t* displacement) {
    return tuttiAllGatherV(data.data(), 1, data.data(), &one, displacement, ncclFloat32, TheComm(),
                           nullptr);
  };
  const auto exchange = [&](const size_t* count, const size_t* from, const size_t* to) {
    return tuttiAlltoAllV(data.data(), count, from, data.data(), count, to, ncclFloat32, TheComm(),
                          nullptr);
  };
  EXPECT_EQ(gather(&one), ncclSuccess);
  EXPECT_EQ(gather(&far), kArgument);
  EXPECT_EQ(exchange(&one, &none, &one), ncclSuccess);
  EXPECT_EQ(exchange(&one, &far, &one), kArgument);
  EXPECT_EQ(exchange(&one, &none, &far), kArgument);
  EXPECT_EQ(exchange(&none, &far, &far), ncclSuccess) << "an empty part needs no memory";
}

// ---- Functions with arguments of their own

struct Row {
  const char* text;  // The call.
  ncclResult_t code;
  std::function<ncclResult_t()> call;
};
#define CALL(code, call)              \
  {                                   \
#call, code, [&] { return call; } \
  }

// Returns the name of the called function.
std::string NameOf(const Row& row) {
  const std::string text = row.text;
  return text.substr(0, text.find('('));
}

ncclUniqueId AnId() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}
ncclConfig_t ConfigWith(const std::function<void(ncclConfig_t&)>& change) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  change(config);
  return config;
}
tuttiConfig_t OwnWith(const std::function<void(tuttiConfig_t&)>& change) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  change(config);
  return config;
}
ncclEncryptionConfig_t EncryptionWith(const std::function<void(ncclEncryptionConfig_t&)>& change) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  change(config);
  return config;
}

void Check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    EXPECT_EQ(row.call(), row.code);
    if (row.code != ncclSuccess) ExpectSentence(NameOf(row));
  }
}

TEST(ArgumentsTest, MakingCommunicators) {
  ncclComm_t comm = TheComm();
  ncclUniqueId id = AnId();
  ncclUniqueId garbage = {};
  const int negative = -1;
  const std::array<int, 2> twice = {3, 3};
  std::array<ncclComm_t, 2> two = {};
  ncclConfig_t bad = ConfigWith([](ncclConfig_t& c) { c.minCTAs = 0; });
  const tuttiConfig_t odd = OwnWith([](tuttiConfig_t& c) { c.deterministic = 2; });
  Check({
      CALL(kArgument, ncclGetUniqueId(nullptr)),
      CALL(kArgument, ncclCommInitRank(nullptr, 1, id, 0)),
      CALL(kArgument, ncclCommInitRank(&comm, 0, id, 0)),
      CALL(kArgument, ncclCommInitRank(&comm, 2, id, 2)),
      CALL(kArgument, ncclCommInitRank(&comm, 2, id, -1)),
      CALL(kArgument, ncclCommInitRank(&comm, 1, garbage, 0)),
      CALL(kArgument, ncclCommInitRankConfig(nullptr, 1, id, 0, nullptr)),
      CALL(kArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &bad)),
      CALL(kArgument, ncclCommInitRankScalable(&comm, 1, 0, 0, &id, nullptr)),
      CALL(kArgument, ncclCommInitRankScalable(&comm, 1, 0, 2, &id, nullptr)),
      CALL(kArgument, ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr)),
      CALL(kArgument, ncclCommInitRankScalable(&comm, 2, 2, 1, &id, nullptr)),
      CALL(kArgument, tuttiGetUniqueIdFor(nullptr, "localhost")),
      CALL(kArgument, tuttiGetUniqueIdFor(&id, nullptr)),
      CALL(kArgument, tuttiCommInitRankOn(&comm, 1, id, 0, -2)),
      CALL(kArgument, tuttiCommInitRankOn(nullptr, 1, id, 0, -1)),
      CALL(kArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, &bad, nullptr)),
      CALL(kArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, nullptr, &odd)),
      CALL(kArgument, ncclCommInitAll(nullptr, 1, nullptr)),
      CALL(kArgument, ncclCommInitAll(&comm, 0, nullptr)),
      CALL(kArgument, ncclCommInitAll(&comm, 1, &negative)),
      CALL(kUsage, ncclCommInitAll(two.data(), 2, twice.data())),
  });
  // A refused call leaves a null communicator.
  comm = TheComm();
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), kArgument);
  EXPECT_EQ(comm, nullptr);
}

TEST(ArgumentsTest, ConfigsHaveARangeForEachField) {
  using C = ncclConfig_t&;
  const std::vector<std::function<void(ncclConfig_t&)>> changes = {
      [](C c) { c.magic = 1; },
      [](C c) { c.size = 8; },
      [](C c) { c.size = size_t{1} << 20; },
      [](C c) { c.blocking = 2; },
      [](C c) { c.cgaClusterSize = 9; },
      [](C c) { c.minCTAs = 0; },
      [](C c) { c.maxCTAs = 0; },
      [](C c) { c.minCTAs = 4, c.maxCTAs = 3; },
      [](C c) { c.splitShare = -1; },
      [](C c) { c.collnetEnable = 2; },
      [](C c) { c.CTAPolicy = 4; },
      [](C c) { c.shrinkShare = 2; },
      [](C c) { c.nvlsCTAs = -1; },
      [](C c) { c.nChannelsPerNetPeer = 0; },
      [](C c) { c.nChannelsPerNetPeer = 3; },
      [](C c) { c.nvlinkCentricSched = 2; },
      [](C c) { c.graphUsageMode = 3; },
      [](C c) { c.numRmaCtx = -1; },
      [](C c) { c.maxP2pPeers = -1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    ncclConfig_t config = ConfigWith(changes[i]);
    ncclComm_t child = nullptr;
    EXPECT_EQ(ncclCommSplit(TheComm(), 0, 0, &child, &config), kArgument) << "change " << i;
    EXPECT_EQ(child, nullptr);
  }
  // A caller of an older release passes a shorter config, of which the rest is not read.
  ncclConfig_t older = ConfigWith([](C c) { c.minCTAs = 0; });
  older.size = offsetof(ncclConfig_t, minCTAs);
  ncclComm_t child = nullptr;
  ASSERT_EQ(ncclCommSplit(TheComm(), 0, 0, &child, &older), ncclSuccess)
      << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);

  using O = tuttiConfig_t&;
  const ncclUniqueId id = AnId();
  const std::vector<std::function<void(tuttiConfig_t&)>> own_changes = {
      [](O c) { c.magic = 1; },
      [](O c) { c.size = 4; },
      [](O c) { c.deterministic = -1; },
      [](O c) { c.timeoutSeconds = -1; },
      [](O c) { c.timeoutSeconds = 1e8; },
      [](O c) { c.timeoutSeconds = std::numeric_limits<double>::quiet_NaN(); },
      [](O c) { c.initTimeoutSeconds = -1; },
      [](O c) { c.initTimeoutSeconds = 2e6; },
      [](O c) { c.device = -7; },
  };
  for (size_t i = 0; i < own_changes.size(); ++i) {
    const tuttiConfig_t own = OwnWith(own_changes[i]);
    EXPECT_EQ(tuttiCommInitRankConfig(&child, 1, id, 0, nullptr, &own), kArgument)
        << "change " << i;
  }
}

TEST(ArgumentsTest, ResizingCommunicators) {
  ncclComm_t child = nullptr;
  int self = 0, nobody = 1, negative = -1;
  ncclUniqueId id = AnId();
  ncclUniqueId garbage = {};
  const ncclComm_t comm = TheComm();
  Check({
      CALL(kArgument, ncclCommSplit(comm, 0, 0, nullptr, nullptr)),
      CALL(kArgument, ncclCommSplit(comm, -7, 0, &child, nullptr)),
      CALL(kUsage, ncclCommSplit(Finalized(), 0, 0, &child, nullptr)),
      CALL(kArgument, ncclCommShrink(nullptr, &self, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, nullptr, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, &self, 0, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, &self, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, &nobody, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, &negative, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)),
      CALL(kArgument, ncclCommShrink(comm, &nobody, 1, &child, nullptr, 77)),
      CALL(kArgument, ncclCommGrow(comm, 2, nullptr, 0, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(comm, 1, nullptr, -1, &child, nullptr)),
      CALL(kUsage, ncclCommGrow(comm, 2, &id, -1, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(comm, 2, &garbage, -1, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(nullptr, 2, nullptr, 1, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(nullptr, 2, &id, 0, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(nullptr, 2, &id, 2, &child, nullptr)),
      CALL(kArgument, ncclCommGrow(Foreign<ncclComm_t>(), 2, &id, -1, &child, nullptr)),
      CALL(kArgument, ncclCommGetUniqueId(comm, nullptr)),
  });
}

TEST(ArgumentsTest, EndingCommunicators) {
  const ncclComm_t foreign = Foreign<ncclComm_t>();
  Check({
      CALL(ncclSuccess, ncclCommDestroy(nullptr)),
      CALL(kArgument, ncclCommDestroy(foreign)),
      CALL(kArgument, ncclCommDestroy(Dead())),
      CALL(ncclSuccess, ncclCommAbort(nullptr)),
      CALL(kArgument, ncclCommAbort(foreign)),
      CALL(kArgument, ncclCommAbort(Dead())),
      CALL(kArgument, ncclCommRevoke(TheComm(), NCCL_REVOKE_DEFAULT + 1)),
      CALL(kUsage, ncclCommFinalize(Finalized())),
  });
}

TEST(ArgumentsTest, QueriesAndGroups) {
  const ncclComm_t comm = TheComm();
  uint64_t value = 0;
  int count = 0;
  ncclSimInfo_t wrong = NCCL_SIM_INFO_INITIALIZER;
  wrong.magic = 0;
  ncclCommProperties_t headless = NCCL_COMM_PROPERTIES_INITIALIZER;
  headless.magic = 0;
  ncclCommProperties_t newer = NCCL_COMM_PROPERTIES_INITIALIZER;
  newer.version = NCCL_VERSION_CODE + 1, newer.size = sizeof(newer) + 8;
  Check({
      CALL(kArgument, ncclGetVersion(nullptr)),
      CALL(kArgument, tuttiGetVersion(nullptr)),
      CALL(kArgument, ncclCommCount(comm, nullptr)),
      CALL(kArgument, ncclCommUserRank(comm, nullptr)),
      CALL(kArgument, ncclCommCuDevice(comm, nullptr)),
      CALL(kArgument, ncclCommGetAsyncError(comm, nullptr)),
      CALL(kArgument, tuttiCommGetLostRanks(comm, nullptr, 0, nullptr)),
      CALL(kArgument, tuttiCommGetLostRanks(comm, nullptr, 1, &count)),
      CALL(kArgument, tuttiCommGetLostRanks(comm, &count, -1, &count)),
      CALL(kArgument, tuttiCommGetHungRanks(comm, nullptr, 0, nullptr)),
      CALL(kArgument, tuttiCommSetTimeout(comm, -1)),
      CALL(kArgument, tuttiCommSetTimeout(comm, 2e7)),
      CALL(kArgument, tuttiCommSetTimeout(comm, std::nan(""))),
      CALL(kArgument, ncclCommMemStats(comm, ncclStatGpuMemTotal, nullptr)),
      CALL(kArgument, ncclCommMemStats(comm, std::bit_cast<ncclCommMemStat_t>(99), &value)),
      CALL(kArgument, ncclCommQueryProperties(comm, nullptr)),
      CALL(kUsage, ncclCommQueryProperties(comm, &headless)),
      CALL(kUsage, ncclCommQueryProperties(comm, &newer)),
      CALL(kArgument, tuttiPlanDescribe(comm, nullptr, 1, ncclInt8, ncclSum, nullptr, 0, nullptr)),
      CALL(kArgument,
           tuttiPlanDescribe(comm, "Nothing", 1, ncclInt8, ncclSum, nullptr, 0, nullptr)),
      CALL(kArgument, ncclCommSuspend(comm, 77)),
      CALL(kUsage, ncclGroupEnd()),
      CALL(kUsage, ncclGroupSimulateEnd(nullptr)),
      CALL(ncclSuccess, ncclGroupStart()),
      CALL(kArgument, ncclGroupSimulateEnd(&wrong)),
      // The refused call has ended nothing, and has failed the group.
      CALL(kArgument, ncclGroupEnd()),
  });
  for (int code = 0; code <= ncclTimeout; ++code)
    EXPECT_STRNE(ncclGetErrorString(std::bit_cast<ncclResult_t>(code)), "unknown result code");
  EXPECT_STREQ(ncclGetErrorString(ncclNumResults), "unknown result code");
}

// A mistake inside of a group fails the whole group with its code, and the next group is not
// affected.
TEST(ArgumentsTest, AMistakeFailsItsGroup) {
  for (const Function& function : Operations()) {
    if ((function.has & kMove) != kMove) continue;
    Arguments wrong;
    wrong.comm = Dead();
    in_memory[0] = 7, out_memory[0] = 0;
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(function.call(wrong), kArgument) << function.name;
    EXPECT_EQ(ncclAllReduce(in_memory.data(), out_memory.data(), 1, ncclFloat32, ncclSum, TheComm(),
                            nullptr),
              ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), kArgument) << function.name;
    EXPECT_EQ(out_memory[0], 0) << "an operation of the refused group ran";
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  }
}

TEST(ArgumentsTest, OperatorsMemoryAndRegistrations) {
  const ncclComm_t comm = TheComm();
  ncclRedOp_t op = ncclSum;
  float two = 2;
  void* handle = nullptr;
  void* memory = in_memory.data();
  const auto residence = std::bit_cast<ncclScalarResidence_t>(9);
  Check({
      CALL(kArgument,
           ncclRedOpCreatePreMulSum(nullptr, &two, ncclFloat32, ncclScalarHostImmediate, comm)),
      CALL(kArgument,
           ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32, ncclScalarHostImmediate, comm)),
      CALL(kArgument, ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, residence, comm)),
      CALL(ncclSuccess,
           ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, comm)),
      CALL(kArgument, ncclAllReduce(&two, &two, 1, ncclInt32, op, comm, nullptr)),  // another type
      CALL(ncclSuccess, ncclRedOpDestroy(op, comm)),
      CALL(kArgument, ncclRedOpDestroy(op, comm)),
      CALL(kArgument, ncclRedOpDestroy(ncclAvg, comm)),
      CALL(kArgument, ncclRedOpDestroy(op, nullptr)),
      CALL(kArgument, ncclMemAlloc(nullptr, 8)),
      CALL(ncclSuccess, ncclMemAlloc(&handle, 0)),
      CALL(ncclSuccess, ncclMemFree(nullptr)),
      CALL(kArgument, ncclMemFree(in_memory.data())),
      CALL(kArgument, ncclCommRegister(comm, memory, 4, nullptr)),
      CALL(kArgument, ncclCommRegister(comm, nullptr, 4, &handle)),
      CALL(kArgument, ncclCommRegister(comm, memory, 0, &handle)),
      CALL(kArgument, ncclCommRegister(comm, memory, kEndless, &handle)),
      CALL(ncclSuccess, ncclCommDeregister(comm, nullptr)),
      CALL(kArgument, ncclCommDeregister(comm, &two)),
      CALL(kArgument, ncclCommDeregister(nullptr, &two)),
  });
}

TEST(ArgumentsTest, WindowsAndOneSidedCalls) {
  const ncclComm_t comm = TheComm();
  ncclWindow_t window = nullptr, other = nullptr;
  void* pointer = &window;
  const auto foreign = Foreign<ncclWindow_t>();
  alignas(4096) static std::array<char, 8192> memory;
  ASSERT_EQ(ncclCommWindowRegister(comm, nullptr, 256, &window, NCCL_WIN_DEFAULT), ncclSuccess);
  const float* const data = in_memory.data();
  ncclWaitSignalDesc_t negative = {-1, 0, 0, 0}, second = {1, 0, 1, 0}, context = {1, 0, 0, 1};
  Check({
      CALL(kArgument, ncclCommWindowRegister(comm, memory.data(), 4096, nullptr, 0)),
      CALL(kArgument, ncclCommWindowRegister(comm, memory.data(), 0, &other, 0)),
      CALL(kArgument, ncclCommWindowRegister(comm, memory.data() + 8, 4096, &other, 0)),
      CALL(kArgument, ncclCommWindowRegister(comm, memory.data(), kEndless, &other, 0)),
      CALL(kArgument, ncclCommWindowRegister(comm, memory.data(), 4096, &other, 0x100)),
      CALL(kArgument, ncclCommWindowDeregister(comm, foreign)),
      CALL(kArgument, ncclCommWindowDeregister(nullptr, window)),
      CALL(ncclSuccess, ncclCommWindowDeregister(comm, nullptr)),
      CALL(kArgument, ncclWinGetUserPtr(comm, window, nullptr)),
      CALL(kArgument, ncclWinGetUserPtr(comm, nullptr, &pointer)),
      CALL(kArgument, ncclGetLsaDevicePointer(foreign, 0, 0, &pointer)),
      CALL(kArgument, ncclGetLsaDevicePointer(window, 0, 0, nullptr)),
      CALL(kArgument, ncclGetLsaDevicePointer(window, 256, 0, &pointer)),
      CALL(kArgument, ncclGetLsaDevicePointer(window, 0, 1, &pointer)),
      CALL(kArgument, ncclGetLsaDevicePointer(window, 0, -1, &pointer)),
      CALL(ncclSuccess, ncclGetLsaDevicePointer(window, 255, 0, &pointer)),
      CALL(kArgument, ncclGetPeerDevicePointer(foreign, 0, 0, &pointer)),
      CALL(kArgument, ncclGetPeerDevicePointer(window, 0, 1, &pointer)),
      CALL(kArgument, ncclGetPeerDevicePointer(window, 256, 0, &pointer)),
      CALL(kArgument, ncclGetLsaMultimemDevicePointer(foreign, 0, &pointer)),
      CALL(kArgument, ncclGetLsaMultimemDevicePointer(window, 256, &pointer)),
      CALL(kArgument, ncclGetMultimemDevicePointer(window, 0, {}, &pointer)),
      CALL(kUsage, ncclGetMultimemDevicePointer(window, 0, {&window}, &pointer)),
      CALL(kArgument, ncclPutSignal(data, 1, ncclFloat32, 0, window, 0, 1, 0, 0, comm, nullptr)),
      CALL(kArgument, ncclPutSignal(data, 1, ncclFloat32, 0, window, 0, 0, 1, 0, comm, nullptr)),
      CALL(kArgument, ncclPutSignal(data, 1, ncclFloat32, 0, window, 0, 0, 0, 1, comm, nullptr)),
      CALL(kArgument, ncclPutSignal(data, 1, ncclFloat32, 0, window, 253, 0, 0, 0, comm, nullptr)),
      CALL(kArgument, ncclPutSignal(data, 65, ncclFloat32, 0, window, 0, 0, 0, 0, comm, nullptr)),
      CALL(kArgument,
           ncclPutSignal(data, 1, ncclFloat32, 0, window, kEndless, 0, 0, 0, comm, nullptr)),
      CALL(kArgument, ncclPutSignal(nullptr, 1, ncclFloat32, 0, window, 0, 0, 0, 0, comm, nullptr)),
      CALL(ncclSuccess, ncclPutSignal(data, 1, ncclFloat32, 0, window, 0, 0, 0, 0, comm, nullptr)),
      CALL(kArgument, ncclSignal(0, 1, 0, 0, comm, nullptr)),
      CALL(kArgument, ncclSignal(0, 0, 1, 0, comm, nullptr)),
      CALL(kArgument, ncclSignal(0, 0, 0, 1, comm, nullptr)),
      CALL(kArgument, ncclWaitSignal(-1, nullptr, comm, nullptr)),
      CALL(kArgument, ncclWaitSignal(1, nullptr, comm, nullptr)),
      CALL(kArgument, ncclWaitSignal(1, &negative, comm, nullptr)),
      CALL(kArgument, ncclWaitSignal(1, &second, comm, nullptr)),
      CALL(kArgument, ncclWaitSignal(1, &context, comm, nullptr)),
      CALL(ncclSuccess, ncclCommWindowDeregister(comm, window)),
      CALL(kArgument, ncclCommWindowDeregister(comm, window)),
      CALL(kArgument, ncclGetLsaDevicePointer(window, 0, 0, &pointer)),
  });
  EXPECT_EQ(pointer, nullptr);
}

TEST(ArgumentsTest, DeviceCommunicators) {
  const ncclComm_t comm = TheComm();
  ncclDevCommRequirements_t none = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevCommRequirements_t negative = none;
  negative.lsaBarrierCount = -1;
  ncclDevComm_t made = {};
  ncclLsaBarrierHandle_t lsa;
  ncclGinBarrierHandle_t gin;
  ncclLLA2AHandle_t exchange;
  ncclDevResourceRequirements_t element = {};
  const ncclTeam_t team = ncclTeamWorld(comm);
  EXPECT_EQ(team.nRanks, 1);
  for (const ncclComm_t bad : {ncclComm_t{}, Dead()}) {
    EXPECT_EQ(ncclTeamWorld(bad).nRanks, 0);
    EXPECT_EQ(ncclTeamLsa(bad).nRanks, 0);
    EXPECT_EQ(ncclTeamRail(bad).nRanks, 0);
  }
  ncclCftLeId id;
  size_t offset = 0;
  Check({
      CALL(kArgument, ncclDevCommCreate(comm, &none, nullptr)),
      CALL(kArgument, ncclDevCommCreate(comm, nullptr, &made)),
      CALL(kArgument, ncclDevCommCreate(comm, &negative, &made)),
      CALL(kArgument, ncclDevCommDestroy(comm, nullptr)),
      CALL(kArgument, ncclDevCommDestroy(nullptr, &made)),
      CALL(kArgument, ncclLsaBarrierCreateRequirement(team, -1, &lsa, &element)),
      CALL(kArgument, ncclLsaBarrierCreateRequirement(team, 1, nullptr, &element)),
      CALL(kArgument, ncclLsaBarrierCreateRequirement(team, 1, &lsa, nullptr)),
      CALL(kArgument, ncclGinBarrierCreateRequirement(comm, team, -1, &gin, &element)),
      CALL(kArgument, ncclGinBarrierCreateRequirement(comm, team, 1, nullptr, &element)),
      CALL(kArgument, ncclLLA2ACreateRequirement(-1, 1, &exchange, &element)),
      CALL(kArgument, ncclLLA2ACreateRequirement(1, 1, nullptr, &element)),
      CALL(kUsage, ncclGetMultimemDeviceLeInfo(nullptr, 0, &id, &offset)),
      CALL(kUsage, ncclGetCftDeviceLeInfo(nullptr, 0, 0, team, &id, &offset)),
      CALL(kUsage, ncclGetPeerDeviceLeInfo(nullptr, 0, 0, &id, &offset)),
      CALL(kUsage, ncclGinOutboxCreateRequirement(1, 1, nullptr, &element)),
      CALL(kUsage, ncclGinInboxA2ACreateRequirement(team, 1, 1, nullptr, &element)),
  });
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 9), 6);
}

TEST(ArgumentsTest, Parameters) {
  ncclParamHandle_t handle = nullptr;
  const auto foreign = Foreign<ncclParamHandle_t>();
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint8_t u8;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  const char* text = nullptr;
  const char** keys = nullptr;
  int length = 0;
  std::array<char, 64> bytes;
  Check({
      CALL(kArgument, ncclParamBind(nullptr, "NCCL_DEBUG")),
      CALL(kArgument, ncclParamBind(&handle, nullptr)),
      CALL(kArgument, ncclParamBind(&handle, "NCCL_NONSENSE")),
      CALL(ncclSuccess, ncclParamBind(&handle, "NCCL_ALGO")),
      CALL(kArgument, ncclParamGetI8(foreign, &i8)),
      CALL(kArgument, ncclParamGetI16(foreign, &i16)),
      CALL(kArgument, ncclParamGetI32(foreign, &i32)),
      CALL(kArgument, ncclParamGetI64(foreign, &i64)),
      CALL(kArgument, ncclParamGetU8(foreign, &u8)),
      CALL(kArgument, ncclParamGetU16(foreign, &u16)),
      CALL(kArgument, ncclParamGetU32(foreign, &u32)),
      CALL(kArgument, ncclParamGetU64(foreign, &u64)),
      CALL(kArgument, ncclParamGetI32(handle, nullptr)),
      CALL(kArgument, ncclParamGetI64(handle, &i64)),  // a list of names is no number
      CALL(kArgument, ncclParamGetStr(foreign, &text)),
      CALL(kArgument, ncclParamGetStr(handle, nullptr)),
      CALL(kArgument, ncclParamGet(foreign, bytes.data(), 64, &length)),
      CALL(kArgument, ncclParamGet(handle, nullptr, 64, &length)),
      CALL(kArgument, ncclParamGet(handle, bytes.data(), 64, nullptr)),
      CALL(kArgument, ncclParamGet(handle, bytes.data(), -1, &length)),
      CALL(kArgument, ncclParamGetParameter(nullptr, &text, &length)),
      CALL(kArgument, ncclParamGetParameter("NCCL_NONSENSE", &text, &length)),
      CALL(kArgument, ncclParamGetParameter("NCCL_ALGO", nullptr, &length)),
      CALL(kArgument, ncclParamGetParameter("NCCL_ALGO", &text, nullptr)),
      CALL(kArgument, ncclParamGetAllParameterKeys(nullptr, &length)),
      CALL(kArgument, ncclParamGetAllParameterKeys(&keys, nullptr)),
      CALL(ncclSuccess, ncclParamGetAllParameterKeys(&keys, &length)),
  });
  // Every key can be bound, and has a text.
  ASSERT_GT(length, 10);
  for (int i = 0; i < length; ++i) {
    ASSERT_EQ(ncclParamBind(&handle, keys[i]), ncclSuccess) << keys[i];
    EXPECT_EQ(ncclParamGetStr(handle, &text), ncclSuccess) << keys[i];
  }
}

TEST(ArgumentsTest, StreamsEventsAndGrids) {
  const auto stream = Foreign<tuttiStream_t>();
  const auto event = Foreign<tuttiEvent_t>();
  tuttiEvent_t fresh = nullptr;
  double ms = 0;
  tuttiHostLaunch_t launch = {};
  launch.grid_size = {70'000, 1, 1};
  const tuttiHostKernel_t kernel = [](const tuttiHostThread_t*, void*) {};
  Check({
      CALL(kArgument, tuttiStreamCreate(nullptr)),
      CALL(kArgument, tuttiStreamDestroy(stream)),
      CALL(ncclSuccess, tuttiStreamDestroy(nullptr)),
      CALL(kArgument, tuttiStreamSynchronize(stream)),
      CALL(kArgument, tuttiStreamQuery(stream)),
      CALL(kArgument, tuttiStreamLaunchHostFunc(nullptr, nullptr, nullptr)),
      CALL(kArgument, tuttiStreamLaunchHostFunc(
                          stream, [](void*) {}, nullptr)),
      CALL(kArgument, tuttiEventCreate(nullptr)),
      CALL(ncclSuccess, tuttiEventCreate(&fresh)),
      CALL(kArgument, tuttiEventDestroy(event)),
      CALL(ncclSuccess, tuttiEventDestroy(nullptr)),
      CALL(kArgument, tuttiEventRecord(event, nullptr)),
      CALL(kArgument, tuttiEventRecord(fresh, stream)),
      CALL(kArgument, tuttiStreamWaitEvent(stream, fresh)),
      CALL(kArgument, tuttiStreamWaitEvent(nullptr, event)),
      CALL(kArgument, tuttiEventSynchronize(event)),
      CALL(kArgument, tuttiEventQuery(event)),
      CALL(kArgument, tuttiEventElapsedTime(nullptr, fresh, fresh)),
      CALL(kArgument, tuttiEventElapsedTime(&ms, event, fresh)),
      CALL(kArgument, tuttiEventElapsedTime(&ms, fresh, event)),
      CALL(kUsage, tuttiEventElapsedTime(&ms, fresh, fresh)),  // never recorded
      CALL(ncclSuccess, tuttiEventDestroy(fresh)),
      CALL(kArgument, tuttiEventQuery(fresh)),
      CALL(kArgument, tuttiLaunchHost(nullptr, kernel, nullptr)),
      CALL(kArgument, tuttiLaunchHost(&launch, nullptr, nullptr)),
      CALL(kArgument, tuttiLaunchHost(&launch, kernel, nullptr)),
  });
}

TEST(ArgumentsTest, Adasum) {
  std::array<double, 64> numbers = {};
  void* const data = numbers.data();
  double* const dots = numbers.data();
  const void* const null_source = nullptr;
  const void* const source = data;
  void* const target = data;
  const size_t one = 1, endless = kEndless;
  Check({
      CALL(kArgument, tuttiAdasumDots(data, data, &one, 1, ncclInt32, dots, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumDots(nullptr, data, &one, 1, ncclFloat32, dots, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumDots(data, data, nullptr, 1, ncclFloat32, dots, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumDots(data, data, &endless, 1, ncclFloat32, dots, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumDots(data, data, &one, 1, ncclFloat32, nullptr, dots, -1, nullptr)),
      CALL(kArgument, tuttiAdasumSumDots(dots, 0, 1, dots, -1, nullptr)),
      CALL(kArgument, tuttiAdasumSumDots(nullptr, 1, 1, dots, -1, nullptr)),
      CALL(kArgument, tuttiAdasumSumDots(dots, 2, kEndless, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumCombine(data, data, nullptr, &one, 1, ncclFloat32, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumCombine(data, data, data, &one, 1, ncclFloat16, dots, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumConvert(&source, ncclFloat16, &target, ncclFloat64, &one, 1, 1, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumConvert(&source, ncclInt8, &target, ncclFloat32, &one, 1, 1, -1, nullptr)),
      CALL(kArgument,
           tuttiAdasumConvert(nullptr, ncclFloat16, &target, ncclFloat32, &one, 1, 1, -1, nullptr)),
      CALL(kArgument, tuttiAdasumConvert(&null_source, ncclFloat32, &target, ncclFloat16, &one, 1,
                                         1, -1, nullptr)),
      CALL(kArgument, tuttiAdasumConvert(&source, ncclFloat16, &target, ncclFloat32, &one, 1, 1, -1,
                                         Foreign<cudaStream_t>())),
  });
}

TEST(ArgumentsTest, Encryption) {
  using E = ncclEncryptionConfig_t&;
  const auto headless = EncryptionWith([](E c) { c.magic = 0; });
  const auto shorter = EncryptionWith([](E c) { c.size = 8; });
  const auto odd = EncryptionWith([](E c) { c.mode = std::bit_cast<decltype(c.mode)>(7); });
  const auto keyless = EncryptionWith([](E c) { c.mode = NCCL_ENCRYPTION_MODE_PSK; });
  const auto guessed = EncryptionWith([](E c) {
    c.mode = NCCL_ENCRYPTION_MODE_PSK;
    c.psk = "0123456789012345678901234567890";  // a byte too short
  });
  Check({
      CALL(kArgument, ncclSetEncryption(&headless)),
      CALL(kArgument, ncclSetEncryption(&shorter)),
      CALL(kArgument, ncclSetEncryption(&odd)),
      CALL(kArgument, ncclSetEncryption(&keyless)),
      CALL(kArgument, ncclSetEncryption(&guessed)),
      CALL(ncclSuccess, ncclSetEncryption(nullptr)),
  });
}

// ---- All functions

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A call of a function in this file is its entry.
TEST(ArgumentsTest, EveryFunctionHasAnEntry) {
  const std::string folder = std::string(TUTTI_SOURCE_DIR) + "/src/api";
  const std::string entries = TextOf(folder + "/arguments_test.cc");
  const std::string returns = "ncclResult_t ";
  int functions = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream source(file.path());
    for (std::string line; std::getline(source, line);) {
      if (line.rfind(returns + "nccl", 0) != 0 && line.rfind(returns + "tutti", 0) != 0) continue;
      const size_t begin = returns.size();
      const std::string call = line.substr(begin, line.find('(') + 1 - begin);
      EXPECT_NE(entries.find(" " + call), std::string::npos) << call << " of " << file.path();
      ++functions;
    }
  }
  EXPECT_GT(functions, 100);
}

}  // namespace
}  // namespace tutti
