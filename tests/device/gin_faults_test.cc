// Device-initiated networking when something is wrong: what kernels ask for, or the other ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "gin_cases.h"
#include "gin_world.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

class GinFaultTest : public GinTest {};

INSTANTIATE_TEST_SUITE_P(Over, GinFaultTest, ::testing::Values(Way::kMemory, Way::kNetwork),
                         NameOfInstance);

constexpr size_t kWords = 1024;
constexpr uint64_t kUntouched = 0x7777;

// Asks for something wrong, in a kernel of rank 0.
using Mistake = void (*)(const ncclGin& gin, ncclTeam world, ncclWindow_t window);

// Those that are found out before anything is posted, which kernels of GPUs have no time for.
enum class FoundBy { kProxy, kKernel };

const struct {
  const char* name;
  Mistake make;
  FoundBy found_by = FoundBy::kProxy;
} kMistakes[] = {
    {"a target beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, kWords * 8 - 8, window, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a target far beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, size_t{1} << 61, window, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a source beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, kWords * 8 - 4, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a value beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.putValue(world, 1, window, kWords * 8 - 4, uint64_t{1});
     }},
    {"a get from beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, window, 8, window, 0, kWords * 8);
     }},
    {"a signal that does not exist",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, 16, ncclGin_StrongSignalInc{1});
     }},
    {"a counter that does not exist",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, 16, ncclGin_None(), ncclGin_WeakCounterInc{1});
     }},
    {"a signal that is not aligned",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.signal(world, 1, ncclGin_StrongVASignalInc{window, 12});
     }},
    {"a signal beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.signal(world, 1, ncclGin_StrongVASignalInc{window, kWords * 8});
     }},
    {"a get to beyond the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, window, 0, window, 8, kWords * 8);
     }},
    {"a put that is longer than any window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, size_t{3} << 30, ncclGin_WeakSignalInc{0});
     }},
    {"a target whose offset needs all 64 bits",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, size_t{1} << 63, window, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a target before the window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, ~size_t{0} - 15, window, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a put to no window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, nullptr, 0, window, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a put from no window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, nullptr, 0, 16, ncclGin_WeakSignalInc{0});
     }},
    {"a value put to no window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t) {
       gin.putValue(world, 1, nullptr, 0, uint64_t{1});
     }},
    {"a get from no window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, nullptr, 0, window, 0, 16);
     }},
    {"a signal in no window",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t) {
       gin.signal(world, 1, ncclGin_StrongVASignalInc{nullptr, 0});
     }},
    {"a signal whose number has more bits than descriptors have for it",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, 16, ncclGin_StrongSignalInc{1 << 24});
     }},
    {"a counter whose number has more bits than descriptors have for it",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, 16, ncclGin_None(), ncclGin_WeakCounterInc{1 << 23});
     }},
    {"a rank that does not exist",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.putValue(world, 2, window, 0, uint64_t{1});
     },
     FoundBy::kKernel},
    {"a context that does not exist",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       ncclGin(gin.comm, 1).putValue(world, 1, window, 0, uint64_t{1});
     },
     FoundBy::kKernel},
    {"a wait for a signal that does not exist",
     [](const ncclGin& gin, ncclTeam, ncclWindow_t) { gin.waitSignal(ncclCoopThread(), 1, 1); },
     FoundBy::kKernel},
    {"a wait for a counter that does not exist",
     [](const ncclGin& gin, ncclTeam, ncclWindow_t) { gin.waitCounter(ncclCoopThread(), 1, 1); },
     FoundBy::kKernel},
    {"a reset of a signal that does not exist",
     [](const ncclGin& gin, ncclTeam, ncclWindow_t) { gin.resetSignal(1u << 30); },
     FoundBy::kKernel},
    {"a reset of a counter that does not exist",
     [](const ncclGin& gin, ncclTeam, ncclWindow_t) { gin.resetCounter(1u << 30); },
     FoundBy::kKernel},
    {"a shadow of a signal that does not exist",
     [](const ncclGin& gin, ncclTeam, ncclWindow_t) { gin.increaseSignalShadow(1u << 30, 1); },
     FoundBy::kKernel},
};

// Returns how a sentence about a mistake names who made it.
const char* WhoAsked() {
  return RanksAreGpus() ? "a kernel's operation on the network: " : "block 0, thread 0: ";
}

void AskWrongly(ncclDevComm comm, ncclWindow_t window, Mistake mistake) {
  const ncclGin gin(comm, 0);
  mistake(gin, ncclTeamWorld(comm), window);
  gin.flush(ncclCoopThread());
  gin.waitSignal(ncclCoopThread(), 0, 1);  // It never comes.
}
void WaitForSignal(ncclDevComm comm) { ncclGin(comm, 0).waitSignal(ncclCoopThread(), 0, 1); }

TEST_P(GinFaultTest, MistakesWriteNothingAndEndAllKernels) {
  for (const auto& [name, make, found_by] : kMistakes) {
    if (RanksAreGpus() && found_by == FoundBy::kKernel) continue;
    SCOPED_TRACE(name);
    std::atomic<int> ready = 0;
    RunRanks(
        2,
        [&ready, mistake = make](int rank, ncclComm_t comm) {
          GinWindow<uint64_t> window(comm, kWords);
          for (size_t i = 0; i < kWords; ++i) window.data()[i] = kUntouched + (rank == 0 ? 1 : 0);
          const GinDevComm devcomm(comm, AskGin(1, 1));
          // Not by a call of the library: the mistake would end that as well.
          ++ready;
          while (ready < 2) std::this_thread::yield();
          if (rank == 0) {
            EXPECT_EQ(tutti::Launch(AskWrongly, {}, devcomm.get(), window.get(), mistake),
                      ncclSuccess);
          } else {
            EXPECT_EQ(tutti::Launch(WaitForSignal, {}, devcomm.get()), ncclSuccess);
          }
          ncclResult_t error = ncclSuccess;
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
          EXPECT_NE(error, ncclSuccess);
          if (rank == 0) {
            EXPECT_EQ(error, ncclInvalidArgument);
            EXPECT_THAT(ncclGetLastError(comm), HasSubstr(WhoAsked()));
          }
          for (size_t i = 0; i < kWords; ++i)
            ASSERT_EQ(window.data()[i], kUntouched + (rank == 0 ? 1 : 0)) << "at " << i;
        },
        ncclCommAbort);
  }
}

// The window lies in the same memory of the same ranks, but the device communicator is another's.
TEST_P(GinFaultTest, TheWindowOfAnotherCommunicatorIsNone) {
  RunRanks(
      2,
      [](int rank, ncclComm_t comm) {
        ncclComm_t other = nullptr;
        ASSERT_EQ(ncclCommSplit(comm, 0, rank, &other, nullptr), ncclSuccess);
        {
          GinWindow<uint64_t> window(other, kWords);
          const GinDevComm devcomm(comm, AskGin(1, 1));
          const Mistake use = [](const ncclGin& gin, ncclTeam world, ncclWindow_t theirs) {
            gin.put(world, 1, theirs, 0, theirs, 0, 16, ncclGin_WeakSignalInc{0});
          };
          if (rank == 0) {
            window.data()[0] = 1;
            EXPECT_EQ(tutti::Launch(AskWrongly, {}, devcomm.get(), window.get(), use), ncclSuccess);
            EXPECT_THAT(ncclGetLastError(comm),
                        HasSubstr(std::string(WhoAsked()) + "the target of a put"));
          } else {
            EXPECT_EQ(tutti::Launch(WaitForSignal, {}, devcomm.get()), ncclSuccess);
            EXPECT_EQ(window.data()[0], 0u);
          }
          ncclResult_t error = ncclSuccess;
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
          EXPECT_EQ(error, ncclInvalidArgument);
        }
        EXPECT_EQ(ncclCommDestroy(other), ncclSuccess);
      },
      ncclCommAbort);
}

// A signal in a window without NCCL_WIN_STRICT_ORDERING is added, or refused with a sentence.
void AddToPlainWords(ncclDevComm comm, ncclWindow_t words) {
  const ncclGin gin(comm, 0);
  for (int round = 0; round < 50; ++round)
    for (int peer = 0; peer < comm.nRanks; ++peer)
      gin.signal(ncclTeamWorld(comm), peer, ncclGin_StrongVASignalAdd{words, 8, 3});
  gin.waitSignal(ncclCoopThread(), words, 8, 150 * static_cast<unsigned>(comm.nRanks));
}

TEST_P(GinFaultTest, SignalsInWindowsWithoutStrictOrderAreNotLostSilently) {
  RunRanks(
      2,
      [](int, ncclComm_t comm) {
        GinWindow<uint64_t> words(comm, kWords);
        const GinDevComm devcomm(comm, AskGin(1));
        EXPECT_EQ(tutti::Launch(AddToPlainWords, {}, devcomm.get(), words.get()), ncclSuccess);
        ncclResult_t error = ncclSuccess;
        EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        if (error == ncclSuccess) {
          EXPECT_EQ(words.data()[1], 300u);
          GinMeet(comm);
        } else {
          EXPECT_THAT(ncclGetLastError(comm), HasSubstr("NCCL_WIN_STRICT_ORDERING"));
        }
      },
      ncclCommAbort);
}

// The calls of kernels that were compiled with headers of an earlier version.
void SignalAsBefore(ncclDevComm comm) {
  device::GinOperation signal = {};
  signal.op = device::kGinPut | device::kGinSignalInc;
  signal.added = 1;
  EXPECT_EQ(tuttiHostGinDo(comm.ginHandles[0], 0, 1, device::PackGin(signal).words), 1);
}
void WaitAsBefore(ncclDevComm comm) {
  device::WaitRounds rounds(comm.abortFlag);
  do {
    tuttiHostGinWait(comm.ginHandles[0], 0, rounds.rounds());
  } while (rounds.AnotherAtOnce());
}

// Signals between ranks of one LSA team have one word.
TEST_P(GinFaultTest, KernelsOfEarlierHeadersAreRefusedBetweenHosts) {
  if (RanksAreGpus()) GTEST_SKIP() << "kernels of GPUs read one word of a signal";
  for (void (*const kernel)(ncclDevComm) : {SignalAsBefore, WaitAsBefore}) {
    RunRanks(
        2,
        [kernel](int rank, ncclComm_t comm) {
          const GinDevComm devcomm(comm, AskGin(1));
          const bool in_one_team = devcomm.get().lsaSize == 2;
          if (in_one_team && kernel == WaitAsBefore) return;
          EXPECT_EQ(tutti::Launch(rank == 0 ? kernel : WaitForSignal, {}, devcomm.get()),
                    ncclSuccess);
          ncclResult_t error = ncclSuccess;
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
          EXPECT_EQ(error == ncclSuccess, in_one_team) << ncclGetLastError(comm);
          if (rank == 0 && !in_one_team) {
            EXPECT_EQ(error, ncclInvalidUsage);
            EXPECT_THAT(ncclGetLastError(comm), HasSubstr("compile the program again"));
          }
        },
        ncclCommAbort);
  }
}

// A descriptor that names a window by an address of its own making.
void PostByHand(ncclDevComm comm, device::GinOperation operation) {
  device::GinPoster(comm.ginHandles[0], 0, comm.abortFlag).Post(1, operation);
  ncclGin(comm, 0).waitSignal(ncclCoopThread(), 0, 1);
}

TEST_P(GinFaultTest, DescriptorsOfGarbageEndTheKernel) {
  device::GinOperation window_of_nobody = {};
  window_of_nobody.op = device::kGinPut;
  window_of_nobody.bytes = 8;
  window_of_nobody.to_window = window_of_nobody.from_window = 0x1234567890;
  device::GinOperation unknown = {};
  unknown.op = 1 << 12;
  device::GinOperation long_value = {};
  long_value.op = device::kGinPut | device::kGinWithValue;
  long_value.bytes = 9;
  for (const device::GinOperation& operation : {window_of_nobody, unknown, long_value}) {
    RunRanks(
        2,
        [&](int rank, ncclComm_t comm) {
          const GinDevComm devcomm(comm, AskGin(1));
          if (rank == 0) {
            EXPECT_EQ(tutti::Launch(PostByHand, {}, devcomm.get(), operation), ncclSuccess);
          } else {
            EXPECT_EQ(tutti::Launch(WaitForSignal, {}, devcomm.get()), ncclSuccess);
          }
          ncclResult_t error = ncclSuccess;
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
          EXPECT_NE(error, ncclSuccess);
        },
        ncclCommAbort);
  }
}

// Claims slots of the queue to rank 1 for descriptors that never come, as a thread that is stuck
// between the two would.
void ClaimSlots(const ncclDevComm& comm, uint32_t slots) {
  auto* const context = static_cast<device::GinContext*>(comm.ginHandles[0]);
  cuda::atomic_ref<uint32_t>(context->pis[1]).fetch_add(slots);
}

// The waits of kernels, none of which ends by itself here.
using Wait = void (*)(const ncclDevComm& comm, const ncclGin& gin, ncclWindow_t window);
const struct {
  const char* name;
  Wait wait;
} kWaits[] = {
    {"waitSignal", [](const ncclDevComm&, const ncclGin& gin,
                      ncclWindow_t) { gin.waitSignal(ncclCoopCta(), 0, 1); }},
    {"waitSignal of a window", [](const ncclDevComm&, const ncclGin& gin,
                                  ncclWindow_t w) { gin.waitSignal(ncclCoopCta(), w, 8, 1); }},
    {"waitSignalMeetShadow",
     [](const ncclDevComm&, const ncclGin& gin, ncclWindow_t) {
       gin.increaseSignalShadow(0, 1);
       gin.waitSignalMeetShadow(ncclCoopCta(), 0);
     }},
    {"waitCounter", [](const ncclDevComm&, const ncclGin& gin,
                       ncclWindow_t) { gin.waitCounter(ncclCoopCta(), 0, 1); }},
    {"flush",
     [](const ncclDevComm& comm, const ncclGin& gin, ncclWindow_t) {
       ClaimSlots(comm, 1);
       gin.flush(ncclCoopCta());
     }},
    {"wait",
     [](const ncclDevComm& comm, const ncclGin& gin, ncclWindow_t) {
       ClaimSlots(comm, 1);
       ncclGinRequest_t request;
       gin.flushAsync(ncclTeamWorld(comm), 1, &request);
       gin.wait(request);
     }},
    {"a put into a full queue",
     [](const ncclDevComm& comm, const ncclGin& gin, ncclWindow_t window) {
       ClaimSlots(comm, 4);
       gin.putValue(ncclTeamWorld(comm), 1, window, 0, 1, ncclGin_WeakSignalInc{0});
     }},
    {"a barrier over the network",
     [](const ncclDevComm&, const ncclGin& gin, ncclWindow_t) {
       ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0);
     }},
    {"a barrier over both",
     [](const ncclDevComm&, const ncclGin& gin, ncclWindow_t) {
       ncclBarrier(ncclCoopCta(), ncclTeamTagWorld(), gin, 0);
     }},
};

void WaitOnce(ncclDevComm comm, ncclWindow_t window, Wait wait, std::atomic<bool>* waits) {
  *waits = true;
  wait(comm, ncclGin(comm, 0), window);
}

TEST_P(GinFaultTest, ARevokeEndsEveryWait) {
  for (const auto& [name, function] : kWaits) {
    SCOPED_TRACE(name);
    std::atomic<bool> waits = false, ended = false;
    std::atomic<ncclComm_t> waiting_comm = nullptr;
    RunRanks(
        2,
        [&, wait = function](int rank, ncclComm_t comm) {
          GinWindow<uint64_t> window(comm, 16);
          ncclDevCommRequirements_t asked = AskGin(1, 1);
          asked.worldGinBarrierCount = asked.barrierCount = 1;
          asked.ginQueueDepth = 4;
          const GinDevComm devcomm(comm, asked);
          if (rank == 0) {
            waiting_comm = comm;
            EXPECT_EQ(tutti::Launch(WaitOnce, {}, devcomm.get(), window.get(), wait, &waits),
                      ncclSuccess);
            ended = true;
            return;
          }
          while (!waits) std::this_thread::yield();
          EXPECT_FALSE(ended) << "nothing was waited for";
          EXPECT_EQ(ncclCommRevoke(waiting_comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
          while (!ended) std::this_thread::yield();
        },
        ncclCommAbort);
  }
}

void MeetInTime(ncclDevComm comm, std::atomic<int>* result) {
  const ncclGin gin(comm, 0);
  ncclGinBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), gin, ncclTeamTagWorld(), 0);
  *result =
      barrier.sync(ncclCoopThread(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Put, 1'000'000);
  // The barrier stays usable: the rank that was missing finds this one at it.
  barrier.sync(ncclCoopThread(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
}
void MeetTwice(ncclDevComm comm) {
  const ncclGin gin(comm, 0);
  ncclGinBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), gin, ncclTeamTagWorld(), 0);
  barrier.sync(ncclCoopThread(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
  barrier.sync(ncclCoopThread(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
}

TEST_P(GinFaultTest, ABarrierTimesOutWhileARankIsAbsent) {
  std::atomic<int> result = -1;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    ncclDevCommRequirements_t asked = AskGin(0);
    asked.worldGinBarrierCount = 1;
    const GinDevComm devcomm(comm, asked);
    if (rank == 0) {
      EXPECT_EQ(tutti::Launch(MeetInTime, {}, devcomm.get(), &result), ncclSuccess);
      return;
    }
    while (result == -1) std::this_thread::yield();
    EXPECT_EQ(tutti::Launch(MeetTwice, {}, devcomm.get()), ncclSuccess);
  });
  EXPECT_EQ(result, ncclTimeout);
}

TEST_P(GinFaultTest, RanksThatAskDifferentlyAllFailAndGoOn) {
  RunRanks(2, [](int rank, ncclComm_t comm) {
    const auto fails = [&](const ncclDevCommRequirements_t& asked, const char* difference) {
      ncclDevComm devcomm;
      EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr(difference));
    };
    fails(AskGin(1 + rank), "than rank 0: ginSignalCount 2 instead of ginSignalCount 1");
    fails(AskGin(1, rank), "ginCounterCount 1 instead of ginCounterCount 0");
    fails(AskGin(1, 1, 1 + rank), "ginContextCount 2 instead of ginContextCount 1");
    ncclDevCommRequirements_t asked = AskGin(1);
    asked.ginQueueDepth = 4 << rank;
    fails(asked, "ginQueueDepth 8 instead of ginQueueDepth 4");
    asked = AskGin(1);
    if (rank == 1) asked.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
    fails(asked, "ginConnectionType 2 instead of ginConnectionType 1");
    ncclDevResourceHandle_t buffer = 0;
    ncclDevResourceRequirements_t piece = {};
    piece.bufferSize = 1024 << rank;
    piece.outBufferHandle = &buffer;
    asked = AskGin(1);
    asked.resourceRequirementsList = &piece;
    fails(asked, "than rank 0: in a list of the requirements");
    const auto fails_as_none = [&](const ncclDevCommRequirements_t& wrong) {
      ncclDevComm devcomm;
      EXPECT_EQ(ncclDevCommCreate(comm, &wrong, &devcomm), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 ("));
    };
    asked = AskGin(1);
    if (rank == 1) asked.magic = 7;
    fails_as_none(asked);
    asked = AskGin(1);
    if (rank == 1) asked.version = NCCL_VERSION_CODE + 1;
    fails_as_none(asked);
    const GinDevComm devcomm(comm, AskGin(1));
    EXPECT_TRUE(devcomm.made());
  });
}

}  // namespace
}  // namespace tutti::testing
