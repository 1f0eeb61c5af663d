#pragma once

// Holds the parts that both launchers (launcher.h, elastic.h) share: starting a process, passing on
// its output, receiving signals as data, and ending the processes that were left behind.
//
// An object belongs to one thread. Spawn may be called in a process with other threads: nothing
// between fork and exec allocates.

#include <signal.h>
#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

// The exit status for a program that could not be started, as in shells.
inline constexpr int kExitCannotStart = 127;

// Passes on the output of a process, whole lines at a time, each with "[tag] " before its text.
class TaggedOutput {
 public:
  TaggedOutput(std::string tag, UniqueFd source, std::FILE* target)
      : tag_(std::move(tag)), source_(std::move(source)), target_(target) {}

  // Returns the descriptor to wait on, -1 after the end of the output.
  int fd() const { return source_.get(); }
  // Passes on what has arrived, at most `reads` times 16 KiB.
  void Drain(int reads);

 private:
  void WriteLines(bool rest_too);

  const std::string tag_;
  UniqueFd source_;
  std::FILE* const target_;
  std::string pending_;
  size_t searched_ = 0;  // number of bytes of pending_ known to have no line end
};

// Number of reads of one Drain: few, for signals and other processes not to wait.
inline constexpr int kReadsAtOnce = 4;
// As many reads empty a pipe of 1 MiB, the largest pipe of a process without privileges.
inline constexpr int kReadsAtTheEnd = 64;

// A copy of this process's environment, to be changed and given to another process.
class Environment {
 public:
  Environment();
  void Set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void SetIfMissing(const std::string& name, const std::string& value) {
    variables_.emplace(name, value);
  }
  void Remove(const std::string& name) { variables_.erase(name); }
  // Removes the variables by which an outer launcher tells this process's rank and meeting place,
  // because the started processes are a different job.
  void RemovePlaces();
  // Returns the variable's value, "" where the variable is not set.
  std::string Get(const std::string& name) const;
  const std::map<std::string, std::string>& variables() const { return variables_; }
  std::vector<std::string> Lines() const;  // "name=value"

 private:
  std::map<std::string, std::string> variables_;
};

struct SpawnRequest {
  std::vector<std::string> command;
  Environment environment;
  // Descriptors for the process; -1: this process's own.
  int in = -1;
  int out = -1;
  int err = -1;
  sigset_t signal_mask{};
  // Puts the process into a group of its own, in order to end it together with its descendants.
  bool own_group = false;
  // Called in the new process; it may make system calls only.
  std::function<void()> prepare;
};

// Starts a process that dies with this one. A failure's sentence ends with the text of errno.
Result<pid_t> Spawn(const SpawnRequest& request);

// Makes a pipe. Both ends close on exec; the reading end does not block.
struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};
Result<Pipe> MakePipe();
UniqueFd OpenNull();

// Signals that a launcher passes on, read from a descriptor, hence no signal gets lost between two
// system calls.
class SignalReader {
 public:
  SignalReader();

  int fd() const { return fd_.get(); }
  const sigset_t& old_mask() const { return old_mask_; }
  // Calls `take` for each signal that came, except SIGCHLD. `from_terminal` says that a key such as
  // Ctrl-C sent the signal: all processes of the terminal's foreground group then have the signal
  // already.
  void Read(const std::function<void(int signal, bool from_terminal)>& take);

 private:
  sigset_t old_mask_{};
  UniqueFd fd_;
};

// Make this process the parent of the processes that its children leave behind, and end all such
// orphans.
void AdoptOrphans();
void KillOrphans();

}  // namespace tutti::tools
