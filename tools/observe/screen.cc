#include "observe/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <string>

#include "observe/signals.h"

namespace tutti::tools {
namespace {

// Control sequences of terminals (ECMA-48).
constexpr std::string_view kOtherScreen = "\033[?1049h", kFirstScreen = "\033[?1049l";
constexpr std::string_view kHome = "\033[H", kClearLine = "\033[K", kClearBelow = "\033[J";

// For the handler of signals, which reaches nothing else.
std::atomic<bool> ends = false;
std::atomic<bool> stops = false;
static_assert(std::atomic<bool>::is_always_lock_free);

bool Write(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

// Returns the picture as far as the terminal has room. The last line stays free, lest the terminal
// scroll.
std::string Fit(std::string_view picture) {
  winsize size = {};
  const bool known =
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 0;
  const size_t rows = known ? size.ws_row - 1u : 24, columns = known ? size.ws_col : 80;
  std::string text(kHome);
  for (size_t row = 0; row < rows && !picture.empty(); ++row) {
    const std::string_view line = picture.substr(0, picture.find('\n'));
    picture.remove_prefix(std::min(line.size() + 1, picture.size()));
    text += line.substr(0, columns);
    text += kClearLine;
    text += '\n';
  }
  return text += kClearBelow;
}

}  // namespace

Screen::Screen(bool plain) : out_is_terminal_(!plain && isatty(STDOUT_FILENO) == 1) {
  ends = stops = false;
  struct sigaction action = {};
  action.sa_handler = [](int number) { (number == SIGTSTP ? stops : ends) = true; };
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const bool ignored = IsIgnored(kSignals[i]);
    sigaction(kSignals[i], ignored ? nullptr : &action, &actions_[i]);
  }
  if (!out_is_terminal_) return;
  termios now = {};
  if (tcgetattr(STDIN_FILENO, &now) == 0) before_ = now;
  Take();
}

Screen::~Screen() {
  GiveBack();
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_[i], nullptr);
}

void Screen::Take() const {
  if (out_is_terminal_) Write(kOtherScreen);
  if (!before_) return;
  termios now = *before_;
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
}

void Screen::GiveBack() const {
  if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
  if (out_is_terminal_) Write(kFirstScreen);
}

bool Screen::Show(std::string_view picture) const {
  return Write(out_is_terminal_ ? Fit(picture) : std::string(picture));
}

bool Screen::Pause(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
  pollfd keys = {before_ ? STDIN_FILENO : -1, POLLIN, 0};
  while (!ends) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return true;
    const int ready = poll(&keys, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return false;
    if (stops.exchange(false)) {
      GiveBack();
      raise(SIGSTOP);
      Take();
    }
    if (ready <= 0) continue;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) keys.fd = -1;  // The terminal has no more keys.
    if (key == 'q' || key == 'Q') return false;
  }
  return false;
}

}  // namespace tutti::tools
