#include "run/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "launch/http_store.h"
#include "launch/listen.h"
#include "launch/places.h"
#include "perf/team.h"
#include "run/process.h"
#include "run/store.h"

namespace tutti::tools {
namespace {

constexpr const char* kThisHost = "localhost";

// Returns the host of each rank: ranks fill the slots of the hosts in the order of the list.
std::vector<std::string> HostsOfRanks(const RunOptions& options) {
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  if (options.hosts.empty()) return std::vector<std::string>(num_ranks, kThisHost);
  std::vector<std::string> of_ranks;
  for (const elastic::HostSlots& host : options.hosts) {
    const std::string name = IsThisHost(host.host) ? kThisHost : host.host;
    of_ranks.resize(std::min(num_ranks, of_ranks.size() + static_cast<size_t>(host.slots)), name);
  }
  return of_ranks;
}

std::vector<launch::Place> PlacesOn(const std::vector<std::string>& hosts) {
  std::vector<launch::Residence> residences;
  for (const std::string& host : hosts) residences.push_back({host});
  return launch::SettlePlaces(residences);
}

void TellHorovodsStore(uint16_t port, Environment* environment) {
  environment->Set("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1");
  environment->Set("HOROVOD_GLOO_RENDEZVOUS_PORT", std::to_string(port));
  environment->Set("HOROVOD_HOSTNAME", "localhost");
  environment->SetIfMissing("HOROVOD_GLOO_IFACE", "lo");
  environment->SetIfMissing("HOROVOD_CONTROLLER", "gloo");
  environment->SetIfMissing("HOROVOD_CPU_OPERATIONS", "gloo");
}

void TellNumbers(int rank, int num_ranks, const launch::Place& place, Environment* environment) {
  const std::pair<const char*, int> numbers[] = {{"RANK", rank},
                                                 {"HOROVOD_RANK", rank},
                                                 {"WORLD_SIZE", num_ranks},
                                                 {"HOROVOD_SIZE", num_ranks},
                                                 {"LOCAL_RANK", place.local_rank},
                                                 {"HOROVOD_LOCAL_RANK", place.local_rank},
                                                 {"LOCAL_WORLD_SIZE", place.local_size},
                                                 {"HOROVOD_LOCAL_SIZE", place.local_size},
                                                 {"HOROVOD_CROSS_RANK", place.cross_rank},
                                                 {"HOROVOD_CROSS_SIZE", place.cross_size}};
  for (const auto& [name, number] : numbers) environment->Set(name, std::to_string(number));
}

// Deals the allowed cores out to the ranks: each gets an equal share of neighbours, or one core in
// turn where ranks outnumber cores.
std::optional<cpu_set_t> CoresOf(int rank, int num_ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::nullopt;
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
  return mine;
}

class Launcher {
 public:
  explicit Launcher(const RunOptions& options)
      : options_(options),
        hosts_(HostsOfRanks(options)),
        places_(PlacesOn(hosts_)),
        secret_(JobSecret(options.remote.passed)) {}

  int Run() {
    AdoptOrphans();
    if (!ChoosePort() || !ServeHorovodsStore() || !ServeStore()) return 1;
    pids_.assign(hosts_.size(), -1);
    inputs_.resize(hosts_.size());
    for (int rank = 0; rank < options_.num_ranks && result_ == 0; ++rank) Start(rank);
    // Only the ranks have the writing ends of their pipes now, so that a pipe ends with its rank.
    while (alive_ > 0) WaitOnce();
    if (result_ != 0) KillOrphans();
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtTheEnd);
    }
    return result_;
  }

 private:
  bool ChoosePort() {
    if (options_.port) {
      port_ = static_cast<uint16_t>(options_.port);
      return true;
    }
    // The port is held while the job runs, because rank 0 may need it late and more than once.
    Result<UniqueFd> held = launch::HoldPort(&port_);
    if (!held.ok()) {
      fmt::print(stderr, "tutti run: {}\n", held.status().message());
      return false;
    }
    held_port_ = std::move(held).value();
    return true;
  }

  bool IsHere(int rank) const { return hosts_[static_cast<size_t>(rank)] == kThisHost; }

  // Serves the store by which ranks of several hosts meet.
  bool ServeStore() {
    if (std::count(hosts_.begin(), hosts_.end(), kThisHost) == options_.num_ranks) return true;
    auto store = OpenStore(secret_, false, [](const std::string&, const std::string&) {});
    if (!store.ok()) {
      fmt::print(stderr, "tutti run: {}\n", store.status().message());
      return false;
    }
    store_ = std::move(store).value();
    return true;
  }

  bool ServeHorovodsStore() {
    if (!options_.horovod_store) return true;
    const auto fail = [](const Status& why) {
      fmt::print(stderr, "tutti run: {}\n", why.message());
      return false;
    };
    const Result<SocketAddress> address = ParseSocketAddress("127.0.0.1:0");
    if (!address.ok()) return fail(address.status());
    auto store = launch::HttpStoreServer::Create(*address);
    if (!store.ok()) return fail(store.status());
    horovods_store_ = std::move(store).value();
    // An elastic worker asks the store for its numbers.
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      horovods_store_->Put("rank_and_size", fmt::format("localhost:{}", rank),
                           fmt::format("{0},{1},{0},{1},0,1", rank, options_.num_ranks));
    }
    return true;
  }

  // Returns the descriptor for the rank's output; nothing where the rank writes to this process's
  // own output.
  UniqueFd TakeOutput(int rank, std::FILE* target) {
    if (!options_.tag) return UniqueFd();
    Result<Pipe> pipe = MakePipe();
    if (!pipe.ok()) return UniqueFd();
    outputs_.push_back(
        std::make_unique<TaggedOutput>(std::to_string(rank), std::move(pipe->reader), target));
    return std::move(pipe->writer);
  }

  // Returns an address of rank 0's host, for programs that meet there by themselves.
  std::string MasterAddress() const {
    if (!store_) return "127.0.0.1";
    if (IsHere(0)) return launch::OwnAddresses().front();
    return hosts_[0].substr(hosts_[0].find('@') + 1);
  }

  Environment MakeEnvironment(int rank) const {
    Environment environment;
    environment.RemovePlaces();
    for (const auto& [name, value] : options_.remote.passed.values) environment.Set(name, value);
    TellNumbers(rank, options_.num_ranks, places_[static_cast<size_t>(rank)], &environment);
    if (horovods_store_) TellHorovodsStore(horovods_store_->port(), &environment);
    environment.SetIfMissing("MASTER_ADDR", MasterAddress());
    environment.Set("MASTER_PORT", std::to_string(port_));
    if (store_) {
      environment.Set("TUTTI_STORE_ADDR", StoreAddresses(*store_, IsHere(rank)));
      environment.Set("HOROVOD_HOSTNAME", hosts_[static_cast<size_t>(rank)]);
    }
    environment.Set("TUTTI_COMM_KEY", secret_);
    return environment;
  }

  void Start(int rank) {
    const UniqueFd out = TakeOutput(rank, stdout);
    const UniqueFd err = TakeOutput(rank, stderr);
    // One terminal cannot serve several readers: only rank 0 reads from the terminal.
    const UniqueFd in = rank == 0 ? UniqueFd() : OpenNull();
    SpawnRequest request;
    request.command = options_.command;
    request.environment = MakeEnvironment(rank);
    request.in = in.get();
    request.out = out.get();
    request.err = err.get();
    request.signal_mask = signals_.old_mask();
    std::optional<cpu_set_t> cores;
    if (options_.bind) cores = CoresOf(rank, options_.num_ranks);
    if (cores) request.prepare = [&cores] { sched_setaffinity(0, sizeof(*cores), &*cores); };
    Pipe input;
    if (!IsHere(rank)) {
      Result<Pipe> made = MakeRemote(hosts_[static_cast<size_t>(rank)], options_.remote, &request);
      if (!made.ok()) return CannotStart(rank, made.status().message());
      input = std::move(made).value();
    }
    const Result<pid_t> pid = Spawn(request);
    if (!pid.ok()) return CannotStart(rank, pid.status().message());
    pids_[static_cast<size_t>(rank)] = *pid;
    inputs_[static_cast<size_t>(rank)] = std::move(input.writer);
    ++alive_;
  }

  void CannotStart(int rank, std::string_view why) {
    fmt::print(stderr, "tutti run: rank {} cannot be started: {}: {}\n", rank,
               options_.command.front(), why);
    Fail(kExitCannotStart);
  }

  void WaitOnce() {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    for (const auto& output : outputs_) {
      if (output->fd() >= 0) entries.push_back({output->fd(), POLLIN, 0});
    }
    poll(entries.data(), entries.size(), kill_at_ ? kill_at_->RemainingMs(1000) : 1000);
    signals_.Read([this](int signal, bool from_terminal) { Forward(signal, from_terminal); });
    for (auto& output : outputs_) {
      if (output->fd() >= 0) output->Drain(kReadsAtOnce);
    }
    Reap();
    if (kill_at_ && kill_at_->Passed()) {
      KillAll(SIGKILL);
      kill_at_.reset();
    }
  }

  void Forward(int signal, bool from_terminal) {
    if (!from_terminal) KillAll(signal);
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
        fmt::print(stderr, "tutti run: rank {}{} (process {}) {}; ending the others\n", rank,
                   IsHere(rank) ? "" : " on " + hosts_[static_cast<size_t>(rank)], pid,
                   DescribeEnd(status));
        Fail(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
      }
      pid = -1;
      inputs_[static_cast<size_t>(rank)].Reset();
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

  const RunOptions& options_;
  SignalReader signals_;
  uint16_t port_ = 0;
  UniqueFd held_port_;
  const std::vector<std::string> hosts_;     // by rank
  const std::vector<launch::Place> places_;  // by rank
  const ErasedText secret_;
  std::unique_ptr<launch::HttpStoreServer> horovods_store_;
  std::unique_ptr<elastic::StoreServer> store_;  // null where all ranks are on this host
  std::vector<pid_t> pids_;                      // by rank
  std::vector<UniqueFd> inputs_;                 // by rank: ssh's, for ranks of other hosts
  int alive_ = 0;
  std::vector<std::unique_ptr<TaggedOutput>> outputs_;
  int result_ = 0;
  bool interrupted_ = false;
  std::optional<Deadline> kill_at_;
};

}  // namespace

int RunProgram(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace tutti::tools
