// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the ranks of a group meet through torch.distributed's store.
//
// Nobody here waits inside the store: a get that waits would keep other threads of this process
// from the store, and one of the threads may be about to set a value for which another rank waits.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "library.h"

namespace tutti_c10d {

// Waits look again at growing intervals.
inline constexpr std::chrono::microseconds kFirstPause{500};
inline constexpr std::chrono::microseconds kLongestPause{50'000};

// The limit of a wait.
struct Limit {
  std::chrono::milliseconds time{};  // 0: no limit
  const char* origin = "";           // what sets the limit, for sentences
};

// A meeting of ranks that make a communicator. Each rank describes the meeting to itself.
struct Meeting {
  std::string key;  // The meeting's own key in the store.
  int rank = 0;
  int size = 1;
  int device = -1;  // This rank's GPU; -1: the host.
  // Operations of the communicator may wait for this time without progress; 0: the library's limit.
  std::chrono::milliseconds timeout{};
  Limit limit;  // of the meeting
  // The ranks that have met by the store have at least this time for the rest of the meeting,
  // however late they have met.
  std::chrono::milliseconds least_for_init{5000};
  int shown_rank = 0;  // This rank's number in the group.
  int peer = -1;       // The only awaited rank of the group; -1: all ranks of the group meet.
  std::string whom;    // The awaited ranks, for sentences.
  std::string what;    // The purpose, for sentences.
  std::string note;    // Where the ranks of the group note that they leave (Met::note).
  std::vector<std::string> forget;  // Further keys that nobody needs once the ranks have met.
  bool warns = true;                // Long waits are warned of.
  bool fresh = false;  // The key is new: no earlier start of the job has left an id there.
  // Called several times a second. Throws where this rank waits in vain. May be empty.
  std::function<void()> check;
};

// The communicator of a meeting, and the beginning of the keys in the store of notes about ranks
// that leave the communicator. The beginning is a new one for each communicator.
struct Met {
  ncclComm_t comm = nullptr;
  std::string note;
};

// Makes the communicator of a meeting. Blocks until all ranks have come. DistBackendError at the
// end of the limit, in the words of Library::Check for time-outs, and with the reason of rank 0
// where rank 0 cannot begin.
//
// Rank 0 leaves a unique id in the store. All further ranks count themselves there and take the id.
// An id may be left from an earlier start of the job, whose rank 0 has ended (torchrun keeps the
// store between starts): where nobody listens at the id's address, or the host of the address is
// silent, the rank waits for another id. Once all ranks have met, rank 0 takes everything out of
// the store, because the next meeting may have the same keys; the other ranks wait for rank 0 to do
// so, for 2 s at most. The reason of rank 0 leaves the store with the last rank that reads the
// reason, and a rank that fails does not count as one that has come.
Met NewCommunicator(const Library& library, c10d::Store& store, const Meeting& meeting);

// Takes a key out of a store that can delete.
void DeleteKey(c10d::Store& store, const std::string& key);

// Returns the time in seconds, with one digit behind the point.
std::string SecondsText(std::chrono::nanoseconds time);

// Writes to the store that a rank has left its group. The last rank takes the notes out of the
// store. Any failure is ignored, because the store may have ended.
void NoteLeft(c10d::Store& store, const std::string& note, int rank, int size);

// Returns whether the note of NoteLeft names the rank.
bool HasLeft(c10d::Store& store, const std::string& note, int rank);

// Blocks until all ranks have called the function with this store, which serves one barrier.
// RuntimeError at the end of the timeout, which begins with the call: on rank 0 the error names the
// first missing rank, with wait_all_ranks all missing ranks; on the other ranks the error is rank
// 0's, or says that rank 0 did not come.
void MonitoredBarrier(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                      bool wait_all_ranks);

}  // namespace tutti_c10d
