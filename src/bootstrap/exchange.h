#pragma once

// The all-gather of the bootstrap, without the transport of its messages.
//
// Dissemination in ceil(log2 n) rounds. Before the round of distance d a rank holds its own part
// and the parts of the d - 1 ranks below; the rank sends the parts that the rank d above lacks, and
// receives as many from the rank d below:
//
//   n = 5, held by rank 4:      4  →  4 3  →  4 3 2 1  →  4 3 2 1 0
//                              d = 1     d = 2       d = 4 (only a single part is still missing)
//
// A message is `count` times (length u32, bytes).

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "bootstrap/wire.h"

namespace tutti {

// Appends the parts of `message`, exactly `count`, to `parts`.
Status ReadParts(std::span<const std::byte> message, size_t count, std::vector<Bytes>& parts);
Bytes WriteParts(std::span<const Bytes> parts);

// Runs the all-gather and returns the parts by rank. `send(rank, bytes)` must return a Status at
// once, `recv(rank)` a Result<Bytes>.
template <typename Send, typename Recv>
Result<std::vector<Bytes>> Disseminate(int rank, int num_ranks, Bytes mine, Send&& send,
                                       Recv&& recv) {
  std::vector<Bytes> held;  // held[i] is the part of the rank i below this rank
  held.reserve(static_cast<size_t>(num_ranks));
  held.push_back(std::move(mine));
  for (int64_t distance = 1; distance < num_ranks; distance *= 2) {
    const auto count = static_cast<size_t>(std::min<int64_t>(distance, num_ranks - distance));
    const int above = static_cast<int>((rank + distance) % num_ranks);
    const int below = static_cast<int>((rank - distance + num_ranks) % num_ranks);
    TUTTI_TRY(send(above, WriteParts(std::span(held).first(count))));
    TUTTI_ASSIGN(const Bytes message, recv(below));
    if (Status read = ReadParts(message, count, held); !read.ok()) {
      return std::move(read).Annotate(fmt::format("exchanging with rank {}", below));
    }
  }
  std::vector<Bytes> by_rank(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    const auto n = static_cast<size_t>(num_ranks);
    by_rank[(static_cast<size_t>(rank) + n - i) % n] = std::move(held[i]);
  }
  return by_rank;
}

}  // namespace tutti
