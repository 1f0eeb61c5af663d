#pragma once

// The folders with the boards of a user (board.h), and the names of the files in the folders. The
// name of a board tells its process from every other process of the machine:
//
//   PID-START-SPACE.board    the process, its start in ticks since the boot, and its PID namespace
//
// A folder belongs to the user alone: the folder is no symbolic link, this user owns the folder,
// and no other user can enter. Any thread.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "config/settings.h"

namespace tutti::observe {

struct ProcessKey {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  uint64_t pid_space = 0;  // the inode of the PID namespace; 0: unknown

  std::string FileName() const;
  // Returns nothing for a name of another form.
  static std::optional<ProcessKey> OfFileName(std::string_view name);
  // Returns the key of this process.
  static ProcessKey OfThisProcess();
  friend bool operator==(const ProcessKey&, const ProcessKey&) = default;
};

enum class Life {
  kRunning,
  kStopped,  // by SIGSTOP, a terminal or a debugger
  kEnded,
  kUnknown  // a process of another PID namespace
};

// Returns the life of a process, from /proc.
Life LifeOf(const ProcessKey& key);
// Returns whether this PID namespace has a process of this number.
bool HasProcess(pid_t pid);

// Returns the folders where boards may lie, best first: `given` (TUTTI_OBSERVE_DIR) alone if it is
// not empty.
std::vector<std::string> FoldersOfBoards(const std::string& given, const Environment& environment);

// Opens a folder, and makes the last part of its path where `may_make`. InvalidUsage for a folder
// that others could change or enter.
Result<UniqueFd> OpenFolder(const std::string& path, bool may_make);

// Returns the boards in an open folder. Lists at most kMostListed files.
inline constexpr size_t kMostListed = 65536;
std::vector<ProcessKey> ListBoards(int folder);

}  // namespace tutti::observe
