#pragma once

#include <signal.h>

namespace tutti::tools {

// Returns whether this process ignores a signal. A signal that is ignored at the start of a program
// should stay ignored: nohup and shells ask for that.
inline bool IsIgnored(int number) {
  struct sigaction now = {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace tutti::tools
