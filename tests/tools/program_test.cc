#include "program_test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tutti::tools {
namespace {

// Launchers of the outside world must not leak into the tests.
constexpr const char* kForeign[] = {"RANK",           "WORLD_SIZE",      "MASTER_ADDR",
                                    "MASTER_PORT",    "PMI_RANK",        "OMPI_COMM_WORLD_RANK",
                                    "SLURM_PROCID",   "LOCAL_RANK",      "TUTTI_ADDR",
                                    "TUTTI_COMM_KEY", "LOCAL_WORLD_SIZE"};

}  // namespace

Program::Program(std::vector<std::string> arguments, const Variables& variables) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  started_ = static_cast<double>(NowNs()) / 1e9;
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const char* name : kForeign) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    execvp(words[0], words.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
}

bool Program::ReadSome() {
  pollfd entries[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  poll(entries, 2, 1000);
  const auto drain = [](const pollfd& entry, int* fd, std::string* text) {
    if (!entry.revents) return;
    char buffer[4096];
    const ssize_t got = read(*fd, buffer, sizeof(buffer));
    if (got > 0) {
      text->append(buffer, static_cast<size_t>(got));
    } else {
      close(*fd);
      *fd = -1;
    }
  };
  drain(entries[0], &out_, &outcome_.out);
  drain(entries[1], &err_, &outcome_.err);
  return out_ >= 0 || err_ >= 0;
}

bool Program::WaitForOutput(const std::string& text) {
  while (outcome_.out.find(text) == std::string::npos) {
    if (!ReadSome()) return outcome_.out.find(text) != std::string::npos;
  }
  return true;
}

Outcome Program::Finish() {
  while (ReadSome()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  outcome_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome_.seconds = static_cast<double>(NowNs()) / 1e9 - started_;
  return outcome_;
}

Outcome RunProgramOnce(std::vector<std::string> arguments, const Variables& variables) {
  return Program(std::move(arguments), variables).Finish();
}

Outcome Tutti(std::vector<std::string> arguments, const Variables& variables) {
  arguments.insert(arguments.begin(), TUTTI_PROGRAM);
  return RunProgramOnce(std::move(arguments), variables);
}

Outcome Perf(std::vector<std::string> arguments, const Variables& variables) {
  const std::vector<std::string> front = {"perf", "--library", TUTTI_FAKE_NCCL, "-i", "2",
                                          "-w",   "1",         "--rotate",      "2"};
  arguments.insert(arguments.begin(), front.begin(), front.end());
  return Tutti(std::move(arguments), variables);
}

std::string FreePort() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return std::to_string(ntohs(address.sin_port));
}

bool IsInstalled(const std::string& program) {
  return RunProgramOnce({"sh", "-c", "command -v " + program}).status == 0;
}

}  // namespace tutti::tools
