#include "coordinator/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tutti::coordinator {
namespace {

Result<Bytes> SwapAtDistance(Exchange& exchange, int64_t distance,
                             std::span<const std::byte> bytes) {
  const int64_t n = exchange.num_ranks();
  const auto above = static_cast<int>((exchange.rank() + distance) % n);
  const auto below = static_cast<int>((exchange.rank() - distance + n) % n);
  return exchange.Swap(above, bytes, below);
}

class OperationsExchange : public Exchange {
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
    TUTTI_TRY(CheckMine(bytes.size()));
    // Two messages: the length, then the bytes. An empty message needs no second one.
    const uint64_t size = bytes.size();
    uint64_t their_size = 0;
    TUTTI_TRY(
        operations_->SendReceive(&size, sizeof(size), to, &their_size, sizeof(their_size), from));
    TUTTI_TRY(CheckTheirs(their_size, from));
    Bytes theirs(their_size);
    TUTTI_TRY(Move(bytes, to, theirs, from));
    return theirs;
  }

 protected:
  Status Move(std::span<const std::byte> out, int to, std::span<std::byte> in, int from) {
    return operations_->SendReceive(out.data(), out.size(), out.empty() ? -1 : to, in.data(),
                                    in.size(), in.empty() ? -1 : from);
  }

 private:
  const std::unique_ptr<Operations> operations_;
  const int rank_;
  const int num_ranks_;
};

class NcclExchange final : public OperationsExchange {
 public:
  using OperationsExchange::OperationsExchange;

  Result<Bytes> Swap(int to, std::span<const std::byte> bytes, int from) override {
    TUTTI_TRY(CheckMine(bytes.size()));
    const uint64_t size = bytes.size();
    std::array<std::byte, kFirstPart> out = {};
    std::array<std::byte, kFirstPart> in = {};
    std::memcpy(out.data(), &size, sizeof(size));
    const size_t first = std::min(bytes.size(), kFirstBytes);
    if (first > 0) std::memcpy(out.data() + sizeof(size), bytes.data(), first);
    TUTTI_TRY(Move(out, to, in, from));
    uint64_t their_size = 0;
    std::memcpy(&their_size, in.data(), sizeof(their_size));
    TUTTI_TRY(CheckTheirs(their_size, from));
    Bytes theirs(their_size);
    const size_t their_first = std::min(theirs.size(), kFirstBytes);
    if (their_first > 0) std::memcpy(theirs.data(), in.data() + sizeof(size), their_first);
    const std::span<std::byte> their_rest = std::span(theirs).subspan(their_first);
    if (bytes.size() > first || !their_rest.empty()) {
      TUTTI_TRY(Move(bytes.subspan(first), to, their_rest, from));
    }
    return theirs;
  }

 private:
  // The first part of a message travels with its length; most messages have no more. Larger parts
  // would cost small messages a second cache page, smaller parts a second trip more often.
  static constexpr size_t kFirstPart = 1024;
  static constexpr size_t kFirstBytes = kFirstPart - sizeof(uint64_t);
};

}  // namespace

Status Exchange::Min(std::span<uint8_t> values) {
  for (int64_t distance = 1; distance < num_ranks(); distance *= 2) {
    TUTTI_ASSIGN(const Bytes theirs, SwapAtDistance(*this, distance, std::as_bytes(values)));
    if (theirs.size() != values.size()) {
      return InternalError("a rank exchanged {} bytes of states where this one has {}",
                           theirs.size(), values.size());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::min(values[i], std::to_integer<uint8_t>(theirs[i]));
    }
  }
  return Status::Ok();
}

Status Exchange::CheckMine(uint64_t bytes) {
  if (bytes <= kMaxMessageBytes) return Status::Ok();
  return InternalError("{} bytes are too many for one round of negotiation", bytes);
}

Status Exchange::CheckTheirs(uint64_t bytes, int from) {
  if (bytes <= kMaxMessageBytes) return Status::Ok();
  return RemoteError("rank {} announces {} bytes for one round of negotiation", from, bytes);
}

Status MergeFromAll(Exchange& exchange, const std::function<Bytes()>& encode,
                    const std::function<Status(std::span<const std::byte>)>& merge) {
  for (int64_t distance = 1; distance < exchange.num_ranks(); distance *= 2) {
    TUTTI_ASSIGN(const Bytes theirs, SwapAtDistance(exchange, distance, encode()));
    TUTTI_TRY(merge(theirs));
  }
  return Status::Ok();
}

std::unique_ptr<Exchange> MakeNcclExchange(ncclComm_t comm, int rank, int num_ranks) {
  return std::make_unique<NcclExchange>(MakeNcclOperations(comm, rank), rank, num_ranks);
}

std::unique_ptr<Exchange> MakeOperationsExchange(std::unique_ptr<Operations> operations, int rank,
                                                 int num_ranks) {
  return std::make_unique<OperationsExchange>(std::move(operations), rank, num_ranks);
}

}  // namespace tutti::coordinator
