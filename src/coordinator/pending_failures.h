#pragma once

// Failures of tensors that some ranks can never complete (set_mismatch.h), on their way into a
// process set. A failure goes two ways:
//
// To the other ranks. The rank brings the failure to a round of the set; the round's result fails
// the tensor on all ranks that the failure names.
//
// To the caller. A failure may come through another rank before this rank has decided the same
// check (Decided), and is then held until this rank has decided: a program that learns of the
// failure may retry the name at once, in a set where the earlier attempt has not failed yet.
//
// One thread at a time: the process set guards it.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/response.h"
#include "coordinator/round_message.h"

namespace tutti::coordinator {

class PendingFailures {
 public:
  using ByName = std::map<std::string, PendingFailure>;

  // Keeps a failure, which is brought to no round before `round`.
  void Add(const std::string& name, PendingFailure failure, uint64_t round);
  // Moves the failures that are due for the new round into `due`.
  void BeginRound(uint64_t round, ByName& due);
  void EndRound() { in_round_ = false; }
  // Returns whether some wait for a round.
  bool waiting() const { return !waiting_.empty(); }
  // Returns whether failures wait for a round, or are brought to the present round: their tensors
  // may then be gone when the others hear of them.
  bool in_doubt() const { return in_round_ || waiting(); }

  // Notes that all sets of this rank have been told of the checks up to this one.
  void Decide(uint64_t check) { decided_ = check; }
  bool IsDecided(uint64_t check) const { return check <= decided_; }
  // Keeps a failed response until its check is decided.
  void Hold(Response response) { held_.push_back(std::move(response)); }
  // Returns the held responses whose check is decided; with `all`, all held responses.
  std::vector<Response> TakeDecided(bool all = false);

 private:
  struct Waiting {
    PendingFailure failure;
    uint64_t round = 0;
  };
  bool in_round_ = false;  // failures are brought to the present round
  std::map<std::string, Waiting> waiting_;
  uint64_t decided_ = 0;
  std::vector<Response> held_;
};

}  // namespace tutti::coordinator
