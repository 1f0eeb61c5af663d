#pragma once

// A stand-in for libmlx5, for tests on machines without a card: a shared library with the functions
// that src/gin_direct/mlx5/library.h looks up. Name its file in TUTTI_MLX5, and the stand-in's
// for libibverbs (tests/fakeverbs), whose devices are mlx5 cards then, in TUTTI_IBVERBS; or link a
// test with it in order to call the functions below.
//
// It reads the commands of DevX word by word, by a description of its own of the public interface
// (mlx5_ifc), and keeps what it would not accept as a complaint: a field that it does not expect,
// a bit that it has no name for, memory outside of its umem, an object that is not there, a state
// that does not follow. What it has made works: queue pairs are served by the emulated card
// (fake_card.h), which reaches memory by the keys of the other stand-in. All ranks are threads of
// one process; the card is another thread, or where it is asked for a process (card_link.h).
//
// Each kind of call may be refused by fakeverbs::RefuseCalls under these names: open_mlx5,
// init_obj, query_eqn, alloc_uar, umem_reg, umem_reg_far (of what ReachFarMemory says),
// umem_reg_dmabuf, create_ah, and create_cq, create_qp, rst2init, init2rtr, rtr2rts, query_qp
// prefixed by "devx_". Objects that are still in use cannot be destroyed: whoever tries ends the
// process.
//
// Threads: any.

#include <cstdint>
#include <string>
#include <vector>

namespace fakemlx5 {

// Has the calls, complaints and wishes below forgotten. REQUIRES: nothing is alive.
void Reset();

// Returns the commands and other calls that made something, in their order, by the names above.
std::vector<std::string> Calls();
// Returns what the host has done wrong, and what kernels have (FakeCard::complaints).
std::vector<std::string> Complaints();
// Returns how many objects are alive: UARs, umems, address handles, queues.
int ObjectsAlive();

// Has doorbell registers made from now on lie in this memory, which some device has mapped, each in
// a line of 64 bytes of its own that is not used again. Null: on the heap.
void PutRegistersInto(void* memory, size_t bytes);

// How the card reaches memory that was registered, for data or queues, where that is not the
// host's: `is_far` says of an address whether only `copy` reaches it, which may have either end
// there. Called by any thread.
struct FarMemory {
  bool (*is_far)(const void* at);
  void (*copy)(void* to, const void* from, size_t bytes);
};
// Has the card go by that from the next device communicator on, once all earlier ones have ended.
// Without functions: there is no such memory any more.
void ReachFarMemory(const FarMemory& far);

// Returns the state of the card's queues, a line for each (FakeCard::Describe). Waits for no lock
// longer than a second.
std::vector<std::string> DescribeQueues();

// Has entry `index` of every queue pair that is made from now on fail.
void FailEntries(uint64_t index, uint8_t syndrome);

}  // namespace fakemlx5
