#include "conformance/windows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <vector>

#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// Returns what rank `from` writes into the part of rank `to`.
uint64_t Stamp(int from, int to, size_t at) {
  return (static_cast<uint64_t>(from + 1) << 48) | (static_cast<uint64_t>(to + 1) << 32) |
         static_cast<uint64_t>(at + 1);
}

uint64_t ReadStamp(const std::byte* part, int from) {
  return Get(reinterpret_cast<const uint64_t*>(part) + from, 1)[0];
}

}  // namespace

void Meet(ncclComm_t comm) {
  EXPECT_NCCL(tuttiBarrier(comm, nullptr));
  EXPECT_NCCL(Finish(comm));
}

TestMemory::TestMemory(size_t bytes) { EXPECT_NCCL(ncclMemAlloc(&memory_, bytes)); }
TestMemory::~TestMemory() { EXPECT_NCCL(ncclMemFree(memory_)); }

TestWindow::TestWindow(ncclComm_t comm, size_t bytes, void* memory) : comm_(comm) {
  EXPECT_NCCL(ncclCommWindowRegister(comm, memory, bytes, &window_, NCCL_WIN_DEFAULT));
}

void TestWindow::End() {
  if (window_ == nullptr) return;
  EXPECT_NCCL(ncclCommWindowDeregister(comm_, window_));
  window_ = nullptr;
}

std::byte* TestWindow::own() const {
  void* pointer = nullptr;
  EXPECT_NCCL(ncclWinGetUserPtr(comm_, window_, &pointer));
  return static_cast<std::byte*>(pointer);
}

std::byte* TestWindow::At(int peer, size_t offset) const {
  void* pointer = nullptr;
  EXPECT_NCCL(ncclGetPeerDevicePointer(window_, offset, peer, &pointer));
  return static_cast<std::byte*>(pointer);
}

void StampAll(const TestWindow& window, int rank, int num_ranks, size_t at) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    std::byte* const part = window.At(peer, at);
    if (part == nullptr) continue;
    Put(reinterpret_cast<uint64_t*>(part) + rank, std::vector{Stamp(rank, peer, at)});
  }
}

void ExpectStamps(const TestWindow& window, int rank, int num_ranks, size_t at) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    const std::byte* const part = window.At(peer, at);
    if (part == nullptr) continue;
    EXPECT_EQ(ReadStamp(window.own() + at, peer), Stamp(peer, rank, at))
        << "what rank " << peer << " wrote into rank " << rank;
    EXPECT_EQ(ReadStamp(part, rank), Stamp(rank, peer, at))
        << "what rank " << rank << " reads of rank " << peer;
  }
}

namespace {

// Sizes about pages and pieces, and none.
constexpr size_t kPutSizes[] = {0, 1, 4, 8, 4095, 4096, 70'001, (1 << 20) + 3};
constexpr size_t kMostPut = (1 << 20) + 16;

std::byte ByteOf(int from, int round, size_t i) {
  return static_cast<std::byte>(static_cast<size_t>(from * 31 + round * 7) + i * 13 + i / 251);
}

}  // namespace

void PutToAllAndCheck(ncclComm_t comm, int rank, int num_ranks, int rounds) {
  const auto n = static_cast<size_t>(num_ranks);
  // Each rank puts into parts of its own, two that take turns: who puts in round k + 2 has heard of
  // round k + 1 from all, so that nothing is overwritten that is not read yet.
  // What is put lies in the window too, behind these parts: of GPUs' memory the network reaches
  // windows only.
  TestWindow window(comm, (2 * n + 1) * kMostPut);
  std::byte* const source = window.own() + 2 * n * kMostPut;
  std::vector<std::byte> data(kMostPut);
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = kPutSizes[static_cast<size_t>(round) % std::size(kPutSizes)];
    const auto offset_of = [&](int from) {
      const auto part = static_cast<size_t>(round % 2) * n + static_cast<size_t>(from);
      return part * kMostPut + static_cast<size_t>(round) % 9;
    };
    for (size_t i = 0; i < bytes; ++i) data[i] = ByteOf(rank, round, i);
    Put(source, data);
    std::vector<ncclWaitSignalDesc_t> descs;
    for (int peer = 0; peer < num_ranks; ++peer) {
      EXPECT_NCCL(ncclPutSignal(source, bytes, ncclInt8, peer, window.get(), offset_of(rank), 0, 0,
                                0, comm, nullptr));
      descs.push_back({1, peer, 0, 0});
    }
    EXPECT_NCCL(ncclWaitSignal(num_ranks, descs.data(), comm, nullptr));
    EXPECT_NCCL(Finish(comm));
    for (int peer = 0; peer < num_ranks; ++peer) {
      const std::vector<std::byte> got = Get(window.own() + offset_of(peer), bytes);
      size_t wrong = 0;
      for (size_t i = 0; i < bytes; ++i) wrong += got[i] != ByteOf(peer, round, i);
      EXPECT_EQ(wrong, 0u) << "of " << bytes << " bytes of rank " << peer << " in round " << round;
    }
  }
}

}  // namespace tutti::testing
