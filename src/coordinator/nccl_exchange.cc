#include "coordinator/nccl_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tutti::coordinator {
namespace {

// The first part of a message travels with its length; most messages have no more. Larger parts
// would cost small messages a second cache page, smaller parts a second trip more often.
constexpr size_t kFirstPart = 1024;
constexpr size_t kFirstBytes = kFirstPart - sizeof(uint64_t);

class NcclExchange final : public Exchange {
 public:
  NcclExchange(ncclComm_t comm, int rank, int num_ranks)
      : comm_(comm), rank_(rank), num_ranks_(num_ranks) {}

  std::string_view name() const override { return "tutti"; }
  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }

  Status Min(std::span<uint8_t> values) override {
    return FromNccl(ncclAllReduce(values.data(), values.data(), values.size(), ncclUint8, ncclMin,
                                  comm_, nullptr),
                    comm_);
  }

  Result<Bytes> Swap(int to, std::span<const std::byte> bytes, int from) override {
    if (bytes.size() > kMaxMessageBytes) {
      return InternalError("{} bytes are too many for one round of negotiation", bytes.size());
    }
    const uint64_t size = bytes.size();
    std::array<std::byte, kFirstPart> out = {};
    std::array<std::byte, kFirstPart> in = {};
    std::memcpy(out.data(), &size, sizeof(size));
    const size_t first = std::min(bytes.size(), kFirstBytes);
    if (first > 0) std::memcpy(out.data() + sizeof(size), bytes.data(), first);
    TUTTI_TRY(Move(out.data(), out.size(), to, in.data(), in.size(), from));
    uint64_t their_size = 0;
    std::memcpy(&their_size, in.data(), sizeof(their_size));
    if (their_size > kMaxMessageBytes) {
      return RemoteError("rank {} announces {} bytes for one round of negotiation", from,
                         their_size);
    }
    Bytes theirs(their_size);
    const size_t their_first = std::min(theirs.size(), kFirstBytes);
    if (their_first > 0) std::memcpy(theirs.data(), in.data() + sizeof(size), their_first);
    TUTTI_TRY(Move(bytes.data() + first, bytes.size() - first, to, theirs.data() + their_first,
                   theirs.size() - their_first, from));
    return theirs;
  }

 private:
  Status Move(const std::byte* out, size_t out_bytes, int to, std::byte* in, size_t in_bytes,
              int from) {
    if (out_bytes == 0 && in_bytes == 0) return Status::Ok();
    TUTTI_TRY(FromNccl(ncclGroupStart()));
    ncclResult_t result = ncclSuccess;
    if (out_bytes > 0) result = ncclSend(out, out_bytes, ncclUint8, to, comm_, nullptr);
    if (result == ncclSuccess && in_bytes > 0) {
      result = ncclRecv(in, in_bytes, ncclUint8, from, comm_, nullptr);
    }
    // A group must be ended after ncclGroupStart; an error inside makes the end fail.
    const ncclResult_t end = ncclGroupEnd();
    return FromNccl(result != ncclSuccess ? result : end, comm_);
  }

  const ncclComm_t comm_;
  const int rank_;
  const int num_ranks_;
};

}  // namespace

std::unique_ptr<Exchange> MakeNcclExchange(ncclComm_t comm, int rank, int num_ranks) {
  return std::make_unique<NcclExchange>(comm, rank, num_ranks);
}

}  // namespace tutti::coordinator
