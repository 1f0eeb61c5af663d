#include "run/discovery.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>

#include "config/secret.h"
#include "perf/team.h"

namespace tutti::tools {
namespace {

// A script that asks a scheduler may take seconds; a script that hangs must not end discovery.
constexpr double kLongestRunS = 60;
// Enough for a line for each of 16,000 hosts.
constexpr size_t kMaxText = 1 << 20;

}  // namespace

Status Discovery::Start() {
  TUTTI_ASSIGN(Pipe pipe, MakePipe());
  const UniqueFd null = OpenNull();
  SpawnRequest request;
  request.command = {"/bin/sh", "-c", script_};
  // The script finds hosts and needs no secret.
  for (const char* const name : SecretVariables()) request.environment.Remove(name);
  request.in = null.get();
  request.out = pipe.writer.get();
  request.signal_mask = signal_mask_;
  request.own_group = true;
  TUTTI_ASSIGN(pid_, Spawn(request));
  output_ = std::move(pipe.reader);
  text_.clear();
  give_up_ = Deadline::AfterSeconds(kLongestRunS);
  return Status::Ok();
}

void Discovery::Stop() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_ = -1;
  output_.Reset();
  next_run_ = Deadline::AfterSeconds(interval_s_);
}

Result<std::optional<std::vector<elastic::HostSlots>>> Discovery::Step() {
  if (pid_ < 0) {
    if (next_run_.Passed()) {
      next_run_ = Deadline::AfterSeconds(interval_s_);
      TUTTI_TRY(Start());
    }
    return std::optional<std::vector<elastic::HostSlots>>();
  }
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(output_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return TakeResult();
    if (got < 0) break;
    text_.append(buffer, static_cast<size_t>(got));
    if (text_.size() > kMaxText) {
      Stop();
      return InvalidArgument("it writes more than {} bytes", kMaxText);
    }
  }
  if (!give_up_.Passed()) return std::optional<std::vector<elastic::HostSlots>>();
  Stop();
  return Timeout("it takes longer than {} s", kLongestRunS);
}

// Called when the script's output has ended: the script has ended as well, or is about to end.
Result<std::optional<std::vector<elastic::HostSlots>>> Discovery::TakeResult() {
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  if (ended == 0 && !give_up_.Passed()) return std::optional<std::vector<elastic::HostSlots>>();
  if (ended == pid_) pid_ = -1;
  Stop();
  if (ended == 0) return Timeout("it takes longer than {} s", kLongestRunS);
  if (status != 0) return SystemError("it {}", DescribeEnd(status));
  TUTTI_ASSIGN(auto hosts, elastic::ParseHosts(text_, default_slots_));
  return std::optional(std::move(hosts));
}

}  // namespace tutti::tools
