#include "run/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace tutti::tools {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
// A longer line is written in pieces, lest a rank without line ends fill the memory.
constexpr size_t kMaxLine = 1 << 20;

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

void TaggedOutput::Drain(int reads) {
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

void TaggedOutput::WriteLines(bool rest_too) {
  size_t begin = 0;
  for (size_t end = searched_; (end = pending_.find('\n', end)) != std::string::npos;) {
    fmt::print(target_, "[{}] {}\n", tag_, std::string_view(pending_).substr(begin, end - begin));
    begin = ++end;
  }
  pending_.erase(0, begin);
  if (rest_too && !pending_.empty()) {
    fmt::print(target_, "[{}] {}\n", tag_, pending_);
    pending_.clear();
  }
  searched_ = pending_.size();
  std::fflush(target_);
}

Environment::Environment() {
  for (char** entry = environ; entry && *entry; ++entry) {
    const char* const equals = std::strchr(*entry, '=');
    if (equals) variables_[std::string(*entry, static_cast<size_t>(equals - *entry))] = equals + 1;
  }
}

std::string Environment::Get(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? "" : found->second;
}

void Environment::RemovePlaces() {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "HOROVOD_RANK",
                           "HOROVOD_SIZE",
                           "HOROVOD_LOCAL_RANK",
                           "HOROVOD_LOCAL_SIZE",
                           "HOROVOD_CROSS_RANK",
                           "HOROVOD_CROSS_SIZE",
                           "HOROVOD_HOSTNAME",
                           "HOROVOD_ELASTIC",
                           "HOROVOD_GLOO_RENDEZVOUS_ADDR",
                           "HOROVOD_GLOO_RENDEZVOUS_PORT",
                           "TUTTI_ADDR",
                           "TUTTI_ELASTIC_ADDR",
                           "TUTTI_ELASTIC_WORKER",
                           "TUTTI_STORE_ADDR"}) {
    variables_.erase(name);
  }
}

std::vector<std::string> Environment::Lines() const {
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables_) lines.push_back(fmt::format("{}={}", name, value));
  return lines;
}

Result<pid_t> Spawn(const SpawnRequest& request) {
  const std::vector<std::string> lines = request.environment.Lines();
  const std::vector<char*> environment = Pointers(lines);
  const std::vector<char*> arguments = Pointers(request.command);
  // Tells why exec failed; closes by itself when exec succeeded.
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return ErrnoError(errno, "a pipe for a new process");
  const UniqueFd report_in(report[0]);
  UniqueFd report_out(report[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError(errno, "starting a process");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (request.own_group) setpgid(0, 0);
    if (request.prepare) request.prepare();
    if (request.in >= 0) dup2(request.in, STDIN_FILENO);
    if (request.out >= 0) dup2(request.out, STDOUT_FILENO);
    if (request.err >= 0) dup2(request.err, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
    execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(report_out.get(), &error, sizeof(error));
    _exit(kExitCannotStart);
  }
  report_out.Reset();
  int error = 0;
  if (read(report_in.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    return SystemError("{}", strerrordesc_np(error));
  }
  return pid;
}

Result<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "a pipe");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd OpenNull() { return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)); }

SignalReader::SignalReader() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kForwarded) sigaddset(&signals, signal);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, &old_mask_);
  fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

void SignalReader::Read(const std::function<void(int signal, bool from_terminal)>& take) {
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) {
      take(static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL);
    }
  }
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

// Each round may find children of the processes that were killed in the round before. The list has
// the children of the calling thread; the main thread starts processes and adopts orphans.
void KillOrphans() {
  constexpr int kMostRounds = 100;
  for (int round = 0; round < kMostRounds; ++round) {
    std::ifstream children(fmt::format("/proc/self/task/{}/children", getpid()));
    bool any = false;
    for (pid_t pid = 0; children >> pid; any = true) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (!any) return;
  }
}

}  // namespace tutti::tools
