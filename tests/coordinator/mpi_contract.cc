// One rank under mpirun: the contracts of operations and exchanges over MPI, then a whole job whose
// data and negotiation go over it; four ranks are two hosts then, and operations hierarchical. What
// MPI does with the memory of GPUs is checked on memory of the host.
// Prints nothing and ends with 0 where all is well.

#include <fmt/format.h>
#include <stdlib.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/exchange.h"
#include "coordinator/operations_plugin.h"
#include "coordinator/testing/exchange_contract.h"
#include "coordinator/testing/operations_contract.h"
#include "tutti/coordinator.h"

// In place of MPI's own, which the plugin asks whether MPI takes the memory of GPUs.
static int takes_gpu_memory = 0;
extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support() {
  return takes_gpu_memory;
}

namespace tutti::coordinator {
namespace {

int NumberOf(const char* first, const char* second) {
  const char* const text = getenv(first) != nullptr ? getenv(first) : getenv(second);
  return text == nullptr ? -1 : atoi(text);
}

std::string RunJob(int rank, int ranks, const ncclUniqueId& id) {
  tuttiCoordinatorOptions_t options = {};
  options.size = sizeof(options);
  options.id = &id;
  options.rank = rank;
  options.nranks = ranks;
  if (ranks == 4) {  // They play two hosts.
    options.local_rank = rank % 2;
    options.local_size = options.cross_size = 2;
    options.cross_rank = rank / 2;
    setenv("HOROVOD_HIERARCHICAL_ALLREDUCE", "1", 1);
  }
  CoordinatorClient client(options);
  for (int step = 0; step < 3; ++step) {
    std::vector<float> values(5000, static_cast<float>(rank + 1));
    client.Allreduce("t", values.data(), values.size(), tuttiReduceSum).Wait();
    const auto expected = static_cast<float>(ranks * (ranks + 1) / 2);
    if (values[4999] != expected) {
      return fmt::format("a job over MPI gave {} instead of {}", values[4999], expected);
    }
  }
  return "";
}

std::string Run(const std::string& name) {
  const int rank = NumberOf("OMPI_COMM_WORLD_RANK", "PMI_RANK");
  const int ranks = NumberOf("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
  if (rank < 0 || ranks < 1) return "this was not started by mpirun";
  // All ranks find the same plugin, as they run the same program.
  const auto alike = [&](const std::string& mine) -> Result<std::vector<std::string>> {
    return std::vector<std::string>(static_cast<size_t>(ranks), mine);
  };
  const auto choice = ChoosePlugin("mpi", rank, ranks, alike);
  if (!choice.ok() || !choice->plugin) return choice.ok() ? choice->why : "no choice";
  if (choice->plugin->name() != name) {
    return fmt::format("found {} instead of {}", choice->plugin->name(), name);
  }
  const auto open = [&](std::vector<int> members, int place, bool gpu_memory = false) {
    OperationsGroup group;
    group.gpu_memory = gpu_memory;
    group.rank = place;
    group.members = std::move(members);
    return choice->plugin->Open(group);
  };
  std::vector<int> everybody;
  for (int r = 0; r < ranks; ++r) everybody.push_back(r);
  auto operations = open(everybody, rank);
  if (!operations.ok()) return std::string(operations.status().message());
  std::string failure = OperationsContract(**operations, rank, ranks).Check();
  if (!failure.empty()) return failure;
  if (choice->plugin->TakesGpuMemory()) return "MPI's own answer about GPUs does not count";
  takes_gpu_memory = 1;
  if (!choice->plugin->TakesGpuMemory()) return "MPI is not asked whether it takes GPUs' memory";
  auto on_gpus = open(everybody, rank, /*gpu_memory=*/true);
  if (!on_gpus.ok()) return std::string(on_gpus.status().message());
  failure = OperationsContract(**on_gpus, rank, ranks).CheckForGpus();
  if (!failure.empty()) return "for GPUs: " + failure;
  if (ranks == 4) {
    const HierarchyShape shape = {rank % 2, 2, rank / 2, 2};
    auto inside = open({rank / 2 * 2, rank / 2 * 2 + 1}, shape.local_rank);
    auto across = open({rank % 2, rank % 2 + 2}, shape.cross_rank);
    if (!inside.ok() || !across.ok()) return "a group of two cannot be opened";
    const auto hierarchy = MakeHierarchicalOperations(std::move(*inside), std::move(*across), shape,
                                                      std::make_shared<HierarchySwitches>());
    failure = OperationsContract(*hierarchy, rank, ranks).CheckTwoLevels();
    if (!failure.empty()) return "in two levels: " + failure;
  }
  ncclUniqueId id = {};
  if (rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) return "there is no unique id";
  const Status told = (*operations)->Broadcast(&id, &id, sizeof(id), 0);
  if (!told.ok()) return std::string(told.message());
  const auto exchange = MakeOperationsExchange(std::move(*operations), rank, ranks);
  failure = ExchangeContract(*exchange).Check();
  if (!failure.empty()) return failure;
  setenv("HOROVOD_CPU_OPERATIONS", "mpi", 1);
  setenv("HOROVOD_CONTROLLER", "mpi", 1);
  return RunJob(rank, ranks, id);
}

}  // namespace
}  // namespace tutti::coordinator

int main(int argc, char** argv) {
  const std::string failure = tutti::coordinator::Run(argc > 1 ? argv[1] : "");
  if (failure.empty()) return 0;
  fmt::print(stderr, "mpi_contract: {}\n", failure);
  return 1;
}
