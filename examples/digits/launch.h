// How this program's ranks come to be and how they learn the id by which they meet.
//
// Either a launcher started one process per rank and says so in the environment (RANK, WORLD_SIZE),
// or the program forks its own ranks. Either way rank 0 makes the id and leaves it in a file that
// the others wait for. Failures are std::runtime_error with a sentence.

#pragma once

#include <functional>
#include <optional>
#include <string>

#include "communicator.h"

namespace digits {

struct Place {
  int rank = 0;
  int size = 1;
  std::string id_file;  // empty: every rank asks the library, which goes by NCCL_COMM_ID
};

/// The place that a launcher gave this process, as RANK and WORLD_SIZE. The id goes through
/// `id_file`, or the file that TUTTI_ID_FILE names, or else through NCCL_COMM_ID; where that is not
/// set it is set to MASTER_ADDR:MASTER_PORT. Nothing if RANK and WORLD_SIZE are not set. Throws if
/// they make no sense, or if there is no way to share an id.
std::optional<Place> PlaceFromEnvironment(const std::string& id_file);

/// The same id on every rank: rank 0 makes it and writes the file, the others wait for the file.
/// Throws after a minute without one.
ncclUniqueId ShareId(const Place& place);

/// Rank 0, once all have met: takes the file away so that a later run cannot read it.
void RemoveIdFile(const Place& place);

/// Forks `size` processes, runs `rank_main` in each and waits for all; its result is the process's
/// exit status. As soon as one fails the others are ended. Returns 0 if all returned 0, otherwise
/// the status of the first to fail. REQUIRES: the calling process has only one thread.
int ForkRanks(int size, const std::function<int(const Place&)>& rank_main);

}  // namespace digits
