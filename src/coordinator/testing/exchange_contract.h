#pragma once

// Tests the contract of every Exchange, for every implementation, whether its ranks are threads of
// a test or processes of a launcher: hence no GoogleTest here.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/exchange.h"

namespace tutti::coordinator {

// Called by all ranks. Returns "", or the first error on this rank.
class ExchangeContract {
 public:
  explicit ExchangeContract(Exchange& exchange)
      : exchange_(exchange), rank_(exchange.rank()), n_(exchange.num_ranks()) {}

  std::string Check() {
    for (const size_t size : {0u, 1u, 1015u, 1016u, 1017u, 5000u, 1'000'000u}) CheckSwap(size);
    for (const size_t size : {1u, 5u, 300u, 4096u}) CheckMin(size);
    CheckMergeFromAll();
    return failure_;
  }

 private:
  void Expect(const Status& status, const std::string& what) {
    if (!status.ok() && failure_.empty())
      failure_ = fmt::format("rank {} of {}, {}: {}", rank_, n_, what, status.message());
  }
  void Expect(bool right, const std::string& what) {
    if (!right) Expect(InternalError("wrong bytes"), what);
  }

  static Bytes Pattern(int from, size_t size) {
    Bytes bytes(size);
    for (size_t i = 0; i < size; ++i)
      bytes[i] = std::byte((i * 7 + static_cast<size_t>(from) * 31) & 0xff);
    return bytes;
  }
  // Around the ring; lengths differ from rank to rank.
  void CheckSwap(size_t size) {
    const int above = (rank_ + 1) % n_;
    const int below = (rank_ + n_ - 1) % n_;
    const auto message = [&](int rank) { return Pattern(rank, size + static_cast<size_t>(rank)); };
    const auto got = exchange_.Swap(above, message(rank_), below);
    const std::string what = fmt::format("a swap of {} bytes", size);
    Expect(got.status(), what);
    if (got.ok()) Expect(*got == message(below), what);
  }

  void CheckMin(size_t size) {
    const auto at = [](int rank, size_t i) {
      return static_cast<uint8_t>((i * 13 + static_cast<size_t>(rank) * 101) % 251);
    };
    std::vector<uint8_t> values(size), least(size, 255);
    for (size_t i = 0; i < size; ++i) {
      values[i] = at(rank_, i);
      for (int rank = 0; rank < n_; ++rank) least[i] = std::min(least[i], at(rank, i));
    }
    const std::string what = fmt::format("the least of {} places", size);
    Expect(exchange_.Min(values), what);
    Expect(values == least, what);
  }

  void CheckMergeFromAll() {
    Bytes seen(static_cast<size_t>(n_));
    seen[static_cast<size_t>(rank_)] = std::byte{1};
    const Status status = MergeFromAll(
        exchange_, [&] { return seen; },
        [&](std::span<const std::byte> theirs) -> Status {
          for (size_t i = 0; i < seen.size(); ++i) seen[i] |= theirs[i];
          return Status::Ok();
        });
    Expect(status, "a merge");
    Expect(seen == Bytes(seen.size(), std::byte{1}), "a merge");
  }

  Exchange& exchange_;
  const int rank_;
  const int n_;
  std::string failure_;
};

}  // namespace tutti::coordinator
