#include "run/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "launch/handshake.h"
#include "perf/team.h"

namespace tutti::tools {
namespace {

constexpr int kExitCannotStart = 127;
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
// A line longer than this is written in pieces, so that a rank without line ends does not fill the
// memory.
constexpr size_t kMaxLine = 1 << 20;
// Reads of one output in a row: a rank that never stops writing must not keep signals and the other
// ranks waiting.
constexpr int kReadsAtOnce = 4;
// Empties a pipe of the largest size that a rank without privileges can give it, 1 MiB.
constexpr int kReadsAtTheEnd = 64;

// Passes on what a rank writes, whole lines at a time, each with the rank's number.
class TaggedOutput {
 public:
  TaggedOutput(int rank, UniqueFd source, std::FILE* target)
      : rank_(rank), source_(std::move(source)), target_(target) {}

  int fd() const { return source_.get(); }

  // Passes on what there is, at most `reads` times 16 KiB.
  void Drain(int reads) {
    char buffer[16384];
    for (int i = 0; i < reads; ++i) {
      const ssize_t got = read(source_.get(), buffer, sizeof(buffer));
      if (got > 0) {
        pending_.append(buffer, static_cast<size_t>(got));
        WriteLines(pending_.size() > kMaxLine);
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      WriteLines(true);
      source_.Reset();
      return;
    }
  }

 private:
  void WriteLines(bool rest_too) {
    size_t begin = 0;
    for (size_t end = searched_; (end = pending_.find('\n', end)) != std::string::npos;) {
      fmt::print(target_, "[{}] {}\n", rank_,
                 std::string_view(pending_).substr(begin, end - begin));
      begin = ++end;
    }
    pending_.erase(0, begin);
    if (rest_too && !pending_.empty()) {
      fmt::print(target_, "[{}] {}\n", rank_, pending_);
      pending_.clear();
    }
    searched_ = pending_.size();
    std::fflush(target_);
  }

  const int rank_;
  UniqueFd source_;
  std::FILE* const target_;
  std::string pending_;
  size_t searched_ = 0;  // of pending_, without a line end
};

struct RankEnvironment {
  int rank;
  int num_ranks;
  uint16_t port;
  const std::string& key;
};

void SetEnvironment(const RankEnvironment& environment) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(environment.rank));
  set("LOCAL_RANK", std::to_string(environment.rank));
  set("WORLD_SIZE", std::to_string(environment.num_ranks));
  set("LOCAL_WORLD_SIZE", std::to_string(environment.num_ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(environment.port));
  setenv("TUTTI_COMM_KEY", environment.key.c_str(), 0);  // A person's own key stays.
  // Of a launcher further out; these ranks are another job.
  for (const char* name :
       {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    unsetenv(name);
  }
}

// Deals the allowed cores out to the ranks: each gets an equal share of neighbours, or one core in
// turn where ranks outnumber cores.
void BindRank(int rank, int num_ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  const size_t share = cores.size() / static_cast<size_t>(num_ranks);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (share == 0) {
    CPU_SET(cores[static_cast<size_t>(rank) % cores.size()], &mine);
  } else {
    for (size_t i = 0; i < share; ++i) CPU_SET(cores[static_cast<size_t>(rank) * share + i], &mine);
  }
  sched_setaffinity(0, sizeof(mine), &mine);
}

class Launcher {
 public:
  explicit Launcher(const RunOptions& options) : options_(options) {}

  int Run() {
    BlockSignals();
    // What ranks leave behind becomes our child, so that it can be ended with them.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!ChoosePort()) return 1;
    const launch::Key random = launch::RandomKey();
    key_ = launch::ToHex({reinterpret_cast<const char*>(random.data()), random.size()});
    pids_.assign(static_cast<size_t>(options_.num_ranks), -1);
    for (int rank = 0; rank < options_.num_ranks && result_ == 0; ++rank) Start(rank);
    // The ranks hold the only further copies of the ends of their pipes.
    while (alive_ > 0) WaitOnce();
    if (result_ != 0) KillOrphans();
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtTheEnd);
    }
    return result_;
  }

 private:
  // Signals are read from a descriptor, so that none arrives between two system calls.
  void BlockSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : kForwarded) sigaddset(&signals, signal);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &old_mask_);
    signal_fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  bool ChoosePort() {
    if (options_.port) {
      port_ = static_cast<uint16_t>(options_.port);
      return true;
    }
    const Result<UniqueFd> listener = launch::Listen({0}, &port_);
    if (!listener.ok()) fmt::print(stderr, "tutti run: {}\n", listener.status().message());
    return listener.ok();
  }

  UniqueFd MakePipe(int rank, std::FILE* target) {
    int ends[2];
    if (!options_.tag || pipe2(ends, O_CLOEXEC) != 0) return UniqueFd();
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    outputs_.push_back(std::make_unique<TaggedOutput>(rank, UniqueFd(ends[0]), target));
    return UniqueFd(ends[1]);
  }

  void Start(int rank) {
    const UniqueFd out = MakePipe(rank, stdout);
    const UniqueFd err = MakePipe(rank, stderr);
    // Tells why exec failed; closes by itself when it did not.
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) return CannotStart(rank, errno);
    const UniqueFd report_in(report[0]);
    UniqueFd report_out(report[1]);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return CannotStart(rank, errno);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      Become(rank, out.get(), err.get(), report_out.get());
    }
    report_out.Reset();
    int error = 0;
    const bool failed = read(report_in.get(), &error, sizeof(error)) == sizeof(error);
    if (failed) {
      waitpid(pid, nullptr, 0);
      return CannotStart(rank, error);
    }
    pids_[static_cast<size_t>(rank)] = pid;
    ++alive_;
  }

  // In the child; does not return.
  [[noreturn]] void Become(int rank, int out, int err, int report) {
    SetEnvironment({rank, options_.num_ranks, port_, key_});
    if (options_.bind) BindRank(rank, options_.num_ranks);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    if (err >= 0) dup2(err, STDERR_FILENO);
    // One terminal cannot serve several readers; rank 0 has it.
    if (rank != 0) {
      if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
    }
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    std::vector<char*> arguments;
    for (const std::string& word : options_.command)
      arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(report, &error, sizeof(error));
    _exit(kExitCannotStart);
  }

  void CannotStart(int rank, int error) {
    fmt::print(stderr, "tutti run: rank {} cannot be started: {}: {}\n", rank,
               options_.command.front(), strerrordesc_np(error));
    Fail(kExitCannotStart);
  }

  void WaitOnce() {
    std::vector<pollfd> entries = {{signal_fd_.get(), POLLIN, 0}};
    for (const auto& output : outputs_) {
      if (output->fd() >= 0) entries.push_back({output->fd(), POLLIN, 0});
    }
    poll(entries.data(), entries.size(), kill_at_ ? kill_at_->RemainingMs(1000) : 1000);
    signalfd_siginfo info;
    while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) Forward(static_cast<int>(info.ssi_signo), info.ssi_code);
    }
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtOnce);
    }
    Reap();
    if (kill_at_ && kill_at_->Passed()) {
      KillAll(SIGKILL);
      kill_at_.reset();
    }
  }

  void Forward(int signal, int code) {
    // A key such as Ctrl-C reaches the ranks from the terminal itself, since they are in its
    // foreground group too.
    if (code != SI_KERNEL) KillAll(signal);
    if (signal == SIGUSR1 || signal == SIGUSR2) return;
    if (!interrupted_)
      fmt::print(stderr, "tutti run: got signal {} ({}), ending\n", signal, strsignal(signal));
    if (result_ == 0) result_ = 128 + signal;
    // A second Ctrl-C does not wait.
    kill_at_ = Deadline::AfterSeconds(interrupted_ ? 0 : options_.grace_s);
    interrupted_ = true;
  }

  void Reap() {
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      pid_t& pid = pids_[static_cast<size_t>(rank)];
      int status = 0;
      if (pid < 0 || waitpid(pid, &status, WNOHANG) != pid) continue;
      if (status != 0 && result_ == 0) {
        fmt::print(stderr, "tutti run: rank {} (process {}) {}; ending the others\n", rank, pid,
                   DescribeEnd(status));
        Fail(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
      }
      pid = -1;
      --alive_;
    }
  }

  void Fail(int result) {
    result_ = result;
    KillAll(SIGTERM);
    if (!kill_at_) kill_at_ = Deadline::AfterSeconds(options_.grace_s);
  }

  void KillAll(int signal) {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, signal);
    }
  }

  // Ends the processes that ranks started and did not wait for. Each round may bring to light
  // children of those killed in the round before.
  static void KillOrphans() {
    constexpr int kMostRounds = 100;
    for (int round = 0; round < kMostRounds; ++round) {
      std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
      bool any = false;
      for (pid_t pid = 0; children >> pid; any = true) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
      if (!any) return;
    }
  }

  const RunOptions& options_;
  sigset_t old_mask_{};
  UniqueFd signal_fd_;
  uint16_t port_ = 0;
  std::string key_;
  std::vector<pid_t> pids_;
  int alive_ = 0;
  std::vector<std::unique_ptr<TaggedOutput>> outputs_;
  int result_ = 0;
  bool interrupted_ = false;
  std::optional<Deadline> kill_at_;
};

}  // namespace

int RunProgram(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace tutti::tools
