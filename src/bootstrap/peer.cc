#include "bootstrap/peer.h"

#include <fmt/format.h>

#include <utility>

namespace tutti {

bool Peer::Advance(News news) {
  State next = state_;
  if (news == News::kDecidedLost)
    next = State::kLost;
  else if (state_ == State::kHere)
    next = news == News::kLinkBroke ? State::kSuspected : State::kEnded;
  else if (state_ == State::kSuspected && news == News::kSaidEnd)
    next = State::kEndedSuspected;
  return std::exchange(state_, next) != next;
}

const Peer* Peers::Find(int rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : &found->second;
}

std::string Peers::Describe(int rank) const {
  const Peer* const peer = Find(rank);
  if (peer == nullptr) return "not known yet";
  const PeerIdentity& identity = peer->identity;
  const std::string address = identity.contact.address.ToString();
  if (identity.pid == 0) return fmt::format("at {}", address);
  return fmt::format("pid {} on {} at {}", identity.pid, identity.host, address);
}

}  // namespace tutti
