// Plugins with one-sided operations: those that are missing or misbehave, and what they are asked
// for. That they carry everything is tested by the suites of kernels over them (plugins.gin_v13 and
// its like); the example plugin ends the process where it is not kept a promise.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
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

// Three ranks that a plugin joins, each with a word for signals and room for long puts.
class PluginGroupTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;
  static constexpr size_t kBytes = 64 << 20;
  struct Member {
    std::unique_ptr<RmaGroup> group;
    std::vector<uint64_t> words = std::vector<uint64_t>(kBytes / sizeof(uint64_t));
    std::unique_ptr<NetMemory> memory;
  };
  using Body = std::function<void(int rank, Member& own, std::barrier<>& meet)>;

  static void Run(const Body& body) {
    std::array<NetHandle, kRanks> handles;
    std::barrier<> meet(kRanks);
    const auto rank_body = [&](int rank) {
      Settings settings;
      settings.gin_plugin = FileOf(14);
      const std::unique_ptr<RmaGroups> groups = RmaPlugins::Find(settings, "");
      ASSERT_NE(groups, nullptr);
      auto listener = groups->Open(groups->names()[0], /*number=*/1);
      ASSERT_TRUE(listener.ok()) << listener.status().message();
      handles[static_cast<size_t>(rank)] = (*listener)->handle();
      meet.arrive_and_wait();
      Member own;
      auto group = (*listener)->Join(handles, rank);
      ASSERT_TRUE(group.ok()) << group.status().message();
      own.group = std::move(group).value();
      NetRegion region = {reinterpret_cast<std::byte*>(own.words.data()), kBytes};
      region.holds_signals = true;
      auto memory = own.group->Register(region);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      own.memory = std::move(memory).value();
      meet.arrive_and_wait();
      body(rank, own, meet);
      meet.arrive_and_wait();
      own.memory.reset();
    };
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(rank_body, rank);
  }

  // Begins to put so many bytes of this rank's memory to another one.
  static Result<NetRequest*> BeginPut(NetRmaComm& comm, Member& own, size_t bytes) {
    return comm.Iput({own.memory.get(), 0}, {own.memory->remote_key(), 0}, bytes, nullptr);
  }
  // Adds to a word of another rank until that fails; returns why, or ok where it never does.
  static Status AddUntilItFails(NetRmaComm& comm, Member& own) {
    const NetSignal signal = {{own.memory->remote_key(), 8}, 1, /*strong=*/true};
    for (int i = 0; i < 100'000; ++i) {
      const Result<NetRequest*> added = comm.Iput({}, {}, 0, &signal);
      if (!added.ok()) return added.status();
      const Result<bool> moved = comm.Progress();
      if (!moved.ok()) return moved.status();
      if (*added == nullptr) continue;
      Result<bool> done = comm.Test(**added);
      while (done.ok() && !*done) {
        TUTTI_TRY(comm.Progress().status());
        done = comm.Test(**added);
      }
      TUTTI_TRY(done.status());
    }
    return Status::Ok();
  }
  // Waits until all that was begun to the rank has arrived, while that rank takes it in.
  static Status Flush(NetRmaComm& comm) {
    TUTTI_ASSIGN(NetRequest* const flush, comm.Iflush());
    for (;;) {
      TUTTI_TRY(comm.Progress().status());
      TUTTI_ASSIGN(const bool done, comm.Test(*flush));
      if (done) return Status::Ok();
    }
  }
};

TEST_F(PluginGroupTest, ARankThatIsGoneFailsWhatGoesToItAlone) {
  std::atomic<bool> flushed = false;
  Run([&](int rank, Member& own, std::barrier<>& meet) {
    if (rank == 2) {
      own.memory.reset();
      own.group.reset();
    }
    meet.arrive_and_wait();
    if (rank == 1) {
      const auto comm = own.group->MakeComm(0);
      while (!flushed) ASSERT_TRUE(comm->Progress().ok());
      EXPECT_EQ(own.words[0], 11u);
    }
    if (rank != 0) return;
    own.words[0] = 11;
    const auto gone = own.group->MakeComm(2), there = own.group->MakeComm(1);
    const Status why = AddUntilItFails(*gone, own);
    EXPECT_EQ(why.code(), Code::kRemoteError) << why.message();
    EXPECT_THAT(std::string(why.message()), HasSubstr("toward rank 2"));
    EXPECT_FALSE(gone->Progress().ok());
    EXPECT_FALSE(gone->Iflush().ok());
    EXPECT_TRUE(BeginPut(*there, own, 8).ok());
    const Status arrived = Flush(*there);
    EXPECT_TRUE(arrived.ok()) << arrived.message();
    gone->Shutdown();
    EXPECT_TRUE(there->Progress().ok());
    flushed = true;
  });
}

// Of two operations toward a rank that is gone a NIC tells that one has failed while the other may
// still read memory. The connection says that it is broken when neither does.
TEST_F(PluginGroupTest, AConnectionIsBrokenWhenNothingIsUnderWay) {
  const int before = OpenObjects(14);
  for (const char* const how : {"flush", "stuck"}) {
    SCOPED_TRACE(how);
    const bool stuck = std::string_view(how) == "stuck";
    const Environment fails{{"EXAMPLE_GIN_FAIL", how}};
    Run([&](int rank, Member& own, std::barrier<>& meet) {
      std::unique_ptr<NetRmaComm> gone;
      std::vector<NetRequest*> puts;
      if (rank == 0) {
        gone = own.group->MakeComm(2);
        for (int i = 0; i < 2; ++i) {
          const Result<NetRequest*> put = BeginPut(*gone, own, kBytes);
          EXPECT_TRUE(put.ok() && *put != nullptr);
          if (put.ok() && *put != nullptr) puts.push_back(*put);
        }
        EXPECT_TRUE(gone->Progress().ok());  // Rank 2 takes nothing in.
      }
      meet.arrive_and_wait();
      if (rank == 2) {
        own.memory.reset();
        own.group.reset();
      }
      meet.arrive_and_wait();
      if (rank != 0) return;
      const int open = OpenObjects(14);
      const auto begin = std::chrono::steady_clock::now();
      Result<bool> moved = false;
      for (; moved.ok(); moved = gone->Progress())
        for (NetRequest* const put : puts) EXPECT_TRUE(gone->Test(*put).ok()) << "too early";
      const auto took = std::chrono::steady_clock::now() - begin;
      EXPECT_THAT(std::string(moved.status().message()), HasSubstr("test toward rank 2"));
      for (NetRequest* const put : puts) EXPECT_FALSE(gone->Test(*put).ok());
      EXPECT_GE(took, std::chrono::milliseconds(stuck ? 500 : 50));
      EXPECT_EQ(OpenObjects(14), stuck ? open - 1 : open);
      EXPECT_EQ(own.group->MakeComm(1)->Progress().ok(), !stuck);
    });
  }
  EXPECT_EQ(OpenObjects(14), before);
}

// The memory of a put that is under way could still be read: the plugin's group is closed then.
TEST_F(PluginGroupTest, ShuttingAConnectionEndsWhatIsUnderWay) {
  const int before = OpenObjects(14);
  Run([&](int rank, Member& own, std::barrier<>&) {
    if (rank == 0) {
      const auto busy = own.group->MakeComm(2), idle = own.group->MakeComm(1);
      idle->Shutdown();
      EXPECT_FALSE(idle->Progress().ok());
      // Rank 2 takes nothing in, and so much does not fit the sockets.
      const Result<NetRequest*> put = BeginPut(*busy, own, kBytes);
      ASSERT_TRUE(put.ok());
      ASSERT_TRUE(busy->Progress().ok());
      const Result<bool> done = busy->Test(**put);
      ASSERT_TRUE(done.ok());
      ASSERT_FALSE(*done);
      const int open = OpenObjects(14);
      busy->Shutdown();
      EXPECT_EQ(OpenObjects(14), open - 1);
      EXPECT_FALSE(busy->Test(**put).ok());
      EXPECT_FALSE(own.group->MakeComm(1)->Progress().ok());
    }
  });
  EXPECT_EQ(OpenObjects(14), before);
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

// Kernels drive such devices by code that the plugin's maker compiles into NCCL's headers.
TEST_F(PluginGinTest, DevicesOfKernelsAreRefused) {
  const Environment old{{"NCCL_GIN_PLUGIN", FileOf(13)}, {"NCCL_DEBUG", "WARN"}};
  for (const char* const how : {"gdaki", "gpi"}) {
    SCOPED_TRACE(how);
    const Environment fails{{"EXAMPLE_GIN_FAIL", how}};
    EXPECT_THAT(Log(PutAndCheck), HasSubstr("whose operations are kernels'"));
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
