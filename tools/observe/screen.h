#pragma once

// The terminal of a program that shows pictures again and again, as top does. Where standard output
// is no terminal, pictures follow one another as plain text.

#include <signal.h>
#include <termios.h>

#include <array>
#include <optional>
#include <string_view>

namespace tutti::tools {

class Screen {
 public:
  // Takes a terminal over, unless `plain`: keys arrive without a line end and are not shown.
  // SIGINT, SIGTERM, SIGHUP and SIGQUIT end Pause, unless the program started with these signals
  // ignored. At SIGTSTP, Pause gives the terminal back until the program goes on. One object at a
  // time in a process.
  explicit Screen(bool plain);
  // Gives the terminal back as it was.
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Shows a picture in place of the picture before. Lines are cut at the edges of the terminal.
  // Returns false where nobody can see pictures any more.
  bool Show(std::string_view picture) const;
  // Waits; returns false where the user ends the program, by the key q or by a signal.
  bool Pause(double seconds) const;
  // Returns whether the key q ends the program.
  bool takes_keys() const { return before_.has_value(); }

  // The signals that the object handles.
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

 private:
  void Take() const;
  void GiveBack() const;

  std::array<struct sigaction, kSignals.size()> actions_ = {};  // as they were before
  bool out_is_terminal_ = false;
  std::optional<termios> before_;  // of standard input; nothing: keys are not read
};

}  // namespace tutti::tools
