#pragma once

// Implements a client of PMIx, which Open MPI's mpirun and `srun --mpi=pmix` offer the processes
// they start. libpmix is looked up at run time; programs run without libpmix where no such launcher
// is used.
//
// Use from one thread. PMIx numbers and layouts are those of the stable ABI (version 2 and later).

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace tutti::launch {

class PmixClient {
 public:
  // Loads libpmix and joins the job that the environment names.
  static Result<PmixClient> Connect();

  PmixClient(PmixClient&&) noexcept;
  PmixClient& operator=(PmixClient&&) noexcept;
  // Leaves the job and thereby tells the launcher that this process ends in good order.
  ~PmixClient();

  Status Put(std::string_view key, std::string_view value);
  // Waits for every process of the job; values of earlier Puts can then be read.
  Status Fence(Deadline deadline);
  Result<std::string> Get(uint32_t rank, std::string_view key, Deadline deadline);

 private:
  struct Library;
  explicit PmixClient(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace tutti::launch
