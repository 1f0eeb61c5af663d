#include "observe/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "observe/picture.h"
#include "observe/reader.h"
#include "sys/host.h"

namespace tutti::observe {
namespace {

constexpr size_t kFileBytes = BoardHeader::kBytes + Board::kMostPlaces * sizeof(CommunicatorRecord);
// A failure shows at many communicators and calls at once; a single picture has all of them.
constexpr int64_t kPictureEveryNs = 5'000'000'000;

// Reserves blocks for a part of the file.
Status Reserve(int fd, size_t offset, size_t bytes) {
  const int error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return error == 0 ? Status::Ok() : ErrnoError(error, "reserving blocks");
}

struct EndedBoard {
  std::string name;
  int64_t made_ns;
};

// Removes all but the newest `kept` boards.
void RemoveOldest(int folder, std::vector<EndedBoard> boards, size_t kept) {
  if (boards.size() <= kept) return;
  std::sort(boards.begin(), boards.end(),
            [](const EndedBoard& a, const EndedBoard& b) { return a.made_ns > b.made_ns; });
  for (size_t i = kept; i < boards.size(); ++i) unlinkat(folder, boards[i].name.c_str(), 0);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// OwnedRecord

OwnedRecord::OwnedRecord()
    : OwnedRecord(nullptr, nullptr, std::make_unique<CommunicatorRecord>()) {}

OwnedRecord::OwnedRecord(Board* board, CommunicatorRecord* record,
                         std::unique_ptr<CommunicatorRecord> own)
    : board_(board), own_(std::move(own)), record_(own_ ? own_.get() : record) {}

OwnedRecord::OwnedRecord(OwnedRecord&& other) noexcept
    : board_(std::exchange(other.board_, nullptr)),
      own_(std::move(other.own_)),
      record_(std::exchange(other.record_, nullptr)) {}

OwnedRecord& OwnedRecord::operator=(OwnedRecord&& other) noexcept {
  Release();
  board_ = std::exchange(other.board_, nullptr);
  own_ = std::move(other.own_);
  record_ = std::exchange(other.record_, nullptr);
  return *this;
}

void OwnedRecord::Release() {
  if (board_ != nullptr) board_->GiveBack(record_, own_ == nullptr);
  board_ = nullptr;
}

void OwnedRecord::LogPicture(std::string_view why) const {
  if (board_ != nullptr) board_->LogPicture(why);
}

// ---------------------------------------------------------------------------------------------------------------------
// The file

std::unique_ptr<Board> Board::Create(const Settings& settings) {
  std::unique_ptr<Board> board(new Board);
  if (!settings.observe) return board;
  const Status made = board->MakeFile(settings);
  if (made.ok())
    TUTTI_INFO(kLogInit, "the board of this process is {}", board->path_);
  else
    TUTTI_INFO(kLogInit, "`tutti ps` does not see this process: {}", made.message());
  return board;
}

// A file of this process's name is from before an exec of the same process. (A second copy of the
// library in the process hides the first copy.)
Status Board::MakeFile(const Settings& settings) {
  // A longer file would end the process by SIGXFSZ.
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kFileBytes)
    return SystemError("the limit of file sizes (ulimit -f) is below {} bytes", kFileBytes);
  UniqueFd folder;
  std::string folder_path;
  Status why;
  for (const std::string& path : FoldersOfBoards(settings.observe_dir, ProcessVariables())) {
    Result<UniqueFd> opened = OpenFolder(path, /*may_make=*/true);
    why = opened.status();
    if (!opened.ok()) continue;
    folder = std::move(opened).value();
    folder_path = path;
    break;
  }
  TUTTI_TRY(std::move(why));
  RemoveEnded(folder.get());
  const std::string name = ProcessKey::OfThisProcess().FileName();
  unlinkat(folder.get(), name.c_str(), 0);
  const UniqueFd fd(
      openat(folder.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("making a file in {} failed", folder_path));
  Status sized = ftruncate(fd.get(), kFileBytes) == 0 ? Reserve(fd.get(), 0, BoardHeader::kBytes)
                                                      : ErrnoError(errno, "setting the size");
  void* const memory =
      sized.ok() ? mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)
                 : MAP_FAILED;
  if (memory == MAP_FAILED) {
    if (sized.ok()) sized = ErrnoError(errno, "mapping the file");
    unlinkat(folder.get(), name.c_str(), 0);
    return std::move(sized).Annotate(fmt::format("the board in {}", folder_path));
  }
  memory_ = static_cast<std::byte*>(memory);
  path_ = fmt::format("{}/{}", folder_path, name);
  BoardHeader* const header = new (memory_) BoardHeader;
  header->num_places = kMostPlaces;
  header->host = ToShortText<64>(HostName());
  header->boot = ToShortText<40>(BootId());
  header->program = ToShortText<64>(program_invocation_short_name);
  if (settings.ras_enable) header->ras_address = ToShortText<64>(settings.ras_addr);
  uint64_t magic = 0;
  std::memcpy(&magic, BoardHeader::kMagic.data(), sizeof(magic));
  header->magic.store(magic, std::memory_order_release);
  return Status::Ok();
}

// The boards of running processes stay. A board of another boot may be another machine's, in a
// folder that machines share. A file that is removed at the same time by another process
// is no loss.
void Board::RemoveEnded(int folder) const {
  const std::string boot = BootId();
  std::vector<EndedBoard> ended, unknown;
  for (const ProcessKey& key : ListBoards(folder)) {
    Life life = LifeOf(key);
    if (life != Life::kEnded && life != Life::kUnknown) continue;
    const std::string name = key.FileName();
    const Result<BoardContent> content = ReadBoard(folder, name);
    if (content.ok() && content->boot != boot) life = Life::kUnknown;
    const bool says_nothing =
        content.ok() && content->communicators.empty() && content->num_hidden == 0;
    struct stat file = {};
    if (fstatat(folder, name.c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const int64_t made_ns = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
    if (life == Life::kEnded && says_nothing)
      unlinkat(folder, name.c_str(), 0);
    else
      (life == Life::kEnded ? ended : unknown).push_back({name, made_ns});
  }
  RemoveOldest(folder, std::move(ended), kMostEnded);
  RemoveOldest(folder, std::move(unknown), kMostUnknown);
}

void Board::RemoveFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

Board::~Board() {
  RemoveFile();
  if (memory_ != nullptr) munmap(memory_, kFileBytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Places

CommunicatorRecord* Board::place(size_t number) const {
  return reinterpret_cast<CommunicatorRecord*>(memory_ + BoardHeader::kBytes +
                                               number * sizeof(CommunicatorRecord));
}

// The file is opened anew, because a descriptor for the life of the process would be missing
// elsewhere.
bool Board::ReservePlace(size_t place) const {
  const UniqueFd fd(open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  const size_t offset = BoardHeader::kBytes + place * sizeof(CommunicatorRecord);
  return fd.valid() && Reserve(fd.get(), offset, sizeof(CommunicatorRecord)).ok();
}

// Returns null where no place is left.
CommunicatorRecord* Board::TakePlace() {
  if (memory_ == nullptr || taken_.all()) return nullptr;
  size_t number = 0;
  while (taken_[number]) ++number;
  if (!reserved_[number]) {
    if (!ReservePlace(number)) return nullptr;
    reserved_.set(number);
    new (place(number)) CommunicatorRecord;
  }
  taken_.set(number);
  CommunicatorRecord* const record = place(number);
  record->operations.collectives.Clear();
  record->operations.under_way.store(OperationRecord::kNothing, std::memory_order_relaxed);
  record->operations.messages_begun.store(0, std::memory_order_relaxed);
  for (std::atomic<uint64_t>& begun : record->operations.begun)
    begun.store(0, std::memory_order_relaxed);
  record->step.Clear();
  record->awaited.Clear();
  record->slow.Clear();
  record->waited_ns.store(0, std::memory_order_relaxed);
  record->names.Clear();
  return record;
}

OwnedRecord Board::Claim(const Identity& identity) {
  const MutexLock lock(mutex_);
  std::unique_ptr<CommunicatorRecord> own;
  CommunicatorRecord* record = TakePlace();
  if (record == nullptr) {
    own = std::make_unique<CommunicatorRecord>();
    record = own.get();
    if (memory_ != nullptr) header()->num_hidden.fetch_add(1, std::memory_order_relaxed);
  }
  records_.insert(record);
  Identity full = identity;
  full.place_use = ++num_claims_;
  record->state.Store({.since_ns = NowNs()});
  record->identity.Store(full);
  return OwnedRecord(this, record, std::move(own));
}

void Board::GiveBack(CommunicatorRecord* record, bool in_file) {
  const MutexLock lock(mutex_);
  records_.erase(record);
  record->identity.Clear();
  if (in_file)
    taken_.reset(static_cast<size_t>(record - place(0)));
  else if (memory_ != nullptr)
    header()->num_hidden.fetch_sub(1, std::memory_order_relaxed);
}

std::vector<CommunicatorSnapshot> Board::Communicators() {
  std::vector<CommunicatorSnapshot> all;
  const MutexLock lock(mutex_);
  for (const CommunicatorRecord* const record : records_)
    if (auto snapshot = Decode(*record)) all.push_back(*std::move(snapshot));
  return all;
}

void Board::LogPicture(std::string_view why) {
  const MutexLock lock(mutex_);
  const int64_t now_ns = NowNs();
  if (pictured_ns_ != 0 && now_ns - pictured_ns_ < kPictureEveryNs) return;
  pictured_ns_ = now_ns;
  TUTTI_WARN("{}: the state of this process, {} communicators", why, records_.size());
  for (const CommunicatorRecord* const record : records_)
    if (const auto snapshot = Decode(*record))
      for (const std::string& line : PictureOf(*snapshot, now_ns)) TUTTI_WARN("{}", line);
}

}  // namespace tutti::observe
