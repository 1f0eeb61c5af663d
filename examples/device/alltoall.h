// The shared part of both examples of an AllToAll: the data, the launches, and the check of the
// result.

#ifndef TUTTI_EXAMPLES_DEVICE_ALLTOALL_H_
#define TUTTI_EXAMPLES_DEVICE_ALLTOALL_H_

#include <tutti/host_kernel.h>

#include <vector>

#include "ranks.h"

inline float Value(int from, int to, size_t i) {
  return static_cast<float>(1000 * from + 10 * to) + static_cast<float>(i % 7);
}

// Runs an AllToAll on this rank and checks the result. `kernel` gets a device communicator made by
// `requirements`, a window with the input and, behind it, the output, and the number of elements in
// a block. Ends the program if anything is wrong.
template <typename Kernel>
void RunAllToAll(int rank, ncclComm_t comm, int num_ranks, Kernel kernel,
                 const ncclDevCommRequirements_t& requirements) {
  constexpr size_t kCount = 5'000;
  const ncclCommProperties_t properties = PropertiesWithGin(comm);
  const auto ranks = static_cast<size_t>(num_ranks);
  SharedBuffer buffer(comm, 2 * ranks * kCount * sizeof(float));
  std::vector<float> values(2 * ranks * kCount);
  for (size_t to = 0; to < ranks; ++to)
    for (size_t i = 0; i < kCount; ++i)
      values[to * kCount + i] = Value(rank, static_cast<int>(to), i);
  buffer.Write(values.data());

  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  for (int round = 0; round < 3; ++round)
    CHECK(tutti::Launch(kernel, {1, 4}, devcomm, buffer.window, kCount));
  buffer.Read(values.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  for (size_t from = 0; from < ranks; ++from) {
    for (size_t i = 0; i < kCount; ++i) {
      if (values[(ranks + from) * kCount + i] == Value(static_cast<int>(from), rank, i)) continue;
      std::fprintf(stderr, "rank %d: element %zu from rank %zu is wrong\n", rank, i, from);
      std::exit(1);
    }
  }
  if (rank == 0)
    std::printf("AllToAll of %zu floats a block on %d ranks in %d LSA teams: right\n", kCount,
                num_ranks, properties.nLsaTeams);
}

#endif  // TUTTI_EXAMPLES_DEVICE_ALLTOALL_H_
