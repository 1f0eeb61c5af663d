#include "run/elastic.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/mutex.h"
#include "bootstrap/job_secret.h"
#include "config/secret.h"
#include "elastic/store.h"
#include "launch/listen.h"
#include "perf/team.h"
#include "run/discovery.h"
#include "run/process.h"

namespace tutti::tools {

bool IsThisHost(const std::string& host) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return host == "localhost" || host == "127.0.0.1" || host == name;
}

namespace {

constexpr std::string_view kReadyPrefix = "ready/";
// Ranks of one generation come to the library together, since all were ready. A rank that dies at
// this moment should not hold up the generation for as long as a slow launcher may take.
constexpr const char* kInitTimeoutS = "30";

template <typename... Args>
void Say(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stderr, "tutti run: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

int ShellStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// Hands the workers' values in the store from the store's thread to the launcher's.
class Mailbox {
 public:
  Mailbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return event_.get(); }

  // Takes a value of the store. The value of "ready/W" is the number of the generation that worker
  // W left; all further keys are ignored.
  void Put(const std::string& key, const std::string& value) {
    if (!key.starts_with(kReadyPrefix)) return;
    int worker = -1;
    uint64_t left = 0;
    if (!Read(std::string_view(key).substr(kReadyPrefix.size()), &worker) || !Read(value, &left)) {
      return;
    }
    const MutexLock lock(mutex_);
    ready_.emplace_back(worker, left);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
  }

  std::vector<std::pair<int, uint64_t>> Take() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
    const MutexLock lock(mutex_);
    return std::exchange(ready_, {});
  }

 private:
  template <typename Number>
  static bool Read(std::string_view text, Number* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc() && end == text.data() + text.size();
  }

  const UniqueFd event_;
  Mutex mutex_;
  std::vector<std::pair<int, uint64_t>> ready_ TUTTI_GUARDED_BY(mutex_);
};

class ElasticLauncher {
 public:
  explicit ElasticLauncher(const ElasticOptions& options)
      : options_(options), membership_(options.membership, NowNs()) {}

  int Run() {
    AdoptOrphans();
    if (const Status status = OpenStore(); !status.ok()) {
      Say("{}", status.message());
      return 1;
    }
    if (options_.discovery_script.empty()) {
      membership_.SetHosts(options_.hosts);
    } else {
      discovery_.emplace(options_.discovery_script, options_.default_slots,
                         options_.discovery_interval_s, signals_.old_mask());
    }
    while (!finished_ || !processes_.empty()) {
      if (!finished_) Decide();
      WaitOnce();
    }
    if (result_ != 0) KillOrphans();
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtTheEnd);
    }
    return result_;
  }

 private:
  struct Process {
    int worker;
    std::string host;
    bool told_to_end = false;
  };

  Status OpenStore() {
    Environment environment;
    secret_ = environment.Get("TUTTI_COMM_KEY");  // A person's own key stays.
    if (!secret_.empty()) {
      TUTTI_TRY(CheckSecretLength(secret_, "TUTTI_COMM_KEY"));
    } else {
      secret_ = RandomSecret();
    }
    const bool local = options_.discovery_script.empty() &&
                       std::all_of(options_.hosts.begin(), options_.hosts.end(),
                                   [](const auto& host) { return IsThisHost(host.host); });
    const auto put = [this](const std::string& key, const std::string& value) {
      mailbox_.Put(key, value);
    };
    Status last;
    // Listens for both families where the host has IPv6.
    for (const char* text : {"[::]:0", "0.0.0.0:0"}) {
      TUTTI_ASSIGN(const SocketAddress address, ParseSocketAddress(local ? "127.0.0.1:0" : text));
      auto store = elastic::StoreServer::Create(address, elastic::StoreKey(secret_), put);
      if (store.ok()) {
        store_ = std::move(store).value();
        return Status::Ok();
      }
      last = std::move(store).status();
    }
    return last;
  }

  void Decide() {
    const auto take = [this](std::vector<Action> actions) {
      for (const Action& action : actions) Do(action);
    };
    take(membership_.Advance(NowNs()));
    // A process that could not be started changes the decisions.
    while (!unstarted_.empty()) {
      for (const int worker : std::exchange(unstarted_, {})) {
        membership_.WorkerExited(worker, kExitCannotStart, NowNs());
      }
      take(membership_.Advance(NowNs()));
    }
  }

  void Do(const Action& action) {
    if (finished_) return;
    switch (action.kind) {
      case Action::Kind::kStart:
        return Start(action.worker, action.host);
      case Action::Kind::kTerminate:
        return Signal(action.worker, SIGTERM);
      case Action::Kind::kKill:
        return Signal(action.worker, SIGKILL);
      case Action::Kind::kPublish: {
        const int size = membership_.generation_size();
        Say("generation {} has {} worker{}", membership_.generation(), size, size == 1 ? "" : "s");
        return store_->Set("generation", action.text);
      }
      case Action::Kind::kBroken:
        return store_->Set("broken", action.text);
      case Action::Kind::kNotice:
        return store_->Set("notice", action.text);
      case Action::Kind::kFinish:
        return Finish(action.status, action.text);
    }
  }

  void Finish(int status, const std::string& why) {
    if (!why.empty()) Say("{}", why);
    finished_ = true;
    result_ = status;
    SignalAll(SIGTERM);
    kill_at_ = Deadline::AfterSeconds(options_.grace_s);
  }

  UniqueFd TakeOutput(int worker, std::FILE* target) {
    if (!options_.tag) return UniqueFd();
    Result<Pipe> pipe = MakePipe();
    if (!pipe.ok()) return UniqueFd();
    outputs_.push_back(
        std::make_unique<TaggedOutput>(std::to_string(worker), std::move(pipe->reader), target));
    return std::move(pipe->writer);
  }

  void Start(int worker, const std::string& host) {
    const UniqueFd out = TakeOutput(worker, stdout);
    const UniqueFd err = TakeOutput(worker, stderr);
    SpawnRequest request;
    request.out = out.get();
    request.err = err.get();
    request.signal_mask = signals_.old_mask();
    UniqueFd in = OpenNull();
    const bool here = IsThisHost(host);
    SetVariables(worker, host, here, &request.environment);
    request.command = options_.command;
    if (!here) {
      Result<UniqueFd> input = MakeRemote(host, &request);
      if (!input.ok()) return CannotStart(worker, host, input.status().message());
      in = std::move(input).value();
    }
    request.in = in.get();
    const Result<pid_t> pid = Spawn(request);
    if (!pid.ok()) return CannotStart(worker, host, pid.status().message());
    processes_[*pid] = {worker, host, false};
  }

  void CannotStart(int worker, const std::string& host, std::string_view why) {
    Say("worker {} on {} cannot be started: {}: {}", worker, host, options_.command.front(), why);
    unstarted_.push_back(worker);
  }

  void SetVariables(int worker, const std::string& host, bool here,
                    Environment* environment) const {
    environment->RemovePlaces();
    for (const auto& [name, value] : options_.passed.values) environment->Set(name, value);
    std::string addresses;
    for (const std::string& address :
         here ? std::vector<std::string>{"127.0.0.1"} : launch::OwnAddresses()) {
      const bool v6 = address.find(':') != std::string::npos;
      addresses += fmt::format("{}{}:{}", addresses.empty() ? "" : ",",
                               v6 ? fmt::format("[{}]", address) : address, store_->port());
    }
    environment->Set("TUTTI_ELASTIC_ADDR", addresses);
    environment->Set("TUTTI_ELASTIC_WORKER", std::to_string(worker));
    environment->Set("TUTTI_COMM_KEY", secret_);
    environment->Set("HOROVOD_ELASTIC", "1");
    environment->Set("HOROVOD_HOSTNAME", host);
    environment->SetIfMissing("TUTTI_INIT_TIMEOUT_S", kInitTimeoutS);
  }

  // Turns the request into a request for ssh, and returns the input for ssh.
  Result<UniqueFd> MakeRemote(const std::string& host, SpawnRequest* request) const {
    TUTTI_ASSIGN(UniqueFd input, RemoteInput(TravellingVariables(request->environment.variables(),
                                                                 options_.passed)));
    std::istringstream words(options_.ssh);
    std::vector<std::string> command;
    for (std::string word; words >> word;) command.push_back(word);
    command.push_back(host);
    std::error_code error;
    const std::string folder = std::filesystem::current_path(error).string();
    // The login shell may be any; sh exists on every host.
    command.push_back("exec sh -c " + Quote(RemoteLine(folder, request->command)));
    request->command = std::move(command);
    request->environment.Remove("TUTTI_COMM_KEY");
    return input;
  }

  void WaitOnce() {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}, {mailbox_.fd(), POLLIN, 0}};
    for (const auto& output : outputs_) {
      if (output->fd() >= 0) entries.push_back({output->fd(), POLLIN, 0});
    }
    int wait_ms = kill_at_ ? kill_at_->RemainingMs(1000) : 1000;
    if (discovery_ && !finished_) {
      if (discovery_->fd() >= 0) {
        entries.push_back({discovery_->fd(), POLLIN, 0});
      } else {
        wait_ms = std::min(wait_ms, discovery_->NextStepMs());
      }
    }
    poll(entries.data(), entries.size(), wait_ms);
    signals_.Read([this](int signal, bool from_terminal) { Forward(signal, from_terminal); });
    for (const auto& [worker, left] : mailbox_.Take()) {
      membership_.WorkerReady(worker, left, NowNs());
    }
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtOnce);
    }
    std::erase_if(outputs_, [](const auto& output) { return output->fd() < 0; });
    if (!finished_) Discover();
    Reap();
    if (kill_at_ && kill_at_->Passed()) {
      SignalAll(SIGKILL);
      kill_at_.reset();
    }
  }

  void Discover() {
    if (!discovery_) return;
    auto hosts = discovery_->Step();
    if (!hosts.ok()) {
      const std::string why(hosts.status().message());
      // A repeated sentence is printed once, because a script may fail every second.
      if (why != last_complaint_) {
        Say("the host discovery script failed and its last list stays: {}", why);
      }
      last_complaint_ = why;
    } else if (*hosts) {
      last_complaint_.clear();
      membership_.SetHosts(**hosts);
    }
  }

  void Forward(int signal, bool from_terminal) {
    if (!from_terminal) SignalAll(signal);
    if (signal == SIGUSR1 || signal == SIGUSR2) return;
    if (!interrupted_) Say("got signal {} ({}), ending", signal, strsignal(signal));
    if (!finished_) result_ = 128 + signal;
    finished_ = true;
    // A second Ctrl-C does not wait.
    kill_at_ = Deadline::AfterSeconds(interrupted_ ? 0 : options_.grace_s);
    interrupted_ = true;
  }

  void Reap() {
    for (auto it = processes_.begin(); it != processes_.end();) {
      int status = 0;
      if (waitpid(it->first, &status, WNOHANG) != it->first) {
        ++it;
        continue;
      }
      const Process& process = it->second;
      if (status != 0 && !finished_ && !process.told_to_end) {
        Say("worker {} on {} (process {}) {}", process.worker, process.host, it->first,
            DescribeEnd(status));
      }
      membership_.WorkerExited(process.worker, ShellStatus(status), NowNs());
      store_->Erase(fmt::format("{}{}", kReadyPrefix, process.worker));
      it = processes_.erase(it);
    }
  }

  void Signal(int worker, int signal) {
    for (auto& [pid, process] : processes_) {
      if (process.worker != worker) continue;
      process.told_to_end = true;
      kill(pid, signal);
    }
  }
  void SignalAll(int signal) {
    for (const auto& [pid, process] : processes_) kill(pid, signal);
  }

  const ElasticOptions& options_;
  SignalReader signals_;  // First: threads that come later inherit that signals are blocked.
  Mailbox mailbox_;
  std::string secret_;
  std::unique_ptr<elastic::StoreServer> store_;
  Membership membership_;
  std::optional<Discovery> discovery_;
  std::string last_complaint_;
  std::map<pid_t, Process> processes_;
  std::vector<int> unstarted_;
  std::vector<std::unique_ptr<TaggedOutput>> outputs_;
  bool finished_ = false;
  bool interrupted_ = false;
  int result_ = 0;
  std::optional<Deadline> kill_at_;
};

}  // namespace

int RunElastic(const ElasticOptions& options) { return ElasticLauncher(options).Run(); }

}  // namespace tutti::tools
