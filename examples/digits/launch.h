// The start of this program's ranks, and the way in which they learn the id by which they meet.
//
// Either a launcher starts one process per rank and describes them in the environment (RANK,
// WORLD_SIZE), or the program forks its own ranks. In both cases rank 0 makes the id and leaves it
// in a file for which the remaining ranks wait. Failures are std::runtime_error with a message.

#pragma once

#include <functional>
#include <optional>
#include <string>

#include "communicator.h"

namespace digits {

struct Place {
  int rank = 0;
  int size = 1;
  std::string id_file;  // empty: the library uses NCCL_COMM_ID on every rank
};

/// The place that a launcher gave this process, as RANK and WORLD_SIZE. The id goes through
/// `id_file`, or the file in TUTTI_ID_FILE, or otherwise through NCCL_COMM_ID. If NCCL_COMM_ID is
/// not set either, it is set to MASTER_ADDR:MASTER_PORT. Nothing if RANK and WORLD_SIZE are not
/// set. Throws if their values make no sense, or if there is no way to share an id.
std::optional<Place> PlaceFromEnvironment(const std::string& id_file);

/// The same id on every rank: rank 0 makes the id and writes the file, and the remaining ranks wait
/// for the file. Throws after a minute without a file.
ncclUniqueId ShareId(const Place& place);

/// Removes the file on rank 0 after all ranks have met, in order that a later run cannot read it.
void RemoveIdFile(const Place& place);

/// Forks `size` processes, runs `rank_main` in each and waits for all. The result of `rank_main` is
/// the process's exit status. As soon as a process fails the remaining processes are ended. Returns
/// 0 if all returned 0, and otherwise the status of the first failure. REQUIRES: the calling
/// process has only one thread.
int ForkRanks(int size, const std::function<int(const Place&)>& rank_main);

}  // namespace digits
