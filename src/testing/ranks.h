#pragma once

// Ranks for whole-process tests, each running a function: as threads of this process, or as
// processes of their own.
//
// GoogleTest's EXPECT and ASSERT may be used in the functions; the failures of a process appear in
// the test with the process's rank in front. Everything has a deadline: a rank that hangs prints
// the stacks of its threads and becomes a failure. A process that hangs is killed. Threads cannot
// be killed, hence a hanging thread ends the whole test program.
//
// A process that starts rank processes must not have used the library itself before (threads and
// locks do not survive a fork). Rank processes die with their parent.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::testing {

// Returns the factor for deadlines that only guard against hanging, since sanitizers slow
// everything down.
double TimeScale();

// Runs body(0) … body(num_ranks - 1) on threads and waits for them.
void RunRankThreads(int num_ranks, const std::function<void(int rank)>& body,
                    double deadline_s = 60);

// Memory that the test and its rank processes share, for handing ids round and for marking the
// progress of each. The numbers of slots are bounds of this class, nothing else.
class Board {
 public:
  static constexpr int kMostRanks = 64;

  // Waits until `count` processes have come to barrier number `number`; each number is good for one
  // meeting.
  void Meet(int number, int count);
  // Marks are numbers that start at 0.
  void Set(int mark, int64_t value);
  void Add(int mark, int64_t value);
  int64_t Get(int mark) const;
  // Waits for a mark. Returns false where the mark has not reached `value` in time.
  [[nodiscard]] bool Await(int mark, int64_t value, double deadline_s = 30) const;

  // Returns bytes of any kind by number, such as unique ids. Must be written before the Set or Meet
  // that tells the readers.
  std::array<std::byte, 256>& bytes(int number) { return bytes_[static_cast<size_t>(number)]; }
  // Returns the result of a rank, such as a hash of its output.
  uint64_t& result(int rank) { return results_[static_cast<size_t>(rank)]; }

 private:
  friend class RankProcesses;
  std::array<std::atomic<int64_t>, 256> marks_ = {};
  std::array<std::atomic<int>, 256> meetings_ = {};
  std::array<std::array<std::byte, 256>, 64> bytes_ = {};
  std::array<uint64_t, kMostRanks> results_ = {};
  struct Failure {
    std::atomic<size_t> length = 0;
    std::array<char, 16384> text = {};
  };
  std::array<Failure, kMostRanks> failures_ = {};
};

class RankProcesses {
 public:
  using Body = std::function<void(int rank, Board& board)>;

  // Starts the processes. `body` ends by returning.
  RankProcesses(int num_ranks, const Body& body);
  // Kills the processes that are left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  Board& board() { return *board_; }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
  // Sends a signal. After SIGKILL the death of the process is no failure. With SIGSTOP, returns
  // when the process is stopped.
  void Signal(int rank, int signal);
  // Waits until one process has ended.
  void AwaitEnd(int rank, double deadline_s = 60);
  // Announces that the process will kill itself with SIGKILL, which is then no failure.
  void ExpectDeath(int rank) { children_[static_cast<size_t>(rank)].killed = true; }
  // Waits until all have ended; failures are noted in the current test.
  void Wait(double deadline_s = 60);

 private:
  struct Child {
    pid_t pid = -1;
    bool killed = false;
    bool ended = false;
  };
  void RunChild(int rank, const Body& body);
  bool Reap(int rank, bool block);
  void Report(int rank, int wait_status);

  Board* board_;
  std::vector<Child> children_;
};

// Starts rank processes and waits for them.
void RunRankProcesses(int num_ranks, RankProcesses::Body body, double deadline_s = 60);

// Sets environment variables and restores their earlier values in the destructor. Not while other
// threads read the environment.
class Environment {
 public:
  using Settings = std::vector<std::pair<std::string, std::string>>;
  explicit Environment(const Settings& settings);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> restore_;
  std::vector<std::string> remove_;
};

}  // namespace tutti::testing
