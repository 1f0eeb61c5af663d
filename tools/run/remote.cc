#include "run/remote.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

namespace tutti::tools {
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
  return name == "PATH" || name == "LD_LIBRARY_PATH" ||
         BeginsWithOneOf(name, {"TUTTI_", "HOROVOD_", "NCCL_", "PYTHON", "OMP_", "MKL_"});
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

std::string Quote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string RemoteLine(const std::string& folder, const std::vector<std::string>& command) {
  std::string line = fmt::format("cd {} && eval \"$(cat)\" && exec env", Quote(folder));
  for (const std::string& word : command) line += " " + Quote(word);
  return line + " </dev/null";
}

Result<UniqueFd> RemoteInput(const std::map<std::string, std::string>& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    text += fmt::format("export {}={}\n", name, Quote(value));
  }
  // A file, because a pipe would fill up before ssh reads.
  UniqueFd file(memfd_create("tutti-run", MFD_CLOEXEC));
  if (file.get() < 0) return ErrnoError(errno, "memory for what a shell is to read");
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file.get(), text.data() + done, text.size() - done);
    if (written < 0) return ErrnoError(errno, "writing what a shell is to read");
    done += static_cast<size_t>(written);
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) return ErrnoError(errno, "lseek in a memory file");
  return file;
}

}  // namespace tutti::tools
