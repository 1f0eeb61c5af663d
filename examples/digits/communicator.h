// The four collectives of this program, as in NCCL's C API, with errors turned into exceptions.
//
// The buffers are ordinary host memory and the stream is null, hence every call is done when it
// returns. Owns its ncclComm_t. To be used by one thread. Every rank must make the same calls in
// the same order. Failures are std::runtime_error with the library's own message.

#pragma once

#include <nccl.h>

#include <cstdint>
#include <span>
#include <vector>

namespace digits {

class Communicator {
 public:
  /// A fresh id, to be handed to the remaining ranks by other means (launch.h).
  static ncclUniqueId NewId();

  /// Joins the ranks; returns when all `size` ranks have joined.
  Communicator(const ncclUniqueId& id, int rank, int size);
  /// Makes a communicator of one rank alone.
  Communicator();
  /// Aborts unless Close() was called, in order that an exception here cannot leave other ranks
  /// waiting.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Replaces `values` on every rank by their sum over all ranks (AllReduce).
  void Sum(std::span<float> values);
  void Sum(std::span<double> values);
  void Sum(std::span<int64_t> values);

  /// Replaces `values` on every rank by the values of rank `root` (Broadcast).
  void Broadcast(std::span<float> values, int root);

  /// The values of all ranks, in rank order (AllGather).
  std::vector<uint64_t> Gather(uint64_t mine);

  /// Leaves in good order. No call may follow.
  void Close();

 private:
  ncclComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace digits
