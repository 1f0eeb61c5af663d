#pragma once

// The common parts of the tests of jobs as they are seen from outside.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "observe/reader.h"
#include "testing/ranks.h"

namespace tutti::testing {

// A folder of boards for the life of this object, also for programs that are started.
class BoardFolder {
 public:
  explicit BoardFolder(Environment::Settings more = {}) {
    path_ = ::testing::TempDir() + "boards.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
    more.emplace_back("TUTTI_OBSERVE_DIR", path_);
    environment_.emplace(more);
  }
  ~BoardFolder() {
    environment_.reset();
    std::filesystem::remove_all(path_);
  }
  BoardFolder(const BoardFolder&) = delete;
  BoardFolder& operator=(const BoardFolder&) = delete;

  const std::string& path() const { return path_; }

  // Waits until so many ranks wait for others or have failed, as their boards say.
  [[nodiscard]] bool AwaitHeldUp(int count) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < until) {
      if (HeldUp() >= count) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  int HeldUp() const {
    int held_up = 0;
    for (const observe::ProcessSnapshot& process : observe::ReadBoards({path_}).processes)
      for (const observe::CommunicatorSnapshot& one : process.board.communicators)
        held_up += one.wait || !one.step.empty() || one.phase != observe::Phase::kInOperation;
    return held_up;
  }

  std::string path_;
  std::optional<Environment> environment_;
};

struct Outcome {
  int status = -1;
  std::string output;
};

// Runs a command line and takes its output on both streams.
inline Outcome RunCommand(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> bytes;
  while (const size_t got = fread(bytes.data(), 1, bytes.size(), pipe))
    outcome.output.append(bytes.data(), got);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace tutti::testing
