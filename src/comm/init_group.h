#pragma once

// The calls of a group that all ranks of a communicator make together: initialisations, and joint
// calls on an existing communicator such as the registration of a window.
//
// The jobs of one group need one another, because one thread may drive several ranks of a
// communicator. All jobs therefore run at the same time, each on a thread of its own. Jobs over one
// bootstrap are the exception: they form a chain and run in the order of the calls. A job's
// bootstrap is that of its parent, or else of its communicator. The chain of a non-blocking
// communicator runs on the communicator's joint worker, and the group does not wait for the chain.
//
// An InitGroup belongs to one thread.

#include <functional>
#include <vector>

#include "base/status.h"
#include "comm/handle.h"

namespace tutti {

struct InitJob {
  ncclComm* comm;
  ncclComm* parent;  // The communicator from which `comm` is made. May be null.
  std::function<Status()> run;
  // Called in place of `run` where the system grants no thread. May be empty.
  std::function<void(const Status&)> refused = {};
  // The job makes the communicator, which comes to nothing where the job fails.
  bool makes = true;
};

class InitGroup {
 public:
  bool empty() const { return jobs_.empty(); }
  // Returns whether a job makes a communicator.
  bool makes() const;

  void Add(InitJob job) { jobs_.push_back(std::move(job)); }
  // Runs all jobs and waits for the chains with a blocking communicator. Returns the first failure
  // of the awaited jobs, else InProgress when other jobs go on in the background.
  Status Launch();
  // Runs a job outside of a group. REQUIRES: the caller is inside of the handles' gates.
  static Status LaunchAlone(InitJob job);
  // Forgets all jobs. The communicators that were to be made fail with `reason`.
  void Drop(const Status& reason);

 private:
  std::vector<InitJob> jobs_;
};

}  // namespace tutti
