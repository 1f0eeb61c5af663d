#pragma once

// Makes connections between the ranks of one job. Each end of a connection proves that it holds the
// job's key (bootstrap/auth.h). Rank 0 listens; the other ranks connect, and their hello names
// their rank. A rank counts as connected once rank 0 has welcomed the rank; until then the rank
// tries again.
//
//   hello payload: channel u32, rank u32, attempt u64, note (the remaining bytes)
//
// All bytes behind the handshake are encrypted (bootstrap/sealed_socket.h).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/auth.h"
#include "launch/environment.h"

namespace tutti::launch {

// Says whom a connection is for: a rank and one of the rank's channels.
struct Claim {
  uint32_t channel = 0;
  uint32_t rank = 0;
  friend bool operator==(const Claim&, const Claim&) = default;
};

// The connector's hello as a value. `attempt` is the same for all connections of one
// ConnectWithClaim. Rank 0 thereby tells a rank that tries again from a second process with the
// same number.
struct ClaimHello {
  Claim claim;
  uint64_t attempt = 0;
  std::string note;
};
inline constexpr size_t kMaxNoteBytes = kMaxHelloBytes - 16;

Bytes EncodeClaimHello(const ClaimHello& hello);
Result<ClaimHello> ParseClaimHello(std::span<const std::byte> payload);

// Gathers the connections of an expected set of claims. The constructor's thread calls the methods;
// a thread of the object's own ("tutti-launch") accepts connections until the object is destroyed.
// Connections that prove nothing are dropped and delay nobody.
//
// A rank whose welcome comes too late tries again, while rank 0 may already hold the connection
// that the rank gave up. The caller of TakePeers therefore has to find out which connections are in
// use (by an answer, or by Peer::HungUp) and to expect the claims of all unused connections anew.
class Gathering {
 public:
  // Holds a connection that has proven its claim, and the note of the connection's hello.
  struct Peer {
    SealedSocket socket;
    std::string note;

    bool HungUp() const;
  };

  static Result<std::unique_ptr<Gathering>> Start(UniqueFd listener, const Key& key,
                                                  std::vector<Claim> expected);
  ~Gathering();

  // Returns how many connections did not prove the key.
  uint64_t rejected() const { return acceptor_->rejected(); }
  // Waits until every expected claim was proven. Fails with Timeout naming the missing ranks, with
  // InvalidUsage when two processes prove the same claim or one proves an unexpected claim, and
  // with InternalError when aborted.
  Status Await(const WaitLimits& limits);
  // Hands out the connections. Connection i belongs to expected[i], and is closed where no rank
  // came or the connection was handed out before. When a claim made Await fail, the claim's
  // connection stands at the end.
  std::vector<Peer> TakePeers();
  // Makes Await wait for expected[index] again, after the connection that was handed out proved
  // useless.
  void ExpectAgain(size_t index);

 private:
  // Holds the state of one claim.
  struct Slot {
    Peer peer;
    uint64_t attempt = 0;
    bool proven = false;
    bool taken = false;  // whether a connection was handed out since the proof
  };

  explicit Gathering(std::vector<Claim> expected);
  void Take(SealedSocket socket, const Hello& hello) TUTTI_EXCLUDES(mutex_);
  Status Keep(SealedSocket socket, ClaimHello hello) TUTTI_REQUIRES(mutex_);
  std::string Missing() const TUTTI_REQUIRES(mutex_);

  const std::vector<Claim> expected_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_ TUTTI_GUARDED_BY(mutex_);  // index: as expected_
  size_t num_proven_ TUTTI_GUARDED_BY(mutex_) = 0;
  Status failure_ TUTTI_GUARDED_BY(mutex_);
  SealedSocket refused_ TUTTI_GUARDED_BY(mutex_);  // the connection that made failure_
  // The acceptor is destroyed before its loop.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<AuthAcceptor> acceptor_;
};

// Gathers the connections of `expected` and returns them in the same order.
Result<std::vector<SealedSocket>> AcceptClaims(UniqueFd listener, const Key& key,
                                               const std::vector<Claim>& expected,
                                               const WaitLimits& limits);

// Connects to the first of `endpoints` where a holder of the key listens. Tries all endpoints over
// and over until the deadline, since rank 0 may be the last to come. `note` has at most
// kMaxNoteBytes. Each endpoint's most telling failure is told: a handshake that was cut off says
// more than a refused connection, which says more than a lack of time. *failure (may be null) is
// the most telling failure of all endpoints.
Result<SealedSocket> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                      Claim claim, std::string_view note, const WaitLimits& limits,
                                      ConnectFailure* failure = nullptr);

}  // namespace tutti::launch
