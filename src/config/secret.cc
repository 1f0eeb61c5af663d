#include "config/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/text.h"
#include "base/unique_fd.h"

namespace tutti {
namespace {

constexpr const char* kOpenMpi = "OMPI_MCA_orte_precondition_transports";
constexpr const char* kVariables[] = {"TUTTI_COMM_KEY", kOpenMpi, "_HOROVOD_SECRET_KEY"};
// A secret is a line of text. A larger file is something else.
constexpr size_t kLargestSecretFile = 4096;

// Every communicator reads the file, also a communicator that could do without a secret. Each
// refusal therefore says how to go without the file.
constexpr const char* kWayOut =
    "; to go without this file, remove the file (`tutti key` makes another) or set TUTTI_COMM_KEY";

// Others must not be able to read the file or to put a file of their own in its place.
Status CheckFile(int fd, const std::string& path) {
  struct stat found = {};
  if (fstat(fd, &found) != 0) return ErrnoError(errno, fmt::format("{} cannot be examined", path));
  if (!S_ISREG(found.st_mode)) return InvalidUsage("{} is not a file{}", path, kWayOut);
  if (found.st_uid != geteuid()) {
    return InvalidUsage(
        "{} belongs to user {}, and this process to user {}: a secret is read only "
        "from the user's own file{}",
        path, found.st_uid, geteuid(), kWayOut);
  }
  if ((found.st_mode & 077) != 0) {
    return InvalidUsage(
        "{} has mode {:04o}: other users must not reach a secret; run chmod 600 {}{}", path,
        found.st_mode & 07777u, path, kWayOut);
  }
  return Status::Ok();
}

// Returns an empty text where there is no file.
Result<ErasedText> ReadSecretFile(const std::string& path) {
  // Needs no descriptor: a process without descriptors and without a secret can go on, and tell the
  // other ranks of the lack.
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0 && (errno == ENOENT || errno == ENOTDIR))
    return ErasedText();
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid())
    return ErrnoError(errno, fmt::format("the secret in {} cannot be read{}", path, kWayOut));
  TUTTI_TRY(CheckFile(fd.get(), path));
  std::array<char, kLargestSecretFile + 1> bytes;
  const ssize_t got = read(fd.get(), bytes.data(), bytes.size());
  if (got < 0) return ErrnoError(errno, fmt::format("reading {} failed", path));
  if (static_cast<size_t>(got) > kLargestSecretFile) {
    return InvalidUsage("{} has more than {} bytes and cannot be a secret{}", path,
                        kLargestSecretFile, kWayOut);
  }
  std::string_view rest(bytes.data(), static_cast<size_t>(got));
  ErasedText text(Trim(NextItem(rest, '\n')));
  explicit_bzero(bytes.data(), bytes.size());
  TUTTI_TRY(CheckSecretLength(text, path));
  return text;
}

// Says whether mpirun has made `text`, rather than MPI_Init (secret.h).
bool IsOfMpirun(std::string_view text, const Environment& at_exec) {
  const char* const began_with = at_exec(kOpenMpi);
  if (began_with == nullptr || text != began_with) return false;
  if (at_exec("OMPI_COMM_WORLD_RANK") == nullptr) return false;
  const std::optional<uint64_t> first = WholeNumber<uint64_t>(NextItem(text, '-'), 16);
  return first && *first >= uint64_t{1} << 32;
}

}  // namespace

std::span<const char* const> SecretVariables() { return kVariables; }

Environment EnvironmentAtExec() {
  std::ifstream stream("/proc/self/environ", std::ios::binary);
  const ErasedText all(std::string(std::istreambuf_iterator<char>(stream), {}));
  return [all](const char* name) -> const char* {
    const size_t length = std::strlen(name);
    for (std::string_view rest = all; !rest.empty();) {
      const std::string_view entry = NextItem(rest, '\0');
      // The text ends with the zero byte behind the entry, or with the zero byte behind `all`.
      if (entry.starts_with(name) && entry.substr(length).starts_with('='))
        return entry.data() + length + 1;
    }
    return nullptr;
  };
}

Status CheckSecretLength(std::string_view text, std::string_view source) {
  if (text.size() >= kShortestSecretBytes) return Status::Ok();
  return InvalidUsage(
      "the secret in {} has {} bytes and could be guessed: a secret has at least {} bytes, best 64 "
      "random digits (`tutti key` makes them)",
      source, text.size(), kShortestSecretBytes);
}

std::string SecretFilePath(const Environment& environment) {
  const char* const home = environment("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.tutti/key" : std::string();
}

Result<Secret> FindSecret(const Environment& environment,
                          const std::function<Environment()>& at_exec) {
  for (const char* const name : kVariables) {
    const char* const text = environment(name);
    if (text == nullptr || *text == '\0') continue;
    if (name == kOpenMpi && !IsOfMpirun(text, at_exec())) continue;
    TUTTI_TRY(CheckSecretLength(text, name));
    return Secret{ErasedText(text), name};
  }
  const std::string path = SecretFilePath(environment);
  if (path.empty()) return Secret{};
  TUTTI_ASSIGN(ErasedText text, ReadSecretFile(path));
  if (text.empty()) return Secret{};
  return Secret{std::move(text), path};
}

}  // namespace tutti
