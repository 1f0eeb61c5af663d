#include "run/remote.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "config/secret.h"

namespace tutti::tools {

bool IsThisHost(const std::string& host) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return host == "localhost" || host == "127.0.0.1" || host == name;
}

std::string Quote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

namespace {

bool BeginsWithOneOf(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

bool IsName(const std::string& text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text.front())) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return c == '_' || (static_cast<unsigned char>(c) < 0x80 &&
                               std::isalnum(static_cast<unsigned char>(c)));
         });
}

// Returns whether bash refuses to change the variable.
bool IsTheShells(const std::string& name) {
  static const std::set<std::string> kNames = {"BASHOPTS", "BASH_VERSINFO", "EUID",
                                               "PPID",     "SHELLOPTS",     "UID"};
  return kNames.contains(name);
}

// Variables that describe this host, terminal or login only.
bool StaysHere(const std::string& name) {
  static const std::set<std::string> kNames = {"DBUS_SESSION_BUS_ADDRESS",
                                               "DISPLAY",
                                               "GPG_TTY",
                                               "HOST",
                                               "HOSTNAME",
                                               "LINES",
                                               "COLUMNS",
                                               "OLDPWD",
                                               "PWD",
                                               "SHLVL",
                                               "STY",
                                               "TERM",
                                               "TERMCAP",
                                               "WINDOW",
                                               "_",
                                               "WINDOWID",
                                               "XAUTHORITY",
                                               "IFS"};
  return kNames.contains(name) || BeginsWithOneOf(name, {"BASH_FUNC_", "SSH_", "TMUX", "XDG_"});
}

bool TravelsAnyway(const std::string& name) {
  static const std::set<std::string> kNames = {"PATH",        "LD_LIBRARY_PATH", "RANK",
                                               "WORLD_SIZE",  "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
                                               "MASTER_ADDR", "MASTER_PORT"};
  return kNames.contains(name) ||
         BeginsWithOneOf(name, {"TUTTI_", "HOROVOD_", "NCCL_", "PYTHON", "OMP_", "MKL_"});
}

// Returns lines for sh that set the variables.
std::string Exports(const std::map<std::string, std::string>& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    text += fmt::format("export {}={}\n", name, Quote(value));
  }
  return text;
}

// Returns a pipe that contains `text`. The pipe must take the whole text at once, because nobody
// reads before ssh is there.
Result<Pipe> FilledPipe(const std::string& text) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "a pipe for ssh");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // Without a larger pipe the write below fails.
  constexpr size_t kUsualBytes = 64 << 10;
  if (text.size() > kUsualBytes) fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(text.size()));
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const ssize_t written = write(ends[1], text.data(), text.size());
  if (written < 0) return ErrnoError(errno, "writing the variables for another host");
  if (static_cast<size_t>(written) < text.size()) {
    return SystemError(
        "the variables for another host have {} bytes, and a pipe takes {}; name fewer by --env",
        text.size(), written);
  }
  return pipe;
}

// Returns a line for sh that reads `size` bytes of variables from its input, and becomes `command`
// in `folder`. A guard reads on, and the guard's `read` returns at the end of the input. The guard
// reads from descriptor 3, because POSIX gives a background process /dev/null as descriptor 0. The
// guard is a grandchild, because a program may wait for all of its children.
std::string RemoteLine(const std::string& folder, size_t size,
                       const std::vector<std::string>& command) {
  std::string line = fmt::format(
      "cd {} && eval \"$(head -c {})\" || exit; exec 3<&0; "
      "( {{ read -r end <&3; kill $$; }} >/dev/null 2>&1 & ); exec env",
      Quote(folder), size);
  for (const std::string& word : command) line += " " + Quote(word);
  return line + " </dev/null 3<&-";
}

}  // namespace

Result<PassedVariables> ParsePassed(const std::vector<std::string>& words) {
  PassedVariables passed;
  for (const std::string& word : words) {
    if (word == "*") {
      passed.all = true;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!IsName(name)) {
      return InvalidArgument("--env {}: that is not NAME, NAME=VALUE or '*'", word);
    }
    if (IsTheShells(name)) return InvalidArgument("--env {}: shells do not let it be set", word);
    if (equals == std::string::npos) {
      passed.names.insert(name);
      passed.values.erase(name);
    } else {
      passed.values[name] = word.substr(equals + 1);
    }
  }
  return passed;
}

std::map<std::string, std::string> TravellingVariables(
    const std::map<std::string, std::string>& variables, const PassedVariables& passed) {
  std::map<std::string, std::string> travelling;
  for (const auto& [name, value] : variables) {
    if (!IsName(name) || IsTheShells(name)) continue;
    if (TravelsAnyway(name) || passed.names.contains(name) || passed.values.contains(name) ||
        (passed.all && !StaysHere(name))) {
      travelling.emplace(name, value);
    }
  }
  return travelling;
}

Result<Pipe> MakeRemote(const std::string& host, const RemoteOptions& options,
                        SpawnRequest* request) {
  const std::string exports =
      Exports(TravellingVariables(request->environment.variables(), options.passed));
  TUTTI_ASSIGN(Pipe input, FilledPipe(exports));
  std::istringstream words(options.ssh);
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  command.push_back(host);
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  // The login shell may be any; sh exists on every host.
  command.push_back("exec sh -c " + Quote(RemoteLine(folder, exports.size(), request->command)));
  request->command = std::move(command);
  for (const char* const name : SecretVariables()) request->environment.Remove(name);
  request->in = input.reader.get();
  return input;
}

}  // namespace tutti::tools
