#pragma once

// Peer: another rank as an Endpoint sees it: its address and names, and whether its links work.
// Peers: all peers of an endpoint.
//
// Plain values. The mutex of the Endpoint guards them.

#include <cstdint>
#include <string>
#include <unordered_map>

#include "bootstrap/root_messages.h"

namespace tutti {

// Says by which address a rank is reached, and how messages name the rank.
struct PeerIdentity {
  Contact contact;
  uint32_t pid = 0;  // 0: not known yet
  std::string host;
};

// The states of a peer, and the news that lead from one state to the next:
//
//   from                    news          to
//   kHere                   kLinkBroke    kSuspected       the agreement on losses will decide
//   kHere                   kSaidEnd      kEnded           all frames of the peer have arrived
//   kSuspected              kSaidEnd      kEndedSuspected  frames of the peer may be missing
//   every state             kDecidedLost  kLost
//
// Every other news changes nothing.
class Peer {
 public:
  enum class State : uint8_t { kHere, kSuspected, kEnded, kEndedSuspected, kLost };
  enum class News : uint8_t { kLinkBroke, kSaidEnd, kDecidedLost };

  // Moves to the next state. Returns whether the state has changed.
  bool Advance(News news);
  State state() const { return state_; }
  // Returns whether no frame between the two ranks can be missing.
  bool IsWhole() const { return state_ == State::kHere || state_ == State::kEnded; }
  // Returns whether the peer has closed its links with kEnd.
  bool HasEnded() const { return state_ == State::kEnded || state_ == State::kEndedSuspected; }
  bool IsLost() const { return state_ == State::kLost; }

  PeerIdentity identity;
  std::string why_lost;
  // The rank that holds up this peer in making the first communicator, and when the peer said so.
  int held_up_by = 0;
  int64_t held_up_ns = 0;  // 0: never

 private:
  State state_ = State::kHere;
};

class Peers {
 public:
  // Returns the peer, and adds a peer that was not known.
  Peer& operator[](int rank) { return peers_[rank]; }
  // Returns null where nothing is known of the rank.
  const Peer* Find(int rank) const;
  // Returns "pid 7 on node5 at 10.0.0.5:4000", or the part of this text that is known.
  std::string Describe(int rank) const;

 private:
  std::unordered_map<int, Peer> peers_;
};

}  // namespace tutti
