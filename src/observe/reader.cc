#include "observe/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "observe/board.h"
#include "sys/host.h"

namespace tutti::observe {
namespace {

// Reads all of `bytes`.
bool ReadAt(int fd, void* out, size_t bytes, size_t offset) {
  ssize_t got = 0;
  do {
    got = pread(fd, out, bytes, static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(bytes);
}

// Reads a record that changes meanwhile: a value is right in the middle one of three copies if the
// value's version is the same in the first and the last copy.
class PlaceReader {
 public:
  std::optional<CommunicatorSnapshot> Read(int fd, size_t offset) {
    // Most places are free, and then their first copy has no identity.
    if (!ReadAt(fd, copies_[0].get(), sizeof(CommunicatorRecord), offset)) return {};
    if (!copies_[0]->identity.Load()) return {};
    for (const size_t i : {1, 2})
      if (!ReadAt(fd, copies_[i].get(), sizeof(CommunicatorRecord), offset)) return {};
    const CommunicatorRecord &before = *copies_[0], &after = *copies_[2];
    CommunicatorRecord& record = *copies_[1];
    record.operations.collectives.DropTorn(before.operations.collectives,
                                           after.operations.collectives);
    record.identity.DropIfTorn(before.identity, after.identity);
    record.state.DropIfTorn(before.state, after.state);
    record.step.DropIfTorn(before.step, after.step);
    record.awaited.DropIfTorn(before.awaited, after.awaited);
    record.slow.DropIfTorn(before.slow, after.slow);
    record.names.DropIfTorn(before.names, after.names);
    return Decode(record);
  }

 private:
  std::array<std::unique_ptr<CommunicatorRecord>, 3> copies_ = {
      std::make_unique<CommunicatorRecord>(), std::make_unique<CommunicatorRecord>(),
      std::make_unique<CommunicatorRecord>()};
};

Status CheckHeader(const BoardHeader& header, uint64_t file_bytes) {
  const uint64_t magic = header.magic.load(std::memory_order_relaxed);
  if (std::memcmp(&magic, BoardHeader::kMagic.data(), sizeof(magic)) != 0)
    return InvalidUsage("the file is no board");
  if (header.version != BoardHeader::kVersion)
    return InvalidUsage("the board is of version {}, and this program reads version {}",
                        header.version, BoardHeader::kVersion);
  const uint64_t needed =
      BoardHeader::kBytes + uint64_t{header.num_places} * sizeof(CommunicatorRecord);
  if (header.place_bytes != sizeof(CommunicatorRecord) || file_bytes < needed)
    return InvalidUsage("the board is cut or damaged");
  return Status::Ok();
}

}  // namespace

Result<BoardContent> ReadBoard(int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return ErrnoError(errno, "examining the board");
  if (!S_ISREG(file.st_mode) || file.st_uid != geteuid())
    return InvalidUsage("the board is not a file of this user");
  const auto header = std::make_unique<BoardHeader>();
  if (!ReadAt(fd, header.get(), sizeof(BoardHeader), 0))
    return InvalidUsage("the board is cut or damaged");
  TUTTI_TRY(CheckHeader(*header, static_cast<uint64_t>(file.st_size)));
  BoardContent content = {.host = Printable(TextOf(header->host)),
                          .boot = Printable(TextOf(header->boot)),
                          .program = Printable(TextOf(header->program)),
                          .ras_address = Printable(TextOf(header->ras_address)),
                          .num_hidden = header->num_hidden.load(std::memory_order_relaxed),
                          .communicators = {}};
  PlaceReader places;
  const size_t num_places = std::min<size_t>(header->num_places, Board::kMostPlaces);
  for (size_t i = 0; i < num_places; ++i)
    if (auto one = places.Read(fd, BoardHeader::kBytes + i * sizeof(CommunicatorRecord)))
      content.communicators.push_back(std::move(*one));
  return content;
}

Result<BoardContent> ReadBoard(int folder, const std::string& name) {
  const UniqueFd fd(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, "opening the board");
  return ReadBoard(fd.get());
}

// A board of an earlier boot, on a disk, tells times of another clock.
Reading ReadBoards(const std::vector<std::string>& folders) {
  Reading reading = {.at_ns = NowNs(), .processes = {}};
  const std::string boot = BootId();
  for (const std::string& path : folders) {
    const Result<UniqueFd> folder = OpenFolder(path, /*may_make=*/false);
    if (!folder.ok()) continue;
    for (const ProcessKey& key : ListBoards(folder->get())) {
      ProcessSnapshot process = {.key = key, .life = LifeOf(key), .trouble = {}, .board = {}};
      const std::string name = key.FileName();
      Result<BoardContent> content = ReadBoard(folder->get(), name);
      // A process that ends in order has removed its board meanwhile.
      if (!content.ok() && faccessat(folder->get(), name.c_str(), F_OK, 0) != 0) continue;
      if (content.ok())
        process.board = std::move(content).value();
      else
        process.trouble = content.status().message();
      if (content.ok() && process.board.boot != boot) continue;
      reading.processes.push_back(std::move(process));
    }
  }
  // A killed process without communicators tells nothing.
  std::erase_if(reading.processes, [](const ProcessSnapshot& one) {
    return one.life == Life::kEnded && one.trouble.empty() && one.board.communicators.empty();
  });
  return reading;
}

}  // namespace tutti::observe
