// `tutti key` makes the file with the secret of a user's jobs (config/secret.h), and tells whether
// two hosts have the same secret.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/unique_fd.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "config/secret.h"
#include "launch/hex.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

// Returns 64 bits that tell nothing about the secret but whether another secret is the same.
std::string Fingerprint(std::string_view secret) {
  constexpr size_t kDigits = 16;
  return launch::ToHex(WithSecret(Key{}, secret, "fingerprint")).substr(0, kDigits);
}

// Opens the folder of the file, and makes the folder where there is none.
Result<UniqueFd> OpenFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoError(errno, fmt::format("making the folder {} failed", folder));
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found = {};
  if (!fd.valid() || fstat(fd.get(), &found) != 0)
    return ErrnoError(errno, fmt::format("opening the folder {} failed", folder));
  if (found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    return InvalidUsage("other users can change the folder {} (user {}, mode {:04o})", folder,
                        found.st_uid, found.st_mode & 07777u);
  }
  return fd;
}

// Writes `text` to a new file of the folder and to the disk.
Status WriteFile(int folder, const std::string& name, std::string_view text) {
  const UniqueFd fd(
      openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.valid() && write(fd.get(), text.data(), text.size()) == std::ssize(text) &&
      fsync(fd.get()) == 0) {
    return Status::Ok();
  }
  return ErrnoError(errno, fmt::format("writing {} failed", name));
}

// Puts a whole file in place or none, so that a full disk or a killed process leaves the old key,
// and a job that starts meanwhile reads one of the two keys.
Status WriteKey(int folder, const std::string& path, const std::string& secret, bool force) {
  const std::string draft = fmt::format("key.{:016x}", RandomU64());
  Status written = WriteFile(folder, draft, secret + "\n");
  if (written.ok() && force && renameat(folder, draft.c_str(), folder, "key") != 0)
    written = ErrnoError(errno, fmt::format("replacing {} failed", path));
  if (written.ok() && !force && linkat(folder, draft.c_str(), folder, "key", 0) != 0) {
    written =
        errno == EEXIST
            ? InvalidUsage(
                  "{} is there already, and hosts may have copies; --force makes a new key", path)
            : ErrnoError(errno, fmt::format("making {} failed", path));
  }
  // A draft that became the key by its new name is not there any more.
  [[maybe_unused]] const int removed = unlinkat(folder, draft.c_str(), 0);
  return written;
}

Status MakeKey(bool force) {
  const std::string path = SecretFilePath(ProcessVariables());
  if (path.empty()) return InvalidUsage("HOME is not set, so there is no place for the key");
  TUTTI_ASSIGN(const UniqueFd folder, OpenFolder(path.substr(0, path.rfind('/'))));
  const ErasedText secret = RandomSecret();
  TUTTI_TRY(WriteKey(folder.get(), path, secret, force));
  fmt::print(
      "The key lies in {} (fingerprint {}).\n"
      "Your jobs use the key where they have no other secret. All hosts of a job need the same "
      "file; hosts with one home folder have it already. To copy the key to a host, and to compare "
      "hosts:\n"
      "  ssh HOST 'umask 077; mkdir -p ~/.tutti; cat > ~/.tutti/key' < ~/.tutti/key\n"
      "  tutti key --fingerprint\n",
      path, Fingerprint(secret));
  return Status::Ok();
}

Status ShowFingerprint() {
  TUTTI_ASSIGN(const Secret secret, FindSecret(ProcessVariables()));
  if (secret.text.empty()) return InvalidUsage("there is no secret here; `tutti key` makes one");
  fmt::print("{}  {}\n", Fingerprint(secret.text), secret.source);
  return Status::Ok();
}

}  // namespace

Subcommand AddKey(CLI::App& program) {
  struct Flags {
    bool force = false;
    bool fingerprint = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* const app = program.add_subcommand(
      "key", "Make ~/.tutti/key, the secret by which the ranks of your jobs know one another");
  CLI::Option* const force =
      app->add_flag("--force", flags->force, "make a new key in the place of the old one");
  app->add_flag("--fingerprint", flags->fingerprint,
                "make nothing; print a text that is the same on hosts with the same secret, and "
                "where the secret comes from")
      ->excludes(force);
  return {app, [flags] {
            const Status status = flags->fingerprint ? ShowFingerprint() : MakeKey(flags->force);
            if (status.ok()) return 0;
            fmt::print(stderr, "tutti key: {}\n", status.message());
            return kExitFailure;
          }};
}

}  // namespace tutti::tools
