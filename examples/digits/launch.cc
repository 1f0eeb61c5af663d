#include "launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

namespace digits {
namespace {

constexpr auto kIdDeadline = std::chrono::seconds(60);
constexpr auto kIdPoll = std::chrono::milliseconds(2);

int NumberFromEnvironment(const char* name, std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) {
    throw std::runtime_error(std::string("the environment says ") + name + "=" + std::string(text) +
                             ", which is not a whole number");
  }
  return value;
}

/// Makes the launcher's meeting point the library's, unless the user chose one.
void MeetAtMaster() {
  if (std::getenv("NCCL_COMM_ID") != nullptr) return;
  const char* address = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  if (address == nullptr || port == nullptr) {
    throw std::runtime_error(
        "RANK and WORLD_SIZE are set but the ranks have no way to share an id; give every rank the "
        "same --id-file, "
        "TUTTI_ID_FILE, NCCL_COMM_ID or MASTER_ADDR and MASTER_PORT");
  }
  setenv("NCCL_COMM_ID", (std::string(address) + ":" + port).c_str(), 1);
}

/// Writes the id under another name first and renames the complete file, hence no reader sees half
/// an id. Only this user may read the file: the id contains the key that admits a process to the
/// job.
void WriteId(const std::string& path, const ncclUniqueId& id) {
  const std::string draft = path + "." + std::to_string(getpid());
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  const bool written = fd >= 0 && write(fd, &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id));
  const int write_errno = errno;
  if (fd >= 0) close(fd);
  if (!written) {
    throw std::runtime_error("cannot write the id file " + draft + ": " +
                             std::strerror(write_errno));
  }
  if (rename(draft.c_str(), path.c_str()) != 0) {
    throw std::runtime_error("cannot name the id file " + path + ": " + std::strerror(errno));
  }
}

bool ReadId(const std::string& path, ncclUniqueId* id) {
  std::ifstream file(path, std::ios::binary);
  return file.read(reinterpret_cast<char*>(id), sizeof(*id)).gcount() ==
         static_cast<std::streamsize>(sizeof(*id));
}

/// A directory for this run, removed with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "digits-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot make a directory " + name + ": " + std::strerror(errno));
    }
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

pid_t ForkOne(const Place& place, const std::function<int(const Place&)>& rank_main) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  // A rank must not outlive the user's program, which may end before this call.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int status = rank_main(place);
  std::cout.flush();
  // The child must not call exit(), which would run the functions that the parent has registered
  // for its own end.
  _exit(status);
}

// The first failure ends the remaining ranks, which would otherwise wait for the failed rank.
int WaitForAll(std::vector<pid_t> children) {
  int first_failure = 0;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended < 0) {
      if (errno == EINTR) continue;
      throw std::runtime_error(std::string("waiting for the ranks failed: ") +
                               std::strerror(errno));
    }
    std::erase(children, ended);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (first_failure != 0) continue;
    first_failure = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status)) {
      std::cerr << "digits: a rank was ended by signal " << WTERMSIG(status) << " ("
                << strsignal(WTERMSIG(status)) << ")\n";
    }
    for (const pid_t child : children) kill(child, SIGTERM);
  }
  return first_failure;
}

}  // namespace

std::optional<Place> PlaceFromEnvironment(const std::string& id_file) {
  const char* rank = std::getenv("RANK");
  const char* size = std::getenv("WORLD_SIZE");
  if (rank == nullptr && size == nullptr) return std::nullopt;
  if (rank == nullptr || size == nullptr) {
    throw std::runtime_error(
        "the environment sets only one of RANK and WORLD_SIZE; a launcher must set both");
  }
  Place place{.rank = NumberFromEnvironment("RANK", rank),
              .size = NumberFromEnvironment("WORLD_SIZE", size),
              .id_file = id_file};
  if (place.size < 1 || place.rank < 0 || place.rank >= place.size) {
    throw std::runtime_error(std::string("the environment says RANK=") + rank + " and WORLD_SIZE=" +
                             size + "; the rank must be from 0 to one less than the size");
  }
  if (const char* file = std::getenv("TUTTI_ID_FILE"); place.id_file.empty() && file != nullptr)
    place.id_file = file;
  if (place.id_file.empty() && place.size > 1) MeetAtMaster();
  return place;
}

ncclUniqueId ShareId(const Place& place) {
  if (place.id_file.empty()) return Communicator::NewId();
  if (place.rank == 0) {
    const ncclUniqueId id = Communicator::NewId();
    WriteId(place.id_file, id);
    return id;
  }
  ncclUniqueId id;
  const auto deadline = std::chrono::steady_clock::now() + kIdDeadline;
  while (!ReadId(place.id_file, &id)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("rank " + std::to_string(place.rank) +
                               " waited a minute for rank 0 to write " + place.id_file +
                               "; is rank 0 running and can it write there?");
    }
    std::this_thread::sleep_for(kIdPoll);
  }
  return id;
}

void RemoveIdFile(const Place& place) {
  std::error_code ignored;
  if (place.rank == 0 && !place.id_file.empty()) std::filesystem::remove(place.id_file, ignored);
}

int ForkRanks(int size, const std::function<int(const Place&)>& rank_main) {
  const TemporaryDirectory directory;
  std::cout.flush();  // Otherwise every child would print the content of the buffer again.
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child =
        ForkOne({.rank = rank, .size = size, .id_file = directory.path() + "/id"}, rank_main);
    if (child < 0) {
      const int fork_errno = errno;
      for (const pid_t started : children) kill(started, SIGTERM);
      WaitForAll(children);
      throw std::runtime_error("cannot start rank " + std::to_string(rank) + ": " +
                               std::strerror(fork_errno));
    }
    children.push_back(child);
  }
  return WaitForAll(children);
}

}  // namespace digits
