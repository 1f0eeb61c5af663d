#pragma once

// A stand-in for libmlx5, for tests on machines without a card: a shared library with the functions
// that src/gin/mlx5/library.h looks up. Name its file in TUTTI_MLX5, and that of the stand-in for
// libibverbs (tests/fakeverbs), whose devices are mlx5 cards then, in TUTTI_IBVERBS; or link a test
// with it in order to call the functions below.
//
// It reads the commands of DevX word by word, by a description of its own of the public interface
// (mlx5_ifc), and keeps what it would not accept as a complaint: a field that it does not expect,
// a bit that it has no name for, memory outside of its umem, an object that is not there, a state
// that does not follow. What it has made works: queue pairs are served by the emulated card
// (fake_card.h), which reaches memory by the keys of the other stand-in. All ranks are threads of
// one process.
//
// Each kind of call may be refused by fakeverbs::RefuseCalls under these names: open_mlx5,
// init_obj, query_eqn, alloc_uar, umem_reg, create_ah, and create_cq, create_qp, rst2init,
// init2rtr, rtr2rts, query_qp prefixed by "devx_". Objects that are still in use cannot be
// destroyed: whoever tries ends the process.
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

// Has entry `index` of every queue pair that is made from now on fail.
void FailEntries(uint64_t index, uint8_t syndrome);

}  // namespace fakemlx5
