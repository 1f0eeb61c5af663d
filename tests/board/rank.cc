// One rank of a job of the fault board (tests/board/board): makes the call of a phase again and
// again until the call fails, or the driver has seen enough; then goes on without the lost ranks.
//
// Usage: board_rank SHARED_FILE RANK RANKS PHASE [NAMESPACE]
//
// SHARED_FILE holds a Shared, by which the driver and the ranks of a job meet. RANK may be RANKS:
// the rank that comes in phase grow. NAMESPACE is the file of the rank's network namespace. The
// rank writes a line of JSON for each event, with the time of CLOCK_MONOTONIC.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nccl.h"
#include "testing/connections.h"
#include "tutti/tutti.h"

namespace {

using Json = nlohmann::json;
using tutti::testing::Connections;

constexpr int kMostRanks = 8;
// A call that goes on after a fault tells of the loss within this time, or not at all.
constexpr int64_t kKnownNs = 1'000'000'000;
// Connections end in their own time. A root that has failed listens for 10 s, to tell late ranks.
constexpr int64_t kOwnTimeNs = 12'000'000'000;
// The most attempts to go on without lost ranks. Each attempt that fails shows a further loss.
constexpr int kShrinks = 8;

enum class Command : int32_t { kNone, kExit, kResetLink, kResetData };

// The layout is known to the driver: 32-bit numbers in the order below, then the ids.
struct Shared {
  std::atomic<int32_t> go;                  // the driver lets all ranks enter the phase
  std::atomic<int32_t> finish;              // the driver has seen enough
  std::atomic<int32_t> id_made;             // `id` is there
  std::atomic<int32_t> grow_ids;            // how many ids were in `grow_id`
  std::atomic<int32_t> ready[kMostRanks];   // the rank waits for `go`
  std::atomic<int32_t> rounds[kMostRanks];  // the calls of the rank that have ended
  std::atomic<int32_t> commands[kMostRanks];
  ncclUniqueId id;
  ncclUniqueId grow_id;
};

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

// Ends a connection by a reset, as a broken way would.
void Reset(int fd) {
  sockaddr nowhere = {};
  nowhere.sa_family = AF_UNSPEC;
  connect(fd, &nowhere, sizeof(nowhere));
}

int64_t Descriptors() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class BoardRank {
 public:
  BoardRank(Shared& shared, int rank, int ranks, std::string phase)
      : shared_(shared), rank_(rank), ranks_(ranks), phase_(std::move(phase)) {}

  int Run() {
    Rehearse();
    const int64_t descriptors = Descriptors();
    std::jthread commands([this](const std::stop_token& stop) { FollowCommands(stop); });
    if (rank_ == ranks_)
      RunNewcomer();
    else
      RunMember();
    const int64_t until_ns = NowNs() + kOwnTimeNs;
    while (Descriptors() > descriptors && NowNs() < until_ns) Nap();
    Say({{"event", "end"}, {"descriptors", Descriptors() - descriptors}});
    return 0;
  }

 private:
  void Say(Json event) {
    event["rank"] = rank_;
    event["ns"] = NowNs();
    const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(2);
  }

  // A job of one rank leaves behind whatever the library keeps for all communicators.
  void Rehearse() {
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    if (ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess)
      ncclCommDestroy(comm);
  }

  // Carries out the driver's orders, which concern this process's connections or its end. Where
  // there is no connection to reset yet, the next one is reset.
  void FollowCommands(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Nap();
      const auto command = static_cast<Command>(shared_.commands[rank_].exchange(0));
      if (command == Command::kExit) {
        exit_wanted_ = true;
      } else if (command == Command::kResetLink || command == Command::kResetData) {
        std::vector<int> wanted;
        for (const int fd : Connections())
          if ((links_.contains(fd) || phase_ == "init") == (command == Command::kResetLink))
            wanted.push_back(fd);
        if (wanted.empty()) {
          shared_.commands[rank_] = static_cast<int32_t>(command);
          continue;
        }
        Reset(wanted[static_cast<size_t>(NowNs()) % wanted.size()]);
        Say({{"event", "reset"}, {"connections", wanted.size()}});
      }
    }
  }

  void ExitIfWanted() {
    if (!exit_wanted_) return;
    Say({{"event", "exit"}});
    exit(0);
  }

  void RunMember() {
    if (rank_ == 0) {
      if (ncclGetUniqueId(&shared_.id) != ncclSuccess) return Fail("ncclGetUniqueId", nullptr);
      shared_.id_made = 1;
    }
    while (shared_.id_made == 0) Nap();
    const auto init = [&] { return ncclCommInitRank(&comm_, ranks_, shared_.id, rank_); };
    if (phase_ == "init") AwaitGo();
    if (init() != ncclSuccess) return Fail("ncclCommInitRank", nullptr);
    if (phase_ != "init") {
      links_ = Connections();
      for (int i = 0; phase_ != "first" && i < 3; ++i)
        if (Reduce(comm_) != ncclSuccess) return Fail("ncclAllReduce before the fault", comm_);
      AwaitGo();
    }
    if (phase_ == "finalize") return Finalize();
    const char* call = Work();
    if (call != nullptr) {
      Fail(call, comm_);
      GoOn();
    } else {
      Say({{"event", "survived"}, {"rounds", shared_.rounds[rank_].load()}});
      End(ncclCommDestroy);
    }
  }

  void AwaitGo() {
    shared_.ready[rank_] = 1;
    while (shared_.go == 0) Nap();
    ExitIfWanted();
  }

  void Finalize() {
    const ncclResult_t result = ncclCommDestroy(comm_);
    ExitIfWanted();
    Say({{"event", "destroyed"}, {"code", static_cast<int>(result)}});
  }

  // Returns the name of the call that failed; null when the driver has seen enough.
  const char* Work() {
    while (!enough_) {
      ExitIfWanted();
      if (const char* failed = CallOnce()) return failed;
      // In phase grow the ranks agree in the new communicator that there was enough.
      if (phase_ == "grow") continue;
      if (Reduce(comm_) != ncclSuccess) return "ncclAllReduce";
      ++shared_.rounds[rank_];
    }
    return nullptr;
  }

  const char* CallOnce() {
    ncclComm_t child = nullptr;
    if (phase_ == "split") {
      if (ncclCommSplit(comm_, rank_ % 2, rank_, &child, nullptr) != ncclSuccess)
        return "ncclCommSplit";
    } else if (phase_ == "shrink" && rank_ < ranks_ - 1) {
      int last = ranks_ - 1;
      if (ncclCommShrink(comm_, &last, 1, &child, nullptr, NCCL_SHRINK_DEFAULT) != ncclSuccess)
        return "ncclCommShrink";
    } else if (phase_ == "grow") {
      return Grow();
    } else if (phase_ == "window") {
      ncclWindow_t window = nullptr;
      if (ncclCommWindowRegister(comm_, nullptr, 4096, &window, NCCL_WIN_DEFAULT) != ncclSuccess)
        return "ncclCommWindowRegister";
      if (ncclCommWindowDeregister(comm_, window) != ncclSuccess) return "ncclCommWindowDeregister";
    } else if (phase_ == "suspend") {
      if (ncclCommSuspend(comm_, NCCL_SUSPEND_MEM) != ncclSuccess) return "ncclCommSuspend";
      if (ncclCommResume(comm_) != ncclSuccess) return "ncclCommResume";
    }
    if (child != nullptr) ncclCommAbort(child);
    return nullptr;
  }

  const char* Grow() {
    ncclUniqueId id;
    if (rank_ == 0) {
      if (ncclCommGetUniqueId(comm_, &id) != ncclSuccess) return "ncclCommGetUniqueId";
      shared_.grow_id = id;
      ++shared_.grow_ids;
    }
    ncclComm_t grown = nullptr;
    if (ncclCommGrow(comm_, ranks_ + 1, rank_ == 0 ? &id : nullptr, -1, &grown, nullptr) !=
        ncclSuccess)
      return "ncclCommGrow";
    return UseGrown(grown);
  }

  const char* UseGrown(ncclComm_t grown) {
    ncclResult_t result = Reduce(grown);
    if (result == ncclSuccess) result = AwaitOthers(grown);
    if (result == ncclSuccess) return ncclCommDestroy(grown) == ncclSuccess ? nullptr : "destroy";
    error_ = ncclGetLastError(grown);
    ncclCommAbort(grown);
    return "ncclAllReduce of the grown communicator";
  }

  // A rank that goes on while another rank fails in the grown communicator would wait for that rank
  // in the parent, where the lost newcomer is unknown. Waits for the others, or for the loss.
  ncclResult_t AwaitOthers(ncclComm_t grown) {
    const int32_t mine = ++shared_.rounds[rank_];
    const auto all_are_here = [&] {
      return std::all_of(shared_.rounds, shared_.rounds + ranks_ + 1,
                         [mine](const auto& rounds) { return rounds >= mine; });
    };
    ncclResult_t state = ncclSuccess;
    for (const int64_t until_ns = NowNs() + kKnownNs; state == ncclSuccess && !all_are_here();) {
      if (NowNs() > until_ns) break;
      Nap();
      if (ncclCommGetAsyncError(grown, &state) != ncclSuccess) break;
    }
    return state;
  }

  void RunNewcomer() {
    AwaitGo();
    for (int32_t seen = 0; !enough_; ++seen) {
      while (shared_.grow_ids == seen && shared_.finish != 2) Nap();
      if (shared_.grow_ids == seen) return;
      ExitIfWanted();
      const ncclUniqueId id = shared_.grow_id;
      ncclComm_t grown = nullptr;
      if (ncclCommGrow(nullptr, ranks_ + 1, &id, ranks_, &grown, nullptr) != ncclSuccess)
        return Fail("ncclCommGrow of the newcomer", nullptr);
      if (const char* failed = UseGrown(grown)) return Fail(failed, nullptr);
    }
    Say({{"event", "survived"}, {"rounds", shared_.rounds[rank_].load()}});
  }

  // Adds up what the ranks know of the driver's wish, and checks the sum of the rest.
  ncclResult_t Reduce(ncclComm_t comm) {
    constexpr size_t kCount = 1000;
    static std::array<float, kCount> data;
    data.fill(1.0f);
    data[0] = shared_.finish != 0 ? 1.0f : 0.0f;
    const ncclResult_t result =
        ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, comm, nullptr);
    if (result != ncclSuccess) return result;
    int count = 0;
    ncclCommCount(comm, &count);
    for (size_t i = 1; i < kCount; ++i)
      if (data[i] != static_cast<float>(count)) {
        Say({{"event", "wrong result"}, {"value", data[i]}});
        _exit(3);
      }
    enough_ = data[0] > 0;
    return ncclSuccess;
  }

  using RankList = ncclResult_t (*)(ncclComm_t, int*, int, int*);
  std::set<int> Listed(RankList list) const {
    std::array<int, kMostRanks> ranks;
    int count = 0;
    if (comm_ == nullptr || list(comm_, ranks.data(), kMostRanks, &count) != ncclSuccess) return {};
    return {ranks.begin(), ranks.begin() + count};
  }
  std::set<int> Gone() const {
    std::set<int> gone = Listed(tuttiCommGetLostRanks);
    gone.merge(Listed(tuttiCommGetHungRanks));
    return gone;
  }

  void Fail(const char* call, ncclComm_t comm) {
    ExitIfWanted();
    if (error_.empty() && comm != nullptr) error_ = ncclGetLastError(comm);
    if (error_.empty()) error_ = ncclGetLastError(nullptr);
    Say({{"event", "error"}, {"call", call}, {"text", error_}, {"gone", Gone()}});
  }

  // Makes a communicator without the ranks that are lost or hung.
  void GoOn() {
    const int64_t start_ns = NowNs();
    std::set<int> tried;
    for (int attempt = 0; attempt < kShrinks; ++attempt) {
      std::set<int> gone = Gone();
      for (const int64_t until_ns = NowNs() + kKnownNs; gone == tried && NowNs() < until_ns;) {
        Nap();
        gone = Gone();
      }
      if (gone.empty()) {
        Say({{"event", "nobody is gone"}});
        break;
      }
      if (gone.contains(rank_)) {
        Say({{"event", "excluded"}, {"gone", gone}});
        break;
      }
      if (TryWithout(gone, start_ns)) return End(ncclCommAbort);
      tried = gone;
    }
    End(ncclCommAbort);
  }

  bool TryWithout(const std::set<int>& gone, int64_t start_ns) {
    std::vector<int> excluded(gone.begin(), gone.end());
    ncclComm_t fewer = nullptr;
    ncclResult_t result = ncclCommShrink(comm_, excluded.data(), static_cast<int>(excluded.size()),
                                         &fewer, nullptr, NCCL_SHRINK_ABORT);
    std::string told = result == ncclSuccess ? "" : ncclGetLastError(nullptr);
    if (result == ncclSuccess && (result = Reduce(fewer)) != ncclSuccess)
      told = ncclGetLastError(fewer);
    int count = 0;
    if (result == ncclSuccess) ncclCommCount(fewer, &count);
    Say({{"event", result == ncclSuccess ? "shrunk" : "shrink failed"},
         {"gone", gone},
         {"count", count},
         {"took_ns", NowNs() - start_ns},
         {"text", told}});
    if (fewer != nullptr) (result == ncclSuccess ? ncclCommDestroy : ncclCommAbort)(fewer);
    return result == ncclSuccess;
  }

  void End(ncclResult_t (*end)(ncclComm_t)) {
    const ncclResult_t result = end(comm_);
    comm_ = nullptr;
    if (result != ncclSuccess)
      Say({{"event", "destroy failed"}, {"text", ncclGetLastError(nullptr)}});
  }

  Shared& shared_;
  const int rank_;
  const int ranks_;
  const std::string phase_;
  ncclComm_t comm_ = nullptr;
  std::set<int> links_;  // the connections before the first operation
  bool enough_ = false;
  std::atomic<bool> exit_wanted_ = false;
  std::string error_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  if (argc > 5) {
    const int fd = open(argv[5], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) return 2;
    close(fd);
  }
  const int fd = open(argv[1], O_RDWR | O_CLOEXEC);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 2;
  close(fd);
  return BoardRank(*static_cast<Shared*>(memory), atoi(argv[2]), atoi(argv[3]), argv[4]).Run();
}
