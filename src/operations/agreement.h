#pragma once

// Steps that all ranks of a communicator take together over the bootstrap.
//
// In a step each rank makes an offer, or gives the reason why it cannot. A single exchange carries
// the offers and the reasons to all ranks. Every rank draws the same conclusion: all ranks go on,
// or no rank does, for the reason of the first rank that cannot. A step itself fails only if the
// ranks cannot talk to one another. Such a failure may differ from rank to rank.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/peer_info.h"
#include "sys/tcp.h"

namespace tutti {

// Holds a rank's Status in the form that the rank sends to its peers. Longer messages are cut.
struct StatusWire {
  uint8_t code = 0;
  char text[375] = {};

  static StatusWire Of(const Status& status);
  bool ok() const { return code == 0; }
  // Returns the failure with the name of the failed rank, or success.
  Status From(int rank, const PeerInfo& peer) const;
};

// Says whether the ranks go on. All ranks have equal agreements.
struct Agreement {
  Status refusal;  // The reason of the first rank that cannot go on. Ok: all ranks go on.
  bool go_on() const { return refusal.ok(); }
};

// Holds the ranks that take steps together, and the bounds of their waits. All ranks call each
// function alike. The bootstrap and the peers must outlive the object.
struct JointRanks {
  Bootstrap* bootstrap = nullptr;
  std::span<const PeerInfo> peers;
  Deadline deadline = Deadline::Never();
  const std::atomic<bool>* abort_flag = nullptr;

  WaitLimits limits() const { return {deadline, abort_flag}; }
  // Returns the limits of a wait that `follow`, a result of FollowWait, ends at the deadline.
  WaitLimits limits(const std::function<Status()>& follow) const {
    return {Deadline::Never(), abort_flag, &follow};
  }
  // Follows a wait for `what` of `rank`, such as "the shared memory of", so that the other ranks
  // hear of the wait. `what` must be a literal.
  std::function<Status()> FollowWait(const char* what, size_t rank) const {
    return bootstrap->FollowWait(what, static_cast<int>(rank), deadline, abort_flag);
  }
  size_t me() const { return static_cast<size_t>(bootstrap->rank()); }
  std::string NameOf(size_t rank) const { return RankName(static_cast<int>(rank), peers[rank]); }

  // Agrees to go on if `mine` is ok on all ranks.
  Result<Agreement> Agree(const Status& mine) const { return Exchange(mine, {}); }
  // Exchanges offers of equal size and `could`, which says whether this rank can go on. `offers`
  // has room for an offer of each rank. The caller fills in its own offer, and Exchange fills in
  // the rest. On the wire a rank's StatusWire precedes its offer.
  Result<Agreement> Exchange(const Status& could, std::span<std::byte> offers) const;
};

// Takes a step with an `Offer` of each rank. The bytes of an Offer are its wire form.
template <class Offer>
class JointStep {
  static_assert(std::is_trivially_copyable_v<Offer>);

 public:
  explicit JointStep(const JointRanks& ranks) : ranks_(ranks), offers_(ranks.peers.size()) {}

  // Returns this rank's offer. The caller must fill in the offer before the exchange.
  Offer& mine() { return offers_[ranks_.me()]; }
  // Returns the offers of all ranks. REQUIRES: the offers have been exchanged.
  std::span<const Offer> offers() const { return offers_; }

  // Exchanges the offers alone, for ranks that can always go on.
  Status Exchange() {
    return ranks_.bootstrap->AllGather(offers_.data(), sizeof(Offer), ranks_.deadline,
                                       ranks_.abort_flag);
  }
  // Exchanges the offers and whether each rank can go on.
  Result<Agreement> Exchange(const Status& could) {
    return ranks_.Exchange(could, std::as_writable_bytes(std::span(offers_)));
  }
  // Exchanges the offers, and calls `use` with all offers if `made`, the result of making this
  // rank's offer, is ok. Then the ranks agree on the results of making and using the offers.
  template <class Use>
  Result<Agreement> ExchangeAndUse(Status made, Use use) {
    TUTTI_TRY(Exchange());
    if (made.ok()) made = use(offers());
    return ranks_.Agree(made);
  }

 private:
  const JointRanks ranks_;
  std::vector<Offer> offers_;
};

// Returns the first rank whose offer has no `name` among its names, or -1.
template <class Offer>
int FirstWithout(std::span<const Offer> offers, uint64_t name) {
  for (size_t r = 0; r < offers.size(); ++r)
    if (std::find(offers[r].names.begin(), offers[r].names.end(), name) == offers[r].names.end())
      return static_cast<int>(r);
  return -1;
}

}  // namespace tutti
