#pragma once

// Primitives that move nothing and count the traffic of an algorithm. An algorithm's template, run
// over these primitives, yields the number of chunks and bytes on each connection. The proxy
// therefore knows its operations before the first byte moves, and a plan can be printed, without a
// second description of any algorithm.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/mesh.h"
#include "kernels/primitives.h"
#include "kernels/two_level.h"

namespace tutti::kernels {

// The traffic in one direction of the links of a primitives object. A chunk is a slot of the FIFO,
// a step is one primitive call.
struct Traffic {
  uint64_t steps = 0;
  uint64_t chunks = 0;
  uint64_t elems = 0;

  constexpr void Add(size_t n, size_t slice_elems) {
    if (n == 0) return;
    ++steps;
    chunks += DivUp(n, slice_elems);
    elems += n;
  }
};

class CountingPrimitives {
 public:
  constexpr explicit CountingPrimitives(size_t slice_elems) : slice_elems_(slice_elems) {}

  constexpr void Send(size_t, size_t n) { sent_.Add(n, slice_elems_); }
  constexpr void CopySend(size_t, size_t, size_t n) { sent_.Add(n, slice_elems_); }
  constexpr void Recv(size_t, size_t n) { received_.Add(n, slice_elems_); }
  constexpr void RecvCopySend(size_t, size_t n) { Both(n); }
  constexpr void RecvReduceSend(size_t, size_t n) { Both(n); }
  constexpr void RecvSend(size_t n) { Both(n); }
  constexpr void RecvReduceSendFinal(size_t, size_t n) { Both(n); }
  constexpr void RecvReduceCopyFinal(size_t, size_t, size_t n) { received_.Add(n, slice_elems_); }
  constexpr void RecvReduceCopySendFinal(size_t, size_t, size_t n) { Both(n); }

  constexpr const Traffic& sent() const { return sent_; }
  constexpr const Traffic& received() const { return received_; }

 private:
  constexpr void Both(size_t n) {
    sent_.Add(n, slice_elems_);
    received_.Add(n, slice_elems_);
  }

  size_t slice_elems_;
  Traffic sent_;
  Traffic received_;
};
static_assert(FifoPrimitives<CountingPrimitives>);

// Counts the traffic of a rank's links inside its host and along its rail.
class TwoLevelCounting {
 public:
  constexpr explicit TwoLevelCounting(size_t slice_elems) : slice_elems_(slice_elems) {}

  constexpr void Move(uint32_t what, size_t, size_t, size_t n) {
    if ((what & kFromHost) != 0) host_received_.Add(n, slice_elems_);
    if ((what & kFromRail) != 0) rail_received_.Add(n, slice_elems_);
    if ((what & kToHost) != 0) host_sent_.Add(n, slice_elems_);
    if ((what & kToRail) != 0) rail_sent_.Add(n, slice_elems_);
  }

  constexpr const Traffic& host_sent() const { return host_sent_; }
  constexpr const Traffic& host_received() const { return host_received_; }
  constexpr const Traffic& rail_sent() const { return rail_sent_; }
  constexpr const Traffic& rail_received() const { return rail_received_; }

 private:
  size_t slice_elems_;
  Traffic host_sent_, host_received_, rail_sent_, rail_received_;
};
static_assert(TwoLevelPrimitives<TwoLevelCounting>);

// Counts how much a rank puts into its own stage and reads from the stages of its peers.
class StageCounting {
 public:
  constexpr StageCounting(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  constexpr int rank() const { return rank_; }
  constexpr int num_ranks() const { return num_ranks_; }
  constexpr uint64_t NextRound() { return ++rounds_; }
  constexpr void Stage(uint64_t, size_t, size_t, size_t n) { staged_ += n; }
  constexpr void StageOutput(uint64_t, size_t, size_t, size_t n) { staged_ += n; }
  constexpr void Publish(uint64_t, size_t) {}
  constexpr void Wait(uint64_t, int) {}
  constexpr void ReduceSlots(uint64_t, size_t, size_t, size_t n) { Reduce(n); }
  constexpr void ReducePart(uint64_t, size_t, size_t, size_t, size_t n) { Reduce(n); }
  constexpr void CopyFromSlot(uint64_t, int, size_t, size_t, size_t n) { read_ += n; }
  constexpr void CopyLocal(size_t, size_t, size_t) {}
  constexpr void EndRound(uint64_t) {}

  constexpr uint64_t rounds() const { return rounds_; }
  // Return the elements put into the own stage, read from the peers' stages, and computed as
  // results.
  constexpr uint64_t staged() const { return staged_; }
  constexpr uint64_t read() const { return read_; }
  constexpr uint64_t reduced() const { return reduced_; }

 private:
  constexpr void Reduce(size_t n) {
    read_ += n * static_cast<size_t>(num_ranks_ - 1);
    reduced_ += n;
  }

  int rank_;
  int num_ranks_;
  uint64_t rounds_ = 0;
  uint64_t staged_ = 0;
  uint64_t read_ = 0;
  uint64_t reduced_ = 0;
};
static_assert(DirectPrimitives<StageCounting>);

// Counts the traffic of reductions over FIFOs between all pairs of ranks, to and from each rank.
class MeshCounting {
 public:
  MeshCounting(int rank, int num_ranks)
      : rank_(rank),
        num_ranks_(num_ranks),
        sent_(static_cast<size_t>(num_ranks)),
        received_(static_cast<size_t>(num_ranks)) {}

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  uint64_t TakeRounds(uint64_t) { return 0; }
  void Publish(uint64_t) {}
  void Wait(uint64_t) {}
  template <class Parts>
  void Push(uint64_t, const Parts& parts) {
    for (int peer = 0; peer < num_ranks_; ++peer) Count(sent_, peer, parts(peer).size);
  }
  void Fetch(uint64_t, const MeshParts& parts) {
    for (int peer = 0; peer < num_ranks_; ++peer) Count(received_, peer, parts(peer).size);
  }
  void Reduce(uint64_t, size_t, size_t, size_t n) {
    for (int peer = 0; peer < num_ranks_; ++peer) Count(received_, peer, n);
  }
  void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t, int target) {
    Reduce(round, in, out, n);
    for (int peer = 0; peer < num_ranks_; ++peer)
      if (target < 0 || peer == target) Count(sent_, peer, n);
  }

  const Traffic& sent(int peer) const { return sent_[static_cast<size_t>(peer)]; }
  const Traffic& received(int peer) const { return received_[static_cast<size_t>(peer)]; }

 private:
  void Count(std::vector<Traffic>& traffic, int peer, size_t n) const {
    // The data of a step is one chunk.
    if (peer != rank_) traffic[static_cast<size_t>(peer)].Add(n, n);
  }

  int rank_;
  int num_ranks_;
  std::vector<Traffic> sent_;
  std::vector<Traffic> received_;
};
static_assert(MeshReductionPrimitives<MeshCounting>);

// Counts the traffic of blocks of a work area on each connection, in the order of the exchanges.
class BlockCounting {
 public:
  struct Message {
    int peer;
    bool is_send;
    Traffic traffic;
  };
  explicit BlockCounting(size_t slice_elems) : slice_elems_(slice_elems) {}

  template <class Send, class Recv>
  void Exchange(int to, const Send& send, int from, const Recv& recv) {
    Add(to, true, send);
    Add(from, false, recv);
  }
  template <class Send, class Recv>
  void ExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool) {
    Exchange(to, send, from, recv);
  }

  template <class Run>
  void LoadBlocks(const Run&) {}
  template <class Send, class Recv>
  void InputExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool) {
    Exchange(to, send, from, recv);
  }

  const std::vector<Message>& messages() const { return messages_; }

 private:
  template <class Run>
  void Add(int peer, bool is_send, const Run& run) {
    size_t elems = 0;
    for (int i = 0; i < run.count(); ++i) elems += run[i].size;
    if (elems > 0) messages_.push_back({peer, is_send, {1, DivUp(elems, slice_elems_), elems}});
  }

  size_t slice_elems_;
  std::vector<Message> messages_;
};
static_assert(InputBlockPrimitives<BlockCounting>);

}  // namespace tutti::kernels
