#pragma once

// Exchange: how the controllers of a process set talk. The interface between negotiation and the
// transport of its bytes. Implementations are an exchange over a communicator, an exchange over
// operations of any kind, and a simulated exchange for fleets in one process
// (testing/simulated_network.h).
//
// Both operations are collective: every rank calls them in the same order. Calls block until their
// peers have arrived, without a limit; a lost peer ends the calls with its Status. One thread at a
// time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "bootstrap/wire.h"
#include "coordinator/operations.h"
#include "nccl.h"

namespace tutti::coordinator {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // Sends `bytes` to rank `to` and returns the bytes that rank `from` sent at the same time. Any
  // length up to kMaxMessageBytes; neither direction waits for the opposite one.
  virtual Result<Bytes> Swap(int to, std::span<const std::byte> bytes, int from) = 0;

  // values[i] becomes the smallest values[i] of all ranks. `values` is equally long on all ranks.
  // This implementation takes ceil(log2 n) swaps.
  virtual Status Min(std::span<uint8_t> values);

  // The longest message of a rank in a round of negotiation. A million tensors' names fit.
  static constexpr size_t kMaxMessageBytes = size_t{256} << 20;

 protected:
  // Refuse longer messages.
  static Status CheckMine(uint64_t bytes);
  static Status CheckTheirs(uint64_t bytes, int from);
};

// Brings every rank to the merge of all ranks' messages in ceil(log2 n) swaps. `merge` takes a
// message in and must be commutative, associative and idempotent (a message may come round twice);
// `encode` writes the present merge.
//
// Before the swap of distance d a rank holds the merge of itself and the d - 1 ranks below it:
//   n = 5, rank 4:   4  →  4 3  →  4 3 2 1  →  4 3 2 1 0 (4 and 3 come again)
//                    d = 1   d = 2     d = 4
Status MergeFromAll(Exchange& exchange, const std::function<Bytes()>& encode,
                    const std::function<Status(std::span<const std::byte>)>& merge);

// Makes the exchange over a communicator of its own: Tutti's default. `comm` remains the property
// of the caller and carries nothing else.
std::unique_ptr<Exchange> MakeNcclExchange(ncclComm_t comm, int rank, int num_ranks);

// Makes an exchange over operations of any kind, which stay its own.
std::unique_ptr<Exchange> MakeOperationsExchange(std::unique_ptr<Operations> operations, int rank,
                                                 int num_ranks);

}  // namespace tutti::coordinator
