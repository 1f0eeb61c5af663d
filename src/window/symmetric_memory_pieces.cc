// The mapping of memory that ranks of the team bring to a registration, piece by piece.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "window/symmetric_memory.h"

namespace tutti {

// Maps the first piece of each rank of the team. No other thread uses the memory yet.
Status SymmetricMemory::MapFirstPieces(int number, std::span<const Offer> offers,
                                       const JointRanks& ranks) {
  if (!reserved_) TUTTI_TRY(space_->Reserve(SliceOf(team_.size)));
  reserved_ = true;
  for (int place = 0; place < team_.size; ++place) {
    const Offer& offer = offers[static_cast<size_t>(team_.first + place)];
    TUTTI_TRY(MapPiece(number, place, offer, offer.allocation, offer.num_pieces == 1, ranks));
  }
  return Status::Ok();
}

// Maps the pieces behind the first piece of each rank. `mine` holds the failure on this rank so
// far, and in the end also a failure here. The ranks agree on `mine` later, but no rank goes on
// once a rank has told of a failure. Fails when the ranks cannot talk.
Status SymmetricMemory::MapFurtherPieces(std::span<const Offer> offers, Part& part,
                                         const JointRanks& ranks, Status* mine) {
  uint64_t most = 0;
  for (const Offer& offer : offers) most = std::max(most, offer.num_pieces);
  for (uint64_t first = 1; first < most; first += kPiecesAtOnce) {
    // When all ranks have come to the exchange, they have mapped all pieces of the exchange before.
    const std::vector<RemoteHandle> before = std::exchange(part.exported, {});
    JointStep<PieceOffer> step(ranks);
    if (mine->ok()) *mine = OfferPieces(part, first, step.mine());
    const Result<Agreement> agreed = step.Exchange(*mine);
    EndExports(before);
    TUTTI_TRY(agreed.status());
    if (!agreed->go_on()) return Status::Ok();
    *mine = MapPieces(part.number, offers, first, step.offers(), ranks);
  }
  return Status::Ok();
}

// Offers this rank's pieces from number `first` on, as many as fit into one offer.
Status SymmetricMemory::OfferPieces(Part& part, uint64_t first, PieceOffer& offer) {
  const uint64_t end = std::min<uint64_t>(part.allocation.pieces.size(), first + kPiecesAtOnce);
  for (uint64_t number = first; number < end; ++number) {
    TUTTI_ASSIGN(const RemoteHandle handle, space_->Export(part.allocation, number));
    part.exported.push_back(handle);
    offer.pieces[number - first] = {handle.offer_id, handle.size};
  }
  return Status::Ok();
}

// Maps the pieces from number `first` on that the ranks of the team have offered.
Status SymmetricMemory::MapPieces(int number, std::span<const Offer> offers, uint64_t first,
                                  std::span<const PieceOffer> pieces, const JointRanks& ranks) {
  for (int place = 0; place < team_.size; ++place) {
    const auto r = static_cast<size_t>(team_.first + place);
    const uint64_t end = std::min(offers[r].num_pieces, first + kPiecesAtOnce);
    for (uint64_t i = first; i < end; ++i) {
      const auto& [offer_id, bytes] = pieces[r].pieces[i - first];
      RemoteHandle piece = offers[r].allocation;
      piece.offer_id = offer_id;
      piece.size = bytes;
      const bool is_last = i + 1 == offers[r].num_pieces;
      TUTTI_TRY(MapPiece(number, place, offers[r], piece, is_last, ranks));
    }
  }
  return Status::Ok();
}

// Maps a piece of `place` behind its mapped pieces.
Status SymmetricMemory::MapPiece(int number, int place, const Offer& offer,
                                 const RemoteHandle& piece, bool is_last, const JointRanks& ranks) {
  const int r = team_.first + place;
  const std::string what =
      fmt::format("mapping the memory of {}", RankName(r, peers_[static_cast<size_t>(r)]));
  uint64_t at = 0, before = 0;
  {
    const MutexLock lock(mutex_);
    const Memory& memory = memories_.at(number);
    at = memory.extent.at;
    for (const uint64_t bytes : memory.mapped[static_cast<size_t>(place)]) before += bytes;
  }
  const uint64_t left = offer.allocation_bytes - before;
  if (piece.size == 0 || (is_last ? piece.size != left : piece.size >= left))
    return RemoteError("a piece of {} bytes does not fit {} bytes into memory of {}", piece.size,
                       before, offer.allocation_bytes)
        .Annotate(what);
  const auto follow = ranks.FollowWait("the shared memory of", static_cast<size_t>(r));
  Status mapped = space_->Map(SliceOf(place) + at + before, piece, ranks.limits(follow));
  if (!mapped.ok()) return std::move(mapped).Annotate(what);
  const MutexLock lock(mutex_);
  memories_.at(number).mapped[static_cast<size_t>(place)].push_back(piece.size);
  return Status::Ok();
}

}  // namespace tutti
