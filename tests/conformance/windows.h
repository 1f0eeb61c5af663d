#pragma once

// Windows as tests use them: memory, a registration, and stamps by which every rank
// shows that it can write where it should.

#include <cstddef>

#include "conformance/cases.h"

namespace tutti::testing {

// Returns when all ranks have come.
void Meet(ncclComm_t comm);

// Memory from ncclMemAlloc.
class TestMemory {
 public:
  explicit TestMemory(size_t bytes);
  ~TestMemory();
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// A window that is deregistered at the end of its life. Failures are noted in the current test.
class TestWindow {
 public:
  // With null for `memory`, the library allocates it.
  TestWindow(ncclComm_t comm, size_t bytes, void* memory = nullptr);
  ~TestWindow() { End(); }
  TestWindow(const TestWindow&) = delete;
  TestWindow& operator=(const TestWindow&) = delete;
  void End();

  ncclWindow_t get() const { return window_; }
  // Returns this rank's own part at the address that the program knows.
  std::byte* own() const;
  // Returns where byte `offset` of the part of rank `peer` is reached; null for another LSA team.
  std::byte* At(int peer, size_t offset) const;

 private:
  ncclComm_t comm_;
  ncclWindow_t window_ = nullptr;
};

// Writes this rank's stamp into the parts of all ranks that it reaches: a number for each rank, at
// `at`, which is a multiple of 8.
void StampAll(const TestWindow& window, int rank, int num_ranks, size_t at);
// Checks that all ranks that are reached have written their stamps into this rank's part, and that
// this rank reads the same there and in the parts of the others.
void ExpectStamps(const TestWindow& window, int rank, int num_ranks, size_t at);

// Puts data of many sizes, at odd offsets, to every rank in each round, and checks what the others
// have put here once their signals have come.
void PutToAllAndCheck(ncclComm_t comm, int rank, int num_ranks, int rounds);

}  // namespace tutti::testing
