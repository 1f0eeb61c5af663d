#pragma once

// Finds out which ranks share a machine, and each rank's number among them. Every rank tells the
// name of its machine and, where its launcher gave one, its number on the machine. Rank 0 derives
// the places that all ranks use. Pure functions.

#include <string>
#include <vector>

#include "base/status.h"

namespace tutti::launch {

// A rank's place in the job.
struct Place {
  int machine = 0;     // machines are numbered in the order of their lowest ranks
  int local_rank = 0;  // among the ranks of the machine
  int local_size = 1;
  // The machine's number among the machines that have a rank with this local rank, and the number
  // of such machines: Horovod's cross communicator.
  int cross_rank = 0;
  int cross_size = 1;
  friend bool operator==(const Place&, const Place&) = default;
};

// A rank's own statement; local_rank and local_size are -1 where its launcher gave none.
struct Residence {
  std::string machine;
  int local_rank = -1;
  int local_size = -1;
};

// Returns each rank's place, by rank. The launcher's numbers count where they are complete: where
// each machine has each number below n once for the ranks that were told n. A machine that has the
// numbers several times is several machines (with the same name, or with several launchers), filled
// in the order of ranks. Where a number is missing, ranks are counted machine by machine.
std::vector<Place> SettlePlaces(const std::vector<Residence>& residences);

// Fills local_size, cross_rank and cross_size from `machine` and `local_rank` of every rank.
// RemoteError for contradictions: machines out of order, or local ranks other than each of 0 to n -
// 1 once.
Status CompletePlaces(std::vector<Place>* places);

}  // namespace tutti::launch
