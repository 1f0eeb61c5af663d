// Facts about the machine and the user of this process.

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/log.h"
#include "launch/environment.h"
#include "sys/host.h"

namespace tutti::launch {
namespace {

// MPICH's and Intel MPI's program that starts the ranks of one machine.
constexpr std::string_view kHydraProxy = "hydra_pmi_proxy";
// The kernel allows an environment of 2 MiB at most.
constexpr size_t kMaxProcFile = 4u << 20;

std::optional<std::string> ReadProcFile(pid_t pid, const char* name) {
  std::ifstream stream(fmt::format("/proc/{}/{}", pid, name), std::ios::binary);
  if (!stream) return std::nullopt;
  std::string text(std::istreambuf_iterator<char>(stream), {});
  if (text.size() > kMaxProcFile || stream.bad()) return std::nullopt;
  return text;
}

struct Process {
  std::string name;
  pid_t parent = 0;
  bool has_rank = false;
};

// Reads /proc/PID/stat, of the form "pid (name) state parent …", in which the name may have any
// characters.
std::optional<Process> LookAt(pid_t pid) {
  const std::optional<std::string> environment = ReadProcFile(pid, "environ");
  const std::optional<std::string> stat = ReadProcFile(pid, "stat");
  if (!environment || !stat) return std::nullopt;
  const size_t open = stat->find('(');
  const size_t close = stat->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Process process;
  process.name = stat->substr(open + 1, close - open - 1);
  process.has_rank = (std::string(1, '\0') + *environment).find(std::string("\0PMI_RANK=", 10)) !=
                     std::string::npos;
  constexpr size_t kStateBytes = 4;  // ") S "
  if (close + kStateBytes >= stat->size()) return std::nullopt;
  const char* const begin = stat->data() + close + kStateBytes;
  std::from_chars(begin, stat->data() + stat->size(), process.parent);
  return process;
}

pid_t FindStarter() {
  pid_t pid = getppid();
  while (pid > 1) {
    const std::optional<Process> process = LookAt(pid);
    if (!process || !process->has_rank || process->name == kHydraProxy) break;
    pid = process->parent;
  }
  return pid;
}

}  // namespace

std::string MachineName(const Environment& environment) {
  if (const char* given = environment("HOROVOD_HOSTNAME"); given && *given) return given;
  const std::string boot = BootId();
  return boot.empty() ? HostName() : fmt::format("{}/{}", HostName(), boot);
}

Machine ThisMachine(const Environment& environment) {
  return {MachineName(environment), getuid(), FindStarter};
}

}  // namespace tutti::launch
