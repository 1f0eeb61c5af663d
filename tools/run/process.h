#pragma once

// What the two launchers (launcher.h, elastic.h) share: starting a process, passing on what it
// writes, receiving signals as data, and ending what was left behind.
//
// One thread each. Spawn may be called in a process with other threads: nothing between fork and
// exec allocates.

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

// The status of a program that could not be started, as shells have it.
inline constexpr int kExitCannotStart = 127;

// Passes on what a process writes, whole lines at a time, each with "[tag] " before it.
class TaggedOutput {
 public:
  TaggedOutput(std::string tag, UniqueFd source, std::FILE* target)
      : tag_(std::move(tag)), source_(std::move(source)), target_(target) {}

  int fd() const { return source_.get(); }  // -1 after its end
  // Passes on what there is, at most `reads` times 16 KiB.
  void Drain(int reads);

 private:
  void WriteLines(bool rest_too);

  const std::string tag_;
  UniqueFd source_;
  std::FILE* const target_;
  std::string pending_;
  size_t searched_ = 0;  // of pending_, without a line end
};

// A process that must not keep signals and others waiting writes at most this much at a time …
inline constexpr int kReadsAtOnce = 4;
// … and this empties a pipe of the largest size that it can have without privileges, 1 MiB.
inline constexpr int kReadsAtTheEnd = 64;

// Variables of this process's environment, changed and then given to another.
class Environment {
 public:
  Environment();  // this process's own
  void Set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void SetIfMissing(const std::string& name, const std::string& value) {
    variables_.emplace(name, value);
  }
  void Remove(const std::string& name) { variables_.erase(name); }
  // Removes what a launcher further out says: who this process is, and where others meet. What is
  // started here is another job.
  void RemovePlaces();
  // "" where it is not set.
  std::string Get(const std::string& name) const;
  const std::map<std::string, std::string>& variables() const { return variables_; }
  std::vector<std::string> Lines() const;  // "name=value"

 private:
  std::map<std::string, std::string> variables_;
};

struct SpawnRequest {
  std::vector<std::string> command;
  Environment environment;
  // Descriptors for the process; -1 leaves this process's own.
  int in = -1;
  int out = -1;
  int err = -1;
  sigset_t signal_mask{};
  bool own_group = false;         // so that it can be ended with what it started
  std::function<void()> prepare;  // called in the process; system calls only
};

// Starts a process that dies with this one. A failure's sentence is that of errno.
Result<pid_t> Spawn(const SpawnRequest& request);

// Both ends close on exec; the reading end does not block.
struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};
Result<Pipe> MakePipe();
UniqueFd OpenNull();

// Signals that a launcher passes on, read from a descriptor so that none arrives between two system
// calls.
class SignalReader {
 public:
  SignalReader();

  int fd() const { return fd_.get(); }
  const sigset_t& old_mask() const { return old_mask_; }
  // Calls `take` for each signal that came, SIGCHLD excepted. `from_terminal`: a key such as Ctrl-C
  // sent it, and all processes of the terminal's foreground group have it already.
  void Read(const std::function<void(int signal, bool from_terminal)>& take);

 private:
  sigset_t old_mask_{};
  UniqueFd fd_;
};

// Makes this process the parent of what its children leave behind; ends all of that.
void AdoptOrphans();
void KillOrphans();

}  // namespace tutti::tools
