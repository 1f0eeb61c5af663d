#include "perf/team.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

namespace tutti::tools {
namespace {

// After one rank failed, the remaining ranks have this long to report before the command is given
// up.
constexpr double kLastWordsSeconds = 2;
// A process whose socket closed is about to end; its status follows within this time.
constexpr double kEndSeconds = 2;
constexpr int kTickMs = 250;
constexpr size_t kMaxFailuresShown = 8;

// Formats "rank 1" or "ranks 0, 1".
std::string NameRanks(const std::set<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

// Waits at most `seconds` for the process to end. Returns false when the process still runs.
bool WaitForEnd(pid_t pid, double seconds, int* status) {
  const Deadline deadline = Deadline::AfterSeconds(seconds);
  for (;;) {
    const pid_t ended = waitpid(pid, status, WNOHANG);
    if (ended == pid) return true;
    if (ended < 0 && errno != EINTR) return false;
    if (deadline.Passed()) return false;
    poll(nullptr, 0, 5);
  }
}

}  // namespace

std::string DescribeEnd(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = strsignal(WTERMSIG(wait_status));
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status), name ? name : "?");
  }
  return fmt::format("ended with exit status {}", WEXITSTATUS(wait_status));
}

Result<pid_t> StartRankProcess(std::vector<UniqueFd> sockets, const EnvironmentChanges& changes) {
  std::string numbers;
  for (const UniqueFd& socket : sockets)
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ",", socket.get());
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError(errno, "starting a rank's process");
  if (pid > 0) return pid;
  // In the child, no path returns.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const UniqueFd& socket : sockets) fcntl(socket.get(), F_SETFD, 0);
  for (const auto& [name, value] : changes) setenv(name.c_str(), value.c_str(), 0);
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  execl("/proc/self/exe", "tutti", "perf-rank", "--sockets", numbers.c_str(),
        static_cast<char*>(nullptr));
  _exit(127);
}

Team::~Team() {
  for (Channel& channel : channels_) channel.Close();
  for (const RankProcess& process : processes_) kill(process.pid, SIGKILL);
  for (const RankProcess& process : processes_) waitpid(process.pid, nullptr, 0);
}

// Collects the answers to one command.
struct Team::Round {
  std::vector<std::optional<Json>> answers;
  std::vector<int> asked;
  size_t waiting = 0;
  size_t at_barrier = 0;
  struct Failure {
    std::set<int> ranks;
    std::string sentence;
  };
  std::vector<Failure> failures;
  Code code = Code::kRemoteError;

  // Ranks with the same sentence are named together.
  void AddFailure(int rank, std::string sentence, Code failure_code) {
    if (failures.empty()) code = failure_code;
    for (Failure& failure : failures) {
      if (failure.sentence != sentence) continue;
      failure.ranks.insert(rank);
      return;
    }
    failures.push_back({{rank}, std::move(sentence)});
  }

  std::string Describe() const {
    std::string text;
    for (size_t i = 0; i < std::min(failures.size(), kMaxFailuresShown); ++i) {
      const Failure& failure = failures[i];
      text += fmt::format("{}{} {}", i ? "\n  " : "", NameRanks(failure.ranks), failure.sentence);
    }
    return text;
  }
};

Result<std::vector<Json>> Team::AskAll(const Json& request, const std::string& doing,
                                       double timeout_s, const std::function<Json(int)>& per_rank) {
  Round round;
  round.answers.resize(channels_.size());
  for (int rank = 0; rank < size(); ++rank) {
    Json message = request;
    if (per_rank) message.update(per_rank(rank));
    round.asked.push_back(rank);
    // A dead rank shows when its answer is awaited.
    (void)channels_[static_cast<size_t>(rank)].Send(message).ok();
  }
  TUTTI_TRY(Collect(&round, doing, Deadline::AfterSeconds(timeout_s)));
  std::vector<Json> answers;
  for (auto& answer : round.answers) answers.push_back(std::move(*answer));
  return answers;
}

Result<Json> Team::AskOne(int rank, const Json& request, const std::string& doing,
                          double timeout_s) {
  Round round;
  round.answers.resize(channels_.size());
  round.asked.push_back(rank);
  (void)channels_[static_cast<size_t>(rank)].Send(request).ok();
  TUTTI_TRY(Collect(&round, doing, Deadline::AfterSeconds(timeout_s)));
  return std::move(*round.answers[static_cast<size_t>(rank)]);
}

Status Team::Collect(Round* round, const std::string& doing, Deadline deadline) {
  round->waiting = round->asked.size();
  bool giving_up = false;
  while (round->waiting > 0) {
    std::vector<pollfd> entries;
    std::vector<int> ranks;
    for (const int rank : round->asked) {
      const Channel& channel = channels_[static_cast<size_t>(rank)];
      if (round->answers[static_cast<size_t>(rank)] || !channel.open()) continue;
      entries.push_back({channel.fd(), POLLIN, 0});
      ranks.push_back(rank);
    }
    const int ready = poll(entries.data(), entries.size(), deadline.RemainingMs(kTickMs));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "waiting for the ranks");
    if (ready <= 0) {
      if (tick_) tick_();
      if (!deadline.Passed()) continue;
      if (giving_up) break;
      return Timeout("{}{} did not finish in time, while {}", label_,
                     NameRanks({ranks.begin(), ranks.end()}), doing);
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents) TUTTI_TRY(TakeFrom(ranks[i], round, doing));
    }
    ReleaseBarrier(round);
    if (!round->failures.empty() && !giving_up) {
      giving_up = true;
      deadline = Deadline::AfterSeconds(kLastWordsSeconds);
    }
  }
  if (round->failures.empty()) return {};
  return Status(round->code, label_ + round->Describe());
}

Status Team::TakeFrom(int rank, Round* round, const std::string& doing) {
  Channel& channel = channels_[static_cast<size_t>(rank)];
  Json message;
  const Result<bool> have = channel.TryReceive(&message);
  if (!have.ok()) {
    channel.Close();
    --round->waiting;
    round->AddFailure(rank, DescribeLoss(rank, doing), Code::kRemoteError);
    return {};
  }
  if (!have.value()) return {};
  if (message.contains("barrier")) {
    ++round->at_barrier;
    return {};
  }
  --round->waiting;
  if (message.contains("error")) {
    round->AddFailure(
        rank, fmt::format("failed: {}", message.value("error", "")),
        static_cast<Code>(message.value("code", static_cast<int>(Code::kInternalError))));
  }
  round->answers[static_cast<size_t>(rank)] = std::move(message);
  return {};
}

void Team::ReleaseBarrier(Round* round) {
  if (round->at_barrier < channels_.size()) return;
  round->at_barrier = 0;
  for (Channel& channel : channels_) {
    if (channel.open()) (void)channel.Send({{"go", true}}).ok();
  }
}

std::string Team::DescribeLoss(int rank, const std::string& doing) {
  for (const RankProcess& process : processes_) {
    if (std::find(process.ranks.begin(), process.ranks.end(), rank) == process.ranks.end())
      continue;
    siginfo_t info{};
    const Deadline deadline = Deadline::AfterSeconds(kEndSeconds);
    // Looks without reaping, for the process's further ranks to find the same status.
    while (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0 && !deadline.Passed()) {
      poll(nullptr, 0, 5);
    }
    if (info.si_pid == 0) break;
    const bool exited = info.si_code == CLD_EXITED;
    const int status = exited ? info.si_status << 8 : info.si_status;
    return fmt::format("(process {}) {} while {}", process.pid, DescribeEnd(status), doing);
  }
  return fmt::format("broke its connection while {}; its process has probably died", doing);
}

Status Team::Quit(double timeout_s) {
  TUTTI_TRY(AskAll({{"command", "quit"}}, "ending", timeout_s).status());
  for (Channel& channel : channels_) channel.Close();
  return Reap(timeout_s);
}

Status Team::Reap(double timeout_s) {
  while (!processes_.empty()) {
    const RankProcess process = processes_.back();
    int status = 0;
    if (!WaitForEnd(process.pid, timeout_s, &status)) {
      return Timeout("{}process {} did not end", label_, process.pid);
    }
    processes_.pop_back();
    if (status != 0) {
      return RemoteError("{}process {} of rank {} {} after its work was done", label_, process.pid,
                         process.ranks.front(), DescribeEnd(status));
    }
  }
  return {};
}

}  // namespace tutti::tools
