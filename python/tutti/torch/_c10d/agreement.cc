// SPDX-License-Identifier: Apache-2.0
#include "agreement.h"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <thread>

namespace tutti_c10d {
namespace {

// Keys of an attempt.
constexpr const char* kOutcome = "outcome";
constexpr const char* kTerms = "terms";  // the handles of the member that came first, in short
constexpr const char* kReady = "ready";  // how many members are ready

constexpr const char* kAllReady = "ready";  // the outcome of an attempt that succeeds
// A sentence about missing members names no more of them.
constexpr size_t kMostNamed = 8;
// The least time for each of the steps that follow once all members have come, however late. On two
// busy cores the steps take some 10 ms.
constexpr std::chrono::milliseconds kLeast{500};

// Stores the value unless the key has one, and returns the value that the key has then.
std::string StoreOnce(c10d::Store& store, const char* key, const std::string& value) {
  using Bytes = std::vector<uint8_t>;
  const Bytes stored = store.compareSet(key, Bytes(), Bytes(value.begin(), value.end()));
  return {stored.begin(), stored.end()};
}

}  // namespace

std::string DigestOf(const std::vector<std::string>& handles) {
  std::string all;
  for (const std::string& handle : handles) all += handle + "\n";
  return c10::sha1(all).str();
}

Agreement::Agreement(c10d::Store& store, const Attempt& attempt)
    : store_(store),
      attempt_(attempt),
      title_(c10::str("reconfigure with uuid ", attempt.uuid)),
      begun_(Clock::now()) {
  for (size_t rank = 0; rank < attempt.handles.size(); ++rank)
    came_.push_back(c10::str("came/", rank));
}

std::optional<std::string> Agreement::Outcome() {
  if (!store_.check({kOutcome})) return std::nullopt;
  const std::vector<uint8_t> outcome = store_.get(kOutcome);
  return std::string(outcome.begin(), outcome.end());
}

std::string Agreement::Decide(const std::string& outcome) {
  const std::string decided = StoreOnce(store_, kOutcome, outcome);
  if (decided != outcome) return decided;
  for (const std::string& key : came_) DeleteKey(store_, key);
  for (const char* key : {kTerms, kReady}) DeleteKey(store_, key);
  return decided;
}

void Agreement::ThrowUnlessReady(const std::string& outcome) const {
  if (outcome != kAllReady) ThrowFailure(ncclRemoteError, c10::str(title_, " ", outcome));
}

void Agreement::CheckUnused() {
  const std::optional<std::string> outcome = Outcome();
  if (!outcome) return;
  ThrowFailure(ncclInvalidUsage,
               c10::str(title_, ": the uuid was already used with this store",
                        *outcome == kAllReady ? "" : ", by an attempt that " + *outcome,
                        "; each reconfigure needs a new uuid"));
}

void Agreement::Check() {
  if (const std::optional<std::string> outcome = Outcome()) ThrowUnlessReady(*outcome);
}

Agreement::Clock::time_point Agreement::End() const {
  return attempt_.limit.time.count() == 0 ? Clock::time_point::max() : begun_ + attempt_.limit.time;
}

Limit Agreement::Rest() const {
  if (attempt_.limit.time.count() == 0) return attempt_.limit;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(End() - Clock::now());
  return {std::max(left, kLeast), attempt_.limit.origin};
}

void Agreement::Await(const std::function<bool()>& done, Clock::time_point until,
                      const std::function<std::string()>& awaited) {
  std::chrono::microseconds pause = kFirstPause;
  while (!done()) {
    Check();
    if (Clock::now() >= until)
      ThrowFailure(ncclRemoteError,
                   c10::str("rank ", attempt_.rank, " of the new group has waited ",
                            SecondsText(Clock::now() - begun_), " s for ", awaited(), "; ",
                            attempt_.limit.origin, " sets how long is waited"));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

std::string Agreement::Missing() {
  std::string names;
  size_t missing = 0;
  for (size_t rank = 0; rank < came_.size(); ++rank) {
    if (store_.check({came_[rank]}) || ++missing > kMostNamed) continue;
    names += c10::str(names.empty() ? "" : ", ", "rank ", rank, " (", attempt_.handles[rank], ")");
  }
  return missing > kMostNamed ? c10::str(names, " and ", missing - kMostNamed, " more") : names;
}

void Agreement::Meet() {
  const std::string terms = c10::str(came_.size(), " handles, ", DigestOf(attempt_.handles));
  const std::string first = StoreOnce(store_, kTerms, terms);
  if (first != terms)
    ThrowFailure(
        ncclInvalidUsage,
        c10::str("rank ", attempt_.rank, " of the new group (", attempt_.handles[attempt_.rank],
                 ") gives other handles (", terms, ") than the member that came first (", first,
                 "); all members give the same handles in the same order"));
  store_.set(came_[attempt_.rank], "came");
  Await([this] { return store_.check(came_); }, End(), [this] { return Missing(); });
}

void Agreement::Conclude(const std::function<void()>& check) {
  Check();
  if (store_.add(kReady, 1) == static_cast<int64_t>(came_.size())) {
    ThrowUnlessReady(Decide(kAllReady));
    return;
  }
  const auto ready = [&] {
    check();
    return Outcome() == kAllReady;
  };
  Await(ready, std::max(End(), Clock::now() + 2 * kLeast),
        [] { return "the other members to make the communicator"; });
}

void Agreement::Fail(const std::string& reason) {
  std::string outcome = "failed: " + reason;
  try {
    outcome = Decide(outcome);
  } catch (const std::exception&) {
    // Without the store there is no outcome, and no member takes the group.
  }
  ThrowUnlessReady(outcome);
}

}  // namespace tutti_c10d
