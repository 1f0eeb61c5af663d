#pragma once

// Runs programs as a user would and keeps what they said.

#include <string>
#include <utility>
#include <vector>

namespace tutti::tools {

struct Outcome {
  int status = 0;  // As a shell tells it: 128 plus the signal for a program that was killed.
  std::string out;
  std::string err;
  double seconds = 0;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// A running program. Killed when it goes.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments, const Variables& variables = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int pid() const { return pid_; }
  // Reads until the text shows on standard output; false when the program ends before.
  bool WaitForOutput(const std::string& text);
  Outcome Finish();

 private:
  bool ReadSome();

  int pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  double started_ = 0;
  Outcome outcome_;
};

Outcome RunProgramOnce(std::vector<std::string> arguments, const Variables& variables = {});

// `tutti` of this build.
Outcome Tutti(std::vector<std::string> arguments, const Variables& variables = {});
// `tutti perf` against the fake library, brief unless the arguments say otherwise.
Outcome Perf(std::vector<std::string> arguments, const Variables& variables = {});

// A port at which nobody listens now, as text.
std::string FreePort();

bool IsInstalled(const std::string& program);

}  // namespace tutti::tools
