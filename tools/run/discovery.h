#pragma once

// Finds out which hosts an elastic job may use, by running a program of the user's again and again.
// The program writes a line "host" or "host:slots" for each host. One thread; nothing here waits.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "elastic/hosts.h"
#include "run/process.h"

namespace tutti::tools {

class Discovery {
 public:
  // `script` is a program or a line for the shell.
  Discovery(std::string script, int default_slots, double interval_s, const sigset_t& signal_mask)
      : script_(std::move(script)),
        default_slots_(default_slots),
        interval_s_(interval_s),
        signal_mask_(signal_mask) {}
  ~Discovery() { Stop(); }
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Readable when Step has something to do; -1 between two runs.
  int fd() const { return output_.get(); }
  int NextStepMs() const { return next_run_.RemainingMs(1000); }
  // Starts the script when its time has come, and reads the script's output. Returns a list when a
  // run ended well, nothing while no list is complete, and a failure when a run went wrong.
  Result<std::optional<std::vector<elastic::HostSlots>>> Step();

 private:
  Status Start();
  void Stop();
  Result<std::optional<std::vector<elastic::HostSlots>>> TakeResult();

  const std::string script_;
  const int default_slots_;
  const double interval_s_;
  const sigset_t signal_mask_;
  Deadline next_run_ = Deadline::After(0);
  Deadline give_up_ = Deadline::Never();
  pid_t pid_ = -1;
  UniqueFd output_;
  std::string text_;
};

}  // namespace tutti::tools
