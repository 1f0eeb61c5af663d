#pragma once

// Reads the boards (board.h) of this user on this machine. A board may be of another version, cut,
// or of any other content; reading such a board yields a sentence. Reads copies, never a mapping,
// and changes nothing. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "observe/folder.h"
#include "observe/snapshot.h"

namespace tutti::observe {

// The content of a board.
struct BoardContent {
  std::string host;
  std::string boot;
  std::string program;
  std::string ras_address;  // empty: RAS does not show the process
  uint64_t num_hidden = 0;  // further communicators without a place
  std::vector<CommunicatorSnapshot> communicators;
};

struct ProcessSnapshot {
  ProcessKey key;
  Life life = Life::kUnknown;
  std::string trouble;  // why the board cannot be read; empty otherwise
  BoardContent board;
};

// All boards, as they were at a moment.
struct Reading {
  int64_t at_ns = 0;  // monotonic time
  std::vector<ProcessSnapshot> processes;
};

// Reads all boards of the folders. Folders that are missing, or not this user's, have none.
Reading ReadBoards(const std::vector<std::string>& folders);

// Reads the board of an open file.
Result<BoardContent> ReadBoard(int fd);

// Reads the board of a name in an open folder.
Result<BoardContent> ReadBoard(int folder, const std::string& name);

}  // namespace tutti::observe
