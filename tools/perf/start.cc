#include "perf/start.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <numeric>

#include "launch/handshake.h"
#include "launch/hex.h"
#include "launch/listen.h"
#include "launch/meeting.h"

namespace tutti::tools {
namespace {

// A rank process may still be closing its communicator after the driver is gone.
constexpr double kGraceSeconds = 5;
// How often the processes of this host are looked after while no message comes.
constexpr int kWatchMs = 50;

struct SocketPair {
  UniqueFd mine;
  UniqueFd theirs;
};

Result<SocketPair> MakePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "making a socket pair for a rank");
  }
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Status StartTeam(const PerfOptions& options, const EnvironmentChanges& changes, Team* team) {
  std::vector<UniqueFd> sockets;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    TUTTI_ASSIGN(SocketPair pair, MakePair());
    team->AddRank(Channel(std::move(pair.mine)));
    sockets.push_back(std::move(pair.theirs));
    if (options.threads) continue;
    TUTTI_ASSIGN(const pid_t pid, StartRankProcess(std::exchange(sockets, {}), changes));
    team->AddProcess({pid, {rank}});
  }
  if (!options.threads) return {};
  TUTTI_ASSIGN(const pid_t pid, StartRankProcess(std::move(sockets), changes));
  RankProcess process{pid, std::vector<int>(static_cast<size_t>(options.num_ranks))};
  std::iota(process.ranks.begin(), process.ranks.end(), 0);
  team->AddProcess(std::move(process));
  return {};
}

std::string Label(size_t library, size_t num_libraries) {
  if (num_libraries == 1) return "";
  return library == 0 ? "with --library: " : "with --against: ";
}

// Holds rank 0's message to the further ranks when they meet: the address of rank 0's driver, and
// the driver's key.
struct Invitation {
  Key key{};
  uint16_t port = 0;
  std::vector<std::string> addresses;

  std::string ToText() const {
    const std::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size());
    return Json{{"key", launch::ToHex(bytes)}, {"port", port}, {"addresses", addresses}}.dump();
  }

  static Result<Invitation> FromText(const std::string& text) {
    Invitation invitation;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) {
      return RemoteError(
          "rank 0 is no rank of `tutti perf`: the {} bytes that it handed round are no invitation",
          text.size());
    }
    TUTTI_ASSIGN(const std::string bytes, launch::FromHex(json.value("key", "")));
    if (bytes.size() != invitation.key.size())
      return RemoteError("rank 0 sent a key of {} bytes", bytes.size());
    std::copy(bytes.begin(), bytes.end(), invitation.key.begin());
    invitation.port = json.value("port", uint16_t{0});
    invitation.addresses = json.value("addresses", std::vector<std::string>{});
    return invitation;
  }
};

// A rank process of this host, and the driver's connection whose messages the process serves.
struct Served {
  pid_t pid = -1;
  std::string library;  // the path that the process loads
  Channel driver{UniqueFd()};
  Channel process{UniqueFd()};
  int64_t hung_at = 0;  // when the driver's connection ended, or 0
};

// Hands on all messages that have come from one end, and closes that end when its peer has. The
// driver does not choose the library that this host loads.
void HandOn(Channel* from, Channel* to, const std::string& library) {
  while (from->open()) {
    Json message;
    const Result<bool> have = from->TryReceive(&message);
    if (have.ok() && !have.value()) return;
    if (message.contains("library")) message["library"] = library;
    // An end that takes no message is gone, and is noticed when the end is read.
    if (!have.ok()) {
      from->Close();
    } else if (to->open()) {
      (void)to->Send(message).ok();
    }
  }
}

void HandOn(Served* served) {
  HandOn(&served->driver, &served->process, served->library);
  HandOn(&served->process, &served->driver, served->library);
  if (served->driver.open() || served->hung_at != 0) return;
  served->hung_at = NowNs();
  served->process.Close();
}

// Hands messages on until every process has ended. Kills the processes that outlive their
// connection to the driver.
Status Watch(int rank, std::vector<Served> served) {
  Status result;
  while (!served.empty()) {
    std::vector<pollfd> entries;
    for (const Served& one : served) {
      entries.push_back({one.driver.fd(), POLLIN, 0});
      entries.push_back({one.process.fd(), POLLIN, 0});
    }
    poll(entries.data(), entries.size(), kWatchMs);
    for (auto one = served.begin(); one != served.end();) {
      HandOn(&*one);
      if (one->hung_at != 0 && static_cast<double>(NowNs() - one->hung_at) > kGraceSeconds * 1e9) {
        kill(one->pid, SIGKILL);
      }
      int status = 0;
      if (waitpid(one->pid, &status, WNOHANG) != one->pid) {
        ++one;
        continue;
      }
      if (status != 0 && result.ok())
        result = RemoteError("rank {} (process {}) {}", rank, one->pid, DescribeEnd(status));
      HandOn(&*one);  // the last words of the process
      one = served.erase(one);
    }
  }
  return result;
}

}  // namespace

EnvironmentChanges NetEnvironment(const std::string& net, bool local) {
  EnvironmentChanges changes;
  if (net == "shm") changes.emplace_back("TUTTI_STRICT_TRANSPORT", "1");
  if (net == "socket") {
    changes.emplace_back("NCCL_SHM_DISABLE", "1");
    changes.emplace_back("NCCL_P2P_DISABLE", "1");
    if (local) changes.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  }
  return changes;
}

Result<std::vector<std::unique_ptr<Team>>> StartLocalTeams(const PerfOptions& options,
                                                           size_t num_libraries) {
  std::vector<std::unique_ptr<Team>> teams;
  for (size_t library = 0; library < num_libraries; ++library) {
    teams.push_back(std::make_unique<Team>(Label(library, num_libraries)));
    TUTTI_TRY(StartTeam(options, NetEnvironment(options.net, true), teams.back().get()));
  }
  return teams;
}

Result<std::vector<std::unique_ptr<Team>>> GatherTeams(const PerfOptions& options,
                                                       const launch::LaunchInfo& info,
                                                       size_t num_libraries) {
  const WaitLimits limits = {Deadline::AfterSeconds(options.timeout_s), nullptr};
  Invitation invitation;
  invitation.key = RandomKey();
  invitation.addresses = launch::OwnAddresses();
  TUTTI_ASSIGN(UniqueFd listener, launch::Listen({0}, &invitation.port));
  TUTTI_TRY(launch::Meet(info, invitation.ToText(), limits).status());
  std::vector<launch::Claim> claims;
  for (uint32_t library = 0; library < num_libraries; ++library) {
    for (uint32_t rank = 1; rank < static_cast<uint32_t>(info.size); ++rank)
      claims.push_back({library, rank});
  }
  Result<std::vector<SealedSocket>> accepted =
      launch::AcceptClaims(std::move(listener), invitation.key, claims, limits);
  if (!accepted.ok()) return std::move(accepted).status().Annotate("gathering the ranks");
  std::vector<std::unique_ptr<Team>> teams;
  for (size_t library = 0; library < num_libraries; ++library) {
    teams.push_back(std::make_unique<Team>(Label(library, num_libraries)));
    TUTTI_ASSIGN(SocketPair pair, MakePair());
    teams.back()->AddRank(Channel(std::move(pair.mine)));
    std::vector<UniqueFd> sockets;
    sockets.push_back(std::move(pair.theirs));
    TUTTI_ASSIGN(const pid_t pid,
                 StartRankProcess(std::move(sockets), NetEnvironment(options.net, false)));
    teams.back()->AddProcess({pid, {0}});
    const size_t others = static_cast<size_t>(info.size) - 1;
    for (size_t i = 0; i < others; ++i)
      teams.back()->AddRank(Channel(std::move(accepted.value()[library * others + i])));
  }
  return teams;
}

Status ServeTeams(const PerfOptions& options, const launch::LaunchInfo& info,
                  const std::vector<std::string>& libraries) {
  const WaitLimits limits = {Deadline::AfterSeconds(options.timeout_s), nullptr};
  TUTTI_ASSIGN(const launch::Meeting meeting, launch::Meet(info, "", limits));
  TUTTI_ASSIGN(const Invitation invitation, Invitation::FromText(meeting.value));
  std::vector<launch::Endpoint> endpoints;
  // Where the launcher knows an address of rank 0, the address is sure to be reachable from here.
  if (info.rendezvous == launch::Rendezvous::kTcp)
    endpoints.push_back({info.endpoints.front().host, invitation.port, ""});
  for (const std::string& address : invitation.addresses)
    endpoints.push_back({address, invitation.port, ""});
  std::vector<Served> served;
  for (uint32_t library = 0; library < libraries.size(); ++library) {
    TUTTI_ASSIGN(SealedSocket driver,
                 launch::ConnectWithClaim(endpoints, invitation.key,
                                          {library, static_cast<uint32_t>(info.rank)}, "", limits));
    TUTTI_ASSIGN(SocketPair pair, MakePair());
    std::vector<UniqueFd> sockets;
    sockets.push_back(std::move(pair.theirs));
    TUTTI_ASSIGN(const pid_t pid,
                 StartRankProcess(std::move(sockets), NetEnvironment(options.net, false)));
    served.push_back(
        {pid, libraries[library], Channel(std::move(driver)), Channel(std::move(pair.mine))});
  }
  return Watch(info.rank, std::move(served));
}

}  // namespace tutti::tools
