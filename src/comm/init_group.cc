#include "comm/init_group.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "comm/group_status.h"
#include "comm/handle_table.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// A job from its launch to its end. Keeps the job's communicators at work, and lets an abort of the
// parent reach the child.
class BegunJob {
 public:
  explicit BegunJob(InitJob job)
      : job_(std::move(job)), hold_(comm(), ncclComm::Shown::kInProgress) {
    if (job_.parent != nullptr) parent_hold_ = job_.parent->BeginChild(comm());
    if (!job_.makes) comm().joint_jobs.fetch_add(1, std::memory_order_relaxed);
  }
  BegunJob(const BegunJob&) = delete;
  BegunJob& operator=(const BegunJob&) = delete;
  ~BegunJob() {
    if (!job_.makes) comm().joint_jobs.fetch_sub(1, std::memory_order_release);
    if (job_.parent != nullptr) job_.parent->ForgetChild(comm());
    hold_ = {};
    // The hold of the parent ends last, because a thread that sees the parent at rest may use what
    // the job has written.
    parent_hold_ = {};
  }

  ncclComm& comm() const { return *job_.comm; }
  // Returns the communicator over whose bootstrap the ranks talk in the job.
  ncclComm& over() const { return job_.parent != nullptr ? *job_.parent : comm(); }

  // Runs the job and keeps its failure in the handle.
  Status Run() {
    Status status = WithoutExceptions(job_.run);
    if (!status.ok()) {
      if (job_.makes)
        comm().Fail(status);
      else
        comm().NoteFailure(status, /*in_background=*/!comm().blocking);
    }
    return status;
  }
  // Has the job fail without being run.
  void Refuse(const Status& reason) {
    job_.run = [reason, refused = job_.refused] {
      if (refused) refused(reason);
      return reason;
    };
  }

 private:
  InitJob job_;
  ncclComm::WorkHold hold_;
  ncclComm::WorkHold parent_hold_;
};

// Jobs over one bootstrap, in the order of the calls.
using Chain = std::vector<std::unique_ptr<BegunJob>>;

// Runs the jobs in order and returns the first failure. The jobs behind a failed one run as well,
// because they run on the other ranks.
Status RunChain(Chain& chain) {
  Status first;
  for (std::unique_ptr<BegunJob>& job : chain) {
    Status done = job->Run();
    job.reset();
    if (first.ok()) first = std::move(done);
  }
  return first;
}

void Queue(Chain chain) {
  ncclComm& over = chain[0]->over();
  const auto jobs = std::make_shared<Chain>(std::move(chain));
  over.joint_worker().Enqueue([jobs] { [[maybe_unused]] const Status kept = RunChain(*jobs); });
}

std::vector<Chain> MakeChains(std::vector<InitJob> jobs) {
  std::vector<Chain> chains;
  for (InitJob& job : jobs) {
    auto begun = std::make_unique<BegunJob>(std::move(job));
    auto chain = std::find_if(chains.begin(), chains.end(),
                              [&](const Chain& c) { return &c[0]->over() == &begun->over(); });
    if (chain == chains.end()) chain = chains.insert(chains.end(), Chain());
    chain->push_back(std::move(begun));
  }
  return chains;
}

bool AnyBlocks(const Chain& chain) {
  return std::any_of(chain.begin(), chain.end(),
                     [](const auto& job) { return job->comm().blocking; });
}

// Runs each chain with a blocking communicator on a thread of its own, waits for these chains and
// queues the others.
Status RunChains(std::vector<Chain> chains) {
  bool in_progress = false;
  std::vector<Status> outcomes(chains.size());
  std::vector<std::thread> threads;
  threads.reserve(chains.size());  // Nothing may throw while threads use this frame.
  for (size_t i = 0; i < chains.size(); ++i) {
    Chain& chain = chains[i];
    if (!AnyBlocks(chain)) {
      in_progress = true;
      Queue(std::move(chain));
      continue;
    }
    Result<std::thread> started =
        StartThread("tutti-init", [&outcome = outcomes[i], &chain] { outcome = RunChain(chain); });
    if (started.ok()) {
      threads.push_back(std::move(started).value());
      continue;
    }
    for (auto& job : chain) job->Refuse(started.status());
    outcomes[i] = RunChain(chain);
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& outcome : outcomes)
    if (!outcome.ok()) return std::move(outcome);
  return in_progress ? InBackground() : Status::Ok();
}

}  // namespace

bool InitGroup::makes() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const InitJob& job) { return job.makes; });
}

void InitGroup::Drop(const Status& reason) {
  for (const InitJob& job : jobs_)
    if (const HandleUse use(job.comm); job.makes && use.inside()) job.comm->Fail(reason);
  jobs_.clear();
}

Status InitGroup::LaunchAlone(InitJob job) {
  Chain alone;
  alone.push_back(std::make_unique<BegunJob>(std::move(job)));
  if (alone[0]->comm().blocking) return RunChain(alone);
  Queue(std::move(alone));
  return InBackground();
}

// Enters the gates of all handles before any job begins, so that a group with a destroyed handle
// does nothing. A begun job keeps its handles by itself.
Status InitGroup::Launch() {
  std::vector<HandleUse> uses;
  for (const InitJob& job : jobs_) {
    uses.emplace_back(job.comm);
    if (uses.back().inside() && job.parent != nullptr) uses.emplace_back(job.parent);
    if (uses.back().inside()) continue;
    Status reason = DestroyedInGroup();
    Drop(reason);
    return reason;
  }
  std::vector<Chain> chains = MakeChains(std::exchange(jobs_, {}));
  uses.clear();
  return RunChains(std::move(chains));
}

}  // namespace tutti
