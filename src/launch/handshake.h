#pragma once

// Connections between the ranks of one job, each end of which has proven that it holds the job's
// key (bootstrap/auth.h). Rank 0 listens; the others connect, and their hello says who they are. A
// rank knows that it is in once rank 0 has welcomed it; until then it tries again.
//
//   hello payload: channel u32, rank u32, attempt u64, note (the remaining bytes)
//
// What travels afterwards is not encrypted.

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

// Says whom a connection is for: a rank, and which of that rank's several channels.
struct Claim {
  uint32_t channel = 0;
  uint32_t rank = 0;
  friend bool operator==(const Claim&, const Claim&) = default;
};

// The connector's hello as a value. `attempt` is the same for all connections of one
// ConnectWithClaim, so that rank 0 knows a rank that tries again from a second process with the
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
// connections are accepted on a thread of the object's own ("tutti-launch"), until the object goes.
// Connections that prove nothing are dropped and cost nobody else time.
//
// A rank whose welcome comes too late tries again, while the connection that it has given up may
// already be here. Whoever takes the connections therefore has to find out which of them are in use
// (by an answer, or by Peer::HungUp) and to expect the claims of the others anew.
class Gathering {
 public:
  // A connection that has proven its claim, and the note that its hello carried.
  struct Peer {
    UniqueFd fd;
    std::string note;

    bool HungUp() const;
  };

  static Result<std::unique_ptr<Gathering>> Start(UniqueFd listener, const Key& key,
                                                  std::vector<Claim> expected);
  ~Gathering();

  // Waits until each of the expected claims was proven. Fails with Timeout naming the ranks that
  // are missing, with InvalidUsage when two processes prove the same claim or one proves a claim
  // that is not expected, and with InternalError when it is aborted.
  Status Await(const WaitLimits& limits);
  // Hands out the connections: the i-th belongs to expected[i] and is closed where it did not come
  // or was handed out before. Behind those stands the connection whose claim made Await fail, if
  // one did.
  std::vector<Peer> TakePeers();
  // Makes Await wait for expected[index] again, whose connection was handed out and was of no use.
  void ExpectAgain(size_t index);

 private:
  // Holds what is known of one claim.
  struct Slot {
    Peer peer;
    uint64_t attempt = 0;
    bool proven = false;
    bool taken = false;  // Whether a connection was handed out since it was proven.
  };

  explicit Gathering(std::vector<Claim> expected);
  void Take(UniqueFd fd, const Hello& hello) TUTTI_EXCLUDES(mutex_);
  Status Keep(UniqueFd fd, ClaimHello hello) TUTTI_REQUIRES(mutex_);
  std::string Missing() const TUTTI_REQUIRES(mutex_);

  const std::vector<Claim> expected_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_ TUTTI_GUARDED_BY(mutex_);  // One for each of expected_.
  size_t num_proven_ TUTTI_GUARDED_BY(mutex_) = 0;
  Status failure_ TUTTI_GUARDED_BY(mutex_);
  UniqueFd refused_ TUTTI_GUARDED_BY(mutex_);  // the connection that made failure_
  // The acceptor goes before its loop.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<AuthAcceptor> acceptor_;
};

// Gathers the connections of `expected` and returns them in that order.
Result<std::vector<UniqueFd>> AcceptClaims(UniqueFd listener, const Key& key,
                                           const std::vector<Claim>& expected,
                                           const WaitLimits& limits);

// Connects to the first of `endpoints` where a holder of the key listens, trying all of them over
// and over until the deadline, since rank 0 may come later than the others. `note` has at most
// kMaxNoteBytes.
Result<UniqueFd> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                  Claim claim, std::string_view note, const WaitLimits& limits);

}  // namespace tutti::launch
