#pragma once

// A call of several steps that all ranks of a communicator make together, such as ncclCommSplit.
// Each step has a deadline. A flag ends the whole call: the watch raises the flag when a rank is
// lost, the communicator stops, or a rank gives the call up. A waiting rank can ask what this rank
// does, and is told of a failure here.
//
// A JointCall belongs to one thread.

#include <atomic>
#include <string>

#include "base/status.h"
#include "comm/communicator.h"
#include "operations/agreement.h"
#include "watch/watch.h"

namespace tutti {

class JointCall {
 public:
  // `doing` says what the rank does, such as "in ncclCommSplit". `comm` and `flag` must outlive the
  // call.
  JointCall(Communicator& comm, const std::string& doing, std::atomic<bool>& flag)
      : comm_(comm),
        doing_(doing),
        step_(comm.watch(), doing),
        call_(comm.watch(), flag),
        flag_(flag) {}

  // Returns the ranks for a step of the call that begins now.
  JointRanks ranks() const {
    JointRanks ranks = comm_.ranks();
    ranks.abort_flag = &flag_;
    return ranks;
  }
  // Returns why the call was ended from outside, or success.
  Status reason() const { return call_.reason(); }

  // Exchanges the offers of a step. Where the exchange fails, Explain has to tell the other ranks.
  template <class Offer>
  Status Exchange(JointStep<Offer>& step) {
    Status met = step.Exchange();
    in_step_ = met.ok();
    return met;
  }
  // Returns the status of a call that failed with `failure`, and tells the waiting ranks. Stops the
  // communicator where the ranks may be at different steps of the bootstrap. Later calls return
  // their argument.
  Status Explain(Status failure);

  // Tells the waiting ranks that this rank's part failed with `failure`. Returns this rank's part
  // of the agreement that ends the call: the failure, or success where another rank's failure,
  // which that rank reports itself, caused the failure here.
  Status GiveUp(Status failure) const;

 private:
  std::string NameOfThis() const { return comm_.ranks().NameOf(static_cast<size_t>(comm_.rank())); }

  Communicator& comm_;
  const std::string doing_;
  const Watch::Step step_;
  const Watch::JointCall call_;
  std::atomic<bool>& flag_;
  bool in_step_ = true;  // All ranks have taken the same steps over the bootstrap.
  bool explained_ = false;
};

}  // namespace tutti
