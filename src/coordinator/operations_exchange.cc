#include "coordinator/operations_exchange.h"

#include <utility>

namespace tutti::coordinator {
namespace {

class OperationsExchange final : public Exchange {
 public:
  OperationsExchange(std::unique_ptr<Operations> operations, int rank, int num_ranks)
      : operations_(std::move(operations)), rank_(rank), num_ranks_(num_ranks) {}

  std::string_view name() const override { return operations_->name(); }
  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }

  Status Min(std::span<uint8_t> values) override {
    return operations_->Allreduce(values.data(), values.data(), values.size(), ncclUint8, ncclMin);
  }

  Result<Bytes> Swap(int to, std::span<const std::byte> bytes, int from) override {
    if (bytes.size() > kMaxMessageBytes) {
      return InternalError("{} bytes are too many for one round of negotiation", bytes.size());
    }
    // Two messages: the length, then the bytes. An empty message needs no second one.
    const uint64_t size = bytes.size();
    uint64_t their_size = 0;
    TUTTI_TRY(
        operations_->SendReceive(&size, sizeof(size), to, &their_size, sizeof(their_size), from));
    if (their_size > kMaxMessageBytes) {
      return RemoteError("rank {} announces {} bytes for one round of negotiation", from,
                         their_size);
    }
    Bytes theirs(their_size);
    TUTTI_TRY(operations_->SendReceive(bytes.data(), bytes.size(), bytes.empty() ? -1 : to,
                                       theirs.data(), theirs.size(), theirs.empty() ? -1 : from));
    return theirs;
  }

 private:
  const std::unique_ptr<Operations> operations_;
  const int rank_;
  const int num_ranks_;
};

}  // namespace

std::unique_ptr<Exchange> MakeOperationsExchange(std::unique_ptr<Operations> operations, int rank,
                                                 int num_ranks) {
  return std::make_unique<OperationsExchange>(std::move(operations), rank, num_ranks);
}

}  // namespace tutti::coordinator
