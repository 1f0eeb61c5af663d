#include "observe/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/text.h"

namespace tutti::observe {
namespace {

constexpr std::string_view kEnding = ".board";

// What /proc/PID/stat tells of a process.
struct ProcStat {
  char state = 0;
  uint64_t start_ticks = 0;
};

// Reads fields 3 and 22. The name in field 2 may have blanks and brackets, so the fields are
// counted from the last bracket.
std::optional<ProcStat> ReadProcStat(pid_t pid) {
  const UniqueFd fd(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> bytes;
  const ssize_t got = fd.valid() ? read(fd.get(), bytes.data(), bytes.size()) : -1;
  if (got <= 0) return {};
  std::string_view rest(bytes.data(), static_cast<size_t>(got));
  const size_t bracket = rest.rfind(") ");
  if (bracket == std::string_view::npos || bracket + 2 >= rest.size()) return {};
  rest.remove_prefix(bracket + 2);
  ProcStat stat = {.state = rest[0]};
  for (int field = 3; field < 22; ++field) NextItem(rest, ' ');
  const auto ticks = WholeNumber<uint64_t>(NextItem(rest, ' '));
  if (!ticks) return {};
  stat.start_ticks = *ticks;
  return stat;
}

bool BelongsToUser(const char* path) {
  struct stat found = {};
  return stat(path, &found) == 0 && found.st_uid == geteuid();
}

uint64_t PidSpace() {
  struct stat space = {};
  return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

}  // namespace

std::string ProcessKey::FileName() const {
  return fmt::format("{}-{}-{}{}", pid, start_ticks, pid_space, kEnding);
}

std::optional<ProcessKey> ProcessKey::OfFileName(std::string_view name) {
  if (!name.ends_with(kEnding)) return {};
  name.remove_suffix(kEnding.size());
  const auto pid = WholeNumber<pid_t>(NextItem(name, '-'));
  const auto ticks = WholeNumber<uint64_t>(NextItem(name, '-'));
  const auto space = WholeNumber<uint64_t>(name);
  if (!pid || *pid <= 0 || !ticks || !space) return {};
  return ProcessKey{*pid, *ticks, *space};
}

ProcessKey ProcessKey::OfThisProcess() {
  const pid_t pid = getpid();
  return {pid, ReadProcStat(pid).value_or(ProcStat()).start_ticks, PidSpace()};
}

// A zombie has ended: its threads are gone, and only its parent has not asked for its status.
Life LifeOf(const ProcessKey& key) {
  if (key.pid_space != PidSpace()) return Life::kUnknown;
  const std::optional<ProcStat> stat = ReadProcStat(key.pid);
  if (!stat || stat->start_ticks != key.start_ticks) return Life::kEnded;
  switch (stat->state) {
    case 'T':
    case 't':
      return Life::kStopped;
    case 'Z':
    case 'X':
      return Life::kEnded;
    default:
      return Life::kRunning;
  }
}

bool HasProcess(pid_t pid) {
  const std::optional<ProcStat> stat = ReadProcStat(pid);
  return stat && stat->state != 'Z' && stat->state != 'X';
}

// /dev/shm stands before /tmp, because /tmp may lie on a disk: the kernel then stops a writer now
// and again until a page is on its way to the disk.
std::vector<std::string> FoldersOfBoards(const std::string& given, const Environment& environment) {
  if (!given.empty()) return {given};
  std::vector<std::string> folders;
  const char* const runtime = environment("XDG_RUNTIME_DIR");
  // sudo may leave the folder of another user in the environment.
  if (runtime != nullptr && *runtime == '/' && BelongsToUser(runtime))
    folders.push_back(std::string(runtime) + "/tutti");
  const uid_t user = geteuid();
  const std::string run = fmt::format("/run/user/{}/tutti", user);
  if (folders.empty() || folders[0] != run) folders.push_back(run);
  folders.push_back(fmt::format("/dev/shm/tutti-{}", user));
  folders.push_back(fmt::format("/tmp/tutti-{}", user));
  return folders;
}

Result<UniqueFd> OpenFolder(const std::string& path, bool may_make) {
  if (may_make && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoError(errno, fmt::format("making the folder {} failed", path));
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found = {};
  if (!fd.valid() || fstat(fd.get(), &found) != 0)
    return ErrnoError(errno, fmt::format("opening the folder {} failed", path));
  if (found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return InvalidUsage(
        "the folder {} belongs to user {} and has mode {:04o}: boards lie in a folder of the user "
        "(mode 0700)",
        path, found.st_uid, found.st_mode & 07777u);
  }
  return fd;
}

std::vector<ProcessKey> ListBoards(int folder) {
  std::vector<ProcessKey> boards;
  // The directory stream closes its descriptor.
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(again < 0 ? nullptr : fdopendir(again),
                                                   [](DIR* one) { return closedir(one); });
  if (!stream) {
    if (again >= 0) close(again);
    return boards;
  }
  while (const dirent* const entry = readdir(stream.get())) {
    if (boards.size() == kMostListed) break;
    if (const auto key = ProcessKey::OfFileName(entry->d_name)) boards.push_back(*key);
  }
  return boards;
}

}  // namespace tutti::observe
