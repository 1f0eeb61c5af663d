#pragma once

// For tests: queue pairs that are lost, and what connections make of it.

#include <array>
#include <string>
#include <vector>

#include "fake_verbs.h"
#include "transport/testing/net_contract.h"

namespace tutti {

// Three requests fail, the receiver's grants among them. Of every second one the bytes arrive, and
// the acknowledgement is lost. There are no more, because a connection that loses its queue pairs
// four times without a whole message in between is given up.
inline void FailOften() {
  for (int i = 0; i < 3; ++i) {
    fakeverbs::FailSend({.skip = 3 + 7 * i, .delivered = i % 2 == 0});
  }
}

// The cases of the contract in which both ends stay until all has come.
inline std::vector<net_contract::Case> CasesThatStay() {
  std::vector<net_contract::Case> cases;
  for (const net_contract::Case& each : net_contract::Cases()) {
    const std::string_view name = each.name;
    if (name == "KeepsOrderOverMixedSizes" || name == "TestsRequestsInAnyOrder" ||
        name == "HoldsASenderThatIsAhead" || name == "FillsGroupsByTag" ||
        name == "FillsGroupsInTurn" || name == "SleepingEndsWakeEachOther") {
      cases.push_back(each);
    }
  }
  return cases;
}

// Drives both ends until both have failed.
inline std::array<std::string, 2> FailuresOf(net_contract::NetLink& link) {
  std::array<std::string, 2> failures;
  const Deadline deadline = net_contract::Bound().deadline;
  while ((failures[0].empty() || failures[1].empty()) && !deadline.Passed()) {
    const std::array<Status, 2> now = {link.sender->Progress().status(),
                                       link.receiver->Progress().status()};
    for (size_t i = 0; i < 2; ++i) failures[i] = now[i].message();
  }
  return failures;
}

}  // namespace tutti
