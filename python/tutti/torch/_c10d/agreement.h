// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the members of a new group decide, in torch.distributed's store, that all of them take the
// group or none does.
//
// The decision is a single value in the store, the outcome. The first outcome that a member stores
// counts for all members: the last member that is ready stores that all are, and a member that
// fails stores its reason. The outcome remains in the store, so that a uuid serves once.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "rendezvous.h"

namespace tutti_c10d {

// Returns a short text that equal lists have in common, and no others.
std::string DigestOf(const std::vector<std::string>& handles);

// One attempt, as one member sees it.
struct Attempt {
  int64_t uuid = 0;
  int rank = 0;                      // this member's rank in the new group
  std::vector<std::string> handles;  // the members, by rank
  Limit limit;                       // of the wait for all members
};

// Belongs to the thread that attempts. The store serves this attempt alone, and the store and the
// attempt outlive the object. Failures are DistBackendErrors.
class Agreement {
 public:
  Agreement(c10d::Store& store, const Attempt& attempt);

  // Throws for a uuid that has an outcome.
  void CheckUnused();

  // Blocks until all members have come with equal handles. Throws where the handles differ, at the
  // end of the limit, and where another member fails.
  void Meet();

  // Throws the reason of a member that has failed.
  void Check();

  // Says that this member is ready. Blocks until all members are. Throws as Meet, and where `check`
  // does, which is called several times a second.
  void Conclude(const std::function<void()>& check);

  // Says that this member fails. Throws the reason that counts, except where all members were ready
  // before.
  void Fail(const std::string& reason);

  // Returns the time that is left to make the communicator once all members have come.
  Limit Rest() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<std::string> Outcome();
  // Stores the outcome unless there is one, and returns the outcome that counts.
  std::string Decide(const std::string& outcome);
  void ThrowUnlessReady(const std::string& outcome) const;
  // Blocks until `done` returns true. Throws at `until`, with what is awaited, and where another
  // member fails.
  void Await(const std::function<bool()>& done, Clock::time_point until,
             const std::function<std::string()>& awaited);
  std::string Missing();
  Clock::time_point End() const;

  c10d::Store& store_;
  const Attempt& attempt_;
  const std::string title_;  // for sentences
  const Clock::time_point begun_;
  std::vector<std::string> came_;  // the key of each member that has come
};

}  // namespace tutti_c10d
