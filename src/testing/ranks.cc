#include "testing/ranks.h"

#include <dirent.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "base/mutex.h"
#include "testing/sanitizer_slowdown.h"

namespace tutti::testing {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds * TimeScale()));
}

// The pause of loops that look for a change in shared memory.
void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

// The signal that makes a thread print its stack.
constexpr int kShowStack = SIGUSR2;

// Prints the stack of the thread that takes the signal, by functions that a signal handler may
// call. backtrace loads a library when it is first called, which ShowStacksOnRequest has done.
void OnShowStack(int) {
  const int saved_errno = errno;
  std::array<char, 16> name{};
  prctl(PR_GET_NAME, name.data());
  std::array<char, 128> line{};
  const int length = snprintf(line.data(), line.size(), "--- process %d, thread %ld (%s):\n",
                              getpid(), syscall(SYS_gettid), name.data());
  if (write(STDERR_FILENO, line.data(), static_cast<size_t>(length)) < 0) return;
  std::array<void*, 32> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  errno = saved_errno;
}

void ShowStacksOnRequest() {
  std::array<void*, 2> warm_up{};
  backtrace(warm_up.data(), static_cast<int>(warm_up.size()));
  struct sigaction action = {};
  action.sa_handler = OnShowStack;
  action.sa_flags = SA_RESTART;
  sigaction(kShowStack, &action, nullptr);
}

// Makes every thread of `pid` print its stack, one after another to keep the lines apart.
void ShowStacks(pid_t pid) {
  DIR* const dir = opendir(fmt::format("/proc/{}/task", pid).c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    const int thread = std::atoi(entry->d_name);
    if (thread <= 0) continue;
    syscall(SYS_tgkill, pid, thread, kShowStack);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  closedir(dir);
}

// Returns the failures of the current test so far, from part `begin` on.
std::string FailuresSince(int begin) {
  const ::testing::TestInfo* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return "";
  std::string text;
  for (int i = begin; i < info->result()->total_part_count(); ++i) {
    const ::testing::TestPartResult& part = info->result()->GetTestPartResult(i);
    if (!part.failed()) continue;
    text += fmt::format("{}:{}: {}\n", part.file_name() == nullptr ? "?" : part.file_name(),
                        part.line_number(), part.message());
  }
  return text;
}

// Returns how many results the current test has recorded so far.
int NumParts() {
  const ::testing::TestInfo* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  return info == nullptr ? 0 : info->result()->total_part_count();
}

}  // namespace

double TimeScale() { return kSanitizerSlowdown; }

void RunRankThreads(int num_ranks, const std::function<void(int rank)>& body, double deadline_s) {
  ShowStacksOnRequest();
  Mutex mutex;
  CondVar ended;
  int left = num_ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank);
      const MutexLock lock(mutex);
      if (--left == 0) ended.NotifyAll();
    });
  }
  {
    const Clock::time_point deadline = After(deadline_s);
    MutexLock lock(mutex);
    while (left > 0 && ended.WaitUntil(lock, deadline)) {
    }
    if (left > 0) {
      fmt::print(stderr, "{} of {} ranks are still running after {} s; where they stand:\n", left,
                 num_ranks, deadline_s);
      lock.Unlock();
      ShowStacks(getpid());
      _exit(3);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void Board::Meet(int number, int count) {
  std::atomic<int>& here = meetings_[static_cast<size_t>(number)];
  here.fetch_add(1);
  while (here.load() < count) Nap();  // the parent's deadline finds a process that never comes
}

void Board::Set(int mark, int64_t value) { marks_[static_cast<size_t>(mark)].store(value); }
void Board::Add(int mark, int64_t value) { marks_[static_cast<size_t>(mark)].fetch_add(value); }
int64_t Board::Get(int mark) const { return marks_[static_cast<size_t>(mark)].load(); }

bool Board::Await(int mark, int64_t value, double deadline_s) const {
  const auto deadline = After(deadline_s);
  while (Get(mark) < value) {
    if (Clock::now() > deadline) return false;
    Nap();
  }
  return true;
}

RankProcesses::RankProcesses(int num_ranks, const Body& body)
    : children_(static_cast<size_t>(num_ranks)) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    ADD_FAILURE() << "no memory to share with rank processes: " << strerror(errno);
    std::abort();
  }
  board_ = new (memory) Board;
  for (int rank = 0; rank < num_ranks; ++rank) {
    fflush(nullptr);  // otherwise the child would print the buffered text again
    const pid_t pid = fork();
    if (pid == 0) RunChild(rank, body);
    if (pid < 0) ADD_FAILURE() << "rank " << rank << " cannot be forked: " << strerror(errno);
    children_[static_cast<size_t>(rank)].pid = pid;
    if (pid < 0) children_[static_cast<size_t>(rank)].ended = true;
  }
}

// Runs the body in the child, hands its failures to the parent by the board, and ends the process.
// The child has inherited the results that the test recorded before the fork, which are not the
// child's own.
void RankProcesses::RunChild(int rank, const Body& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ShowStacksOnRequest();
  const int begin = NumParts();
  body(rank, *board_);
  const std::string text = FailuresSince(begin);
  Board::Failure& failure = board_->failures_[static_cast<size_t>(rank)];
  const size_t length = std::min(text.size(), failure.text.size());
  std::memcpy(failure.text.data(), text.data(), length);
  failure.length.store(length);
  fflush(nullptr);
  // The child does not call exit, because the clean-up of the test program is the parent's.
  _exit(text.empty() ? 0 : 1);
}

// Turns the end of a process into failures of the current test. Failures of the process's own tests
// say more than its exit status.
void RankProcesses::Report(int rank, int wait_status) {
  const Child& child = children_[static_cast<size_t>(rank)];
  const Board::Failure& failure = board_->failures_[static_cast<size_t>(rank)];
  if (const size_t length = failure.length.load(); length > 0) {
    ADD_FAILURE() << "rank " << rank << " (process " << child.pid << ") failed:\n"
                  << std::string(failure.text.data(), length);
  } else if (WIFSIGNALED(wait_status) && !(child.killed && WTERMSIG(wait_status) == SIGKILL)) {
    ADD_FAILURE() << "rank " << rank << " (process " << child.pid << ") died of signal "
                  << WTERMSIG(wait_status) << ", " << strsignal(WTERMSIG(wait_status));
  } else if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != 0) {
    ADD_FAILURE() << "rank " << rank << " (process " << child.pid << ") ended with status "
                  << WEXITSTATUS(wait_status);
  }
}

// Returns whether the process has ended, and reports the end once.
bool RankProcesses::Reap(int rank, bool block) {
  Child& child = children_[static_cast<size_t>(rank)];
  if (child.ended) return true;
  int wait_status = 0;
  if (waitpid(child.pid, &wait_status, block ? 0 : WNOHANG) != child.pid) return false;
  child.ended = true;
  Report(rank, wait_status);
  return true;
}

void RankProcesses::Signal(int rank, int signal) {
  Child& child = children_[static_cast<size_t>(rank)];
  if (child.ended) return;
  if (signal == SIGKILL) child.killed = true;
  kill(child.pid, signal);
  // The threads run on until each next enters the kernel: wait for the stop.
  siginfo_t stopped;
  if (signal == SIGSTOP)
    waitid(P_PID, static_cast<id_t>(child.pid), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

void RankProcesses::AwaitEnd(int rank, double deadline_s) {
  const auto deadline = After(deadline_s);
  while (!Reap(rank, false) && Clock::now() < deadline) Nap();
}

void RankProcesses::Wait(double deadline_s) {
  const auto deadline = After(deadline_s);
  const int num_ranks = static_cast<int>(children_.size());
  while (Clock::now() < deadline) {
    bool all = true;
    for (int rank = 0; rank < num_ranks; ++rank) all &= Reap(rank, false);
    if (all) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (Reap(rank, false)) continue;
    ADD_FAILURE() << "rank " << rank << " (process " << pid(rank) << ") is still running after "
                  << deadline_s << " s";
    kill(pid(rank), SIGCONT);  // a stopped process would not print
    ShowStacks(pid(rank));
    Signal(rank, SIGKILL);
    Reap(rank, true);
  }
}

RankProcesses::~RankProcesses() {
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    if (children_[static_cast<size_t>(rank)].ended) continue;
    Signal(rank, SIGKILL);
    Reap(rank, true);
  }
  munmap(board_, sizeof(Board));
}

void RunRankProcesses(int num_ranks, RankProcesses::Body body, double deadline_s) {
  RankProcesses processes(num_ranks, std::move(body));
  processes.Wait(deadline_s);
}

Environment::Environment(const Settings& settings) {
  for (const auto& [name, value] : settings) {
    if (const char* const old = getenv(name.c_str()))
      restore_.emplace_back(name, old);
    else
      remove_.push_back(name);
    setenv(name.c_str(), value.c_str(), 1);
  }
}

Environment::~Environment() {
  for (const auto& [name, value] : restore_) setenv(name.c_str(), value.c_str(), 1);
  for (const std::string& name : remove_) unsetenv(name.c_str());
}

}  // namespace tutti::testing
