// Plugins with one-sided operations: those that are missing or misbehave, and what they are asked
// for. That they carry everything is tested by the suites of kernels over them (plugins.gin_v13 and
// its like); the example plugin ends the process where it is not kept a promise.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../device/gin_cases.h"
#include "../device/rank_threads.h"
#include "transport/net/plugin/rma_library.h"
#include "transport/net/plugin/rma_plugin.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

std::string FileOf(int version) {
  return fmt::format("{}/libnccl-gin-example_v{}.so", PLUGIN_FOLDER, version);
}

// Settings for communicators that are made during its life.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, std::string>> values) {
    for (const auto& [name, value] : values) {
      setenv(name, value.c_str(), /*overwrite=*/1);
      names_.push_back(name);
    }
  }
  ~Environment() {
    for (const char* const name : names_) unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<const char*> names_;
};

int OpenObjects(int version) {
  void* const library = dlopen(FileOf(version).c_str(), RTLD_NOW);
  EXPECT_NE(library, nullptr) << dlerror();
  const auto count = reinterpret_cast<int (*)()>(dlsym(library, "exampleGinOpenObjects"));
  const int result = count();
  dlclose(library);
  return result;
}

TEST(RmaLibraryTest, SaysWhatIsMissing) {
  const Status none = RmaLibrary::Open(RmaLibrary::kGin, "there-is-none").status();
  EXPECT_EQ(none.code(), Code::kInvalidUsage);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("the GIN plugin libnccl-gin-there-is-none.so cannot be loaded"));
  const Status other = RmaLibrary::Open(RmaLibrary::kRma, "libm.so.6").status();
  EXPECT_EQ(other.code(), Code::kInvalidUsage);
  const Status no_table =
      RmaLibrary::Open(RmaLibrary::kRma, "/lib/x86_64-linux-gnu/libm.so.6").status();
  EXPECT_THAT(std::string(no_table.message()), HasSubstr("has none of the tables"));
}

TEST(RmaLibraryTest, NamesTheFunctionThatIsMissing) {
  std::string missing;
  tuttiGinTable_v13_t old = {};
  EXPECT_EQ(MakeRmaFunctions(old, &missing), nullptr);
  EXPECT_EQ(missing, "a name");
  tuttiRmaTable_v14_t table = *static_cast<tuttiRmaTable_v14_t*>(
      dlsym(dlopen(FileOf(14).c_str(), RTLD_NOW), "ncclRmaPlugin_v14"));
  EXPECT_NE(MakeRmaFunctions(table, &missing), nullptr);
  table.iputSignal = nullptr;
  EXPECT_EQ(MakeRmaFunctions(table, &missing), nullptr);
  EXPECT_EQ(missing, "iputSignal");
}

TEST(RmaLibraryTest, TakesTheNewestTable) {
  for (const int version : {13, 14}) {
    const auto library = RmaLibrary::Open(RmaLibrary::kGin, FileOf(version));
    ASSERT_TRUE(library.ok()) << library.status().message();
    EXPECT_EQ((*library)->functions().version(), version);
    EXPECT_STREQ((*library)->functions().name(), "ExampleGin");
  }
}

// A put and its signal between two ranks that share no memory.
void PutOnce(ncclDevComm comm, ncclWindow_t window) {
  const ncclGin gin(comm, 0);
  gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, 64, window, 0, 64,
          ncclGin_StrongSignalInc{0});
  gin.waitSignal(ncclCoopThread(), 0, 1);
}

void PutStrong(ncclDevComm comm, ncclWindow_t window) {
  ncclGin(comm, 0).put(ncclTeamWorld(comm), 1 - comm.rank, window, 64, window, 0, 64,
                       ncclGin_StrongSignalInc{0});
}

void PutWeak(ncclDevComm comm, ncclWindow_t window) {
  const ncclGin gin(comm, 0);
  gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, 64, window, 0, 64, ncclGin_WeakSignalInc{0});
  gin.waitSignal(ncclCoopThread(), 0, 1);
}

class PluginGinTest : public ::testing::Test {
 protected:
  // Has two ranks put to each other, and expects that they can.
  static void PutAndCheck() {
    RunRanks(2, [](int rank, ncclComm_t comm) {
      GinWindow<uint8_t> window(comm, 128);
      std::iota(window.data(), window.data() + 64, static_cast<uint8_t>(rank * 100));
      const GinDevComm devcomm(comm, AskGin(1));
      ASSERT_TRUE(devcomm.made());
      EXPECT_EQ(tutti::Launch(PutOnce, {}, devcomm.get(), window.get()), ncclSuccess);
      for (int i = 0; i < 64; ++i)
        EXPECT_EQ(window.data()[64 + i], static_cast<uint8_t>((1 - rank) * 100 + i)) << i;
    });
  }
  static std::string Log(const std::function<void()>& body) {
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    body();
    return ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  }

  const Environment apart_{{"NCCL_SHM_DISABLE", "1"}, {"NCCL_GIN_PLUGIN", FileOf(14)}};
};

TEST_F(PluginGinTest, LeavesNothingOpen) {
  const int before = OpenObjects(14);
  PutAndCheck();
  EXPECT_EQ(OpenObjects(14), before);
}

// A plugin that cannot be opened on some rank leaves all to sockets.
TEST_F(PluginGinTest, SocketsTakeItsPlaceWhereItCannotBeOpened) {
  for (const char* const how : {"init", "devices", "listen"}) {
    SCOPED_TRACE(how);
    const Environment fails{{"EXAMPLE_GIN_FAIL", how}};
    const int before = OpenObjects(14);
    PutAndCheck();
    EXPECT_EQ(OpenObjects(14), before);
  }
}

TEST_F(PluginGinTest, AWindowIsRefusedWhereItDoesNotConnect) {
  const Environment fails{{"EXAMPLE_GIN_FAIL", "connect"}};
  std::atomic<int> refused = 0;
  RunRanks(
      2,
      [&](int, ncclComm_t comm) {
        void* memory = nullptr;
        ncclWindow_t window = nullptr;
        EXPECT_EQ(ncclMemAlloc(&memory, 4096), ncclSuccess);
        const ncclResult_t result =
            ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC);
        if (result != ncclSuccess) ++refused;
        EXPECT_THAT(ncclGetLastError(comm), HasSubstr("plugin ExampleGin: connect failed"));
        EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
      },
      ncclCommAbort);
  EXPECT_EQ(refused, 2);
}

// A kernel whose put fails ends, and the communicator says why.
TEST_F(PluginGinTest, AnErrorLaterStopsTheCommunicator) {
  for (const char* const how : {"put-late", "error"}) {
    SCOPED_TRACE(how);
    const Environment fails{{"EXAMPLE_GIN_FAIL", how}};
    std::atomic<int> told = 0;
    RunRanks(
        2,
        [&](int, ncclComm_t comm) {
          void* memory = nullptr;
          ncclWindow_t window = nullptr;
          EXPECT_EQ(ncclMemAlloc(&memory, 4096), ncclSuccess);
          EXPECT_EQ(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
                    ncclSuccess);
          const ncclDevCommRequirements_t asked = AskGin(1);
          ncclDevComm_t devcomm = {};
          ASSERT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclSuccess);
          ncclResult_t error = ncclSuccess;
          for (int round = 0; round < 100000 && error == ncclSuccess; ++round) {
            tutti::Launch(PutStrong, {}, devcomm, window);
            EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
          }
          EXPECT_NE(error, ncclSuccess);
          if (std::string(ncclGetLastError(comm)).find("plugin ExampleGin") != std::string::npos)
            ++told;
          ncclDevCommDestroy(comm, &devcomm);
        },
        ncclCommAbort);
    EXPECT_GE(told, 1);
  }
}

// What a plugin does not have is refused where it is asked for, and else not missed.
TEST_F(PluginGinTest, RequirementsSayWhichSignalsThereMustBe) {
  for (const char* const how : {"no-strong", "no-va"}) {
    SCOPED_TRACE(how);
    const Environment fails{{"EXAMPLE_GIN_FAIL", how}};
    RunRanks(2, [&](int, ncclComm_t comm) {
      GinWindow<uint8_t> window(comm, 128);
      ncclDevCommRequirements_t asked = AskGin(1);
      ncclDevComm_t devcomm = {};
      EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("they are asked for"));
      asked.ginStrongSignalsRequired = asked.ginVaSignalsRequired = false;
      const GinDevComm weak(comm, asked);
      ASSERT_TRUE(weak.made());
      EXPECT_EQ(tutti::Launch(PutWeak, {}, weak.get(), window.get()), ncclSuccess);
    });
  }
}

}  // namespace
}  // namespace tutti::testing
