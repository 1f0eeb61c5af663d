#pragma once

// The board of a process: a file in which the process shows what its communicators do, to other
// processes of the same user (`tutti ps`, reader.h). The file is mapped, and the library works in
// the records themselves (record.h): a process that nobody looks at pays nothing.
//
//   byte 0      BoardHeader, a page
//   byte 4096   kMostPlaces places for a CommunicatorRecord, 12 KiB each
//
// The file has blocks only for the header and for places that have been used, because blocks are
// reserved with each place: a file system that is full later cannot kill the process (SIGBUS).
// Records without a place lie in memory of the process and are counted in the header. Where no file
// can be made, all records lie in memory.
//
// The file goes with the process: RemoveFile. A process that is killed leaves the file behind,
// and the file then tells about a job that has died. Each new board removes the files of ended
// processes without communicators, and all but the newest kMostEnded files of ended processes.
//
// The Board belongs to the Process (comm/process.h) and outlives its Slots. Thread-safe.

#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "config/settings.h"
#include "observe/folder.h"
#include "observe/record.h"
#include "observe/snapshot.h"

namespace tutti::observe {

class Board;

struct BoardHeader {
  static constexpr size_t kBytes = 4096;
  static constexpr std::string_view kMagic = "TUTTIBRD";
  // Must change with every change of the header or of a record.
  static constexpr uint32_t kVersion = 3;

  std::atomic<uint64_t> magic = 0;  // the bytes of kMagic; stored last
  uint32_t version = kVersion;
  uint32_t place_bytes = sizeof(CommunicatorRecord);
  uint32_t num_places = 0;
  int32_t reserved = 0;
  std::atomic<uint64_t> num_hidden = 0;  // communicators without a place, now
  ShortText<64> host = {};
  ShortText<40> boot = {};
  ShortText<64> program = {};
  ShortText<64> ras_address = {};  // NCCL_RAS_ADDR (docs/ras.md); empty: RAS does not show this
};
static_assert(sizeof(BoardHeader) <= BoardHeader::kBytes);

// Owns the record of a communicator.
class OwnedRecord {
 public:
  OwnedRecord();  // a record in memory that is on no board
  OwnedRecord(OwnedRecord&& other) noexcept;
  OwnedRecord& operator=(OwnedRecord&& other) noexcept;
  ~OwnedRecord() { Release(); }

  CommunicatorRecord* operator->() const { return record_; }
  // Writes the picture of all communicators of the board to the log (picture.h).
  void LogPicture(std::string_view why) const;

 private:
  friend class Board;
  OwnedRecord(Board* board, CommunicatorRecord* record, std::unique_ptr<CommunicatorRecord> own);
  void Release();

  Board* board_ = nullptr;
  std::unique_ptr<CommunicatorRecord> own_;  // null: the record lies in the file
  CommunicatorRecord* record_ = nullptr;
};

class Board {
 public:
  static constexpr size_t kMostPlaces = 64;
  static constexpr size_t kMostEnded = 64;
  // Boards of other PID namespaces or machines, whose processes this one cannot ask about.
  static constexpr size_t kMostUnknown = 1024;

  // Makes the file, or else a board without a file and one line in the log.
  static std::unique_ptr<Board> Create(const Settings& settings);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Returns the record of a new communicator, with its identity and the phase kBeingMade.
  OwnedRecord Claim(const Identity& identity);
  // Removes the file. The records stay where they are.
  void RemoveFile();
  // Returns all communicators of this process, those without a place too.
  std::vector<CommunicatorSnapshot> Communicators();
  // Writes the picture of all communicators to the log, unless that was done a moment ago.
  void LogPicture(std::string_view why);

  const std::string& path() const { return path_; }  // empty: there is no file

 private:
  friend class OwnedRecord;
  Board() = default;
  Status MakeFile(const Settings& settings);
  void RemoveEnded(int folder) const;
  bool ReservePlace(size_t place) const;
  CommunicatorRecord* TakePlace() TUTTI_REQUIRES(mutex_);
  void GiveBack(CommunicatorRecord* record, bool in_file);
  BoardHeader* header() const { return reinterpret_cast<BoardHeader*>(memory_); }
  CommunicatorRecord* place(size_t number) const;

  std::string path_;
  std::byte* memory_ = nullptr;  // the mapped file; null: there is none

  Mutex mutex_;
  std::bitset<kMostPlaces> taken_ TUTTI_GUARDED_BY(mutex_);
  std::bitset<kMostPlaces> reserved_ TUTTI_GUARDED_BY(mutex_);
  uint32_t num_claims_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::set<const CommunicatorRecord*> records_ TUTTI_GUARDED_BY(mutex_);
  int64_t pictured_ns_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti::observe
