#pragma once

// Decides who takes part in an elastic job: pure logic over the launcher's observations, with time
// given from outside, so tests run hours in no time.
//
// A worker is a process, with a number of its own for ever. A generation is a numbering of workers
// as ranks. A worker is, in this order:
//
//   booting ──asks to take part──→ ready ──a generation is formed──→ member ──it leaves the
//   generation, for a failure or a notice──→ ready …    any ──its process ends──→ gone
//   ready ──its slot was taken away──→ dismissed
//
// A generation is formed when every member of the last generation has left and enough workers are
// ready. Former members come first, in the order of their ranks: rank 0 has the job's state.
// Newcomers do not hold up members who go on after a failure; once newcomers are ready, a notice
// asks the members to leave at their next commit, and the next generation has all of them.
//
// A host on which a worker failed gets no new workers while the host cools down: cooldown_min_s,
// doubled with each failure up to cooldown_max_s; with cooldown_max_s 0 the host never gets workers
// again. Running workers of the host go on, unless end_failed_hosts says that they end with the
// failed worker.
//
// For a single thread.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "elastic/hosts.h"

namespace tutti::tools {

using elastic::HostSlots;

struct MembershipOptions {
  int min_workers = 1;
  int max_workers = 1;
  int reset_limit = -1;    // the most generations after the first; -1: any number
  double timeout_s = 600;  // bounds the wait for min_workers, and for members that leave
  double cooldown_min_s = 10;
  double cooldown_max_s = 300;
  bool end_failed_hosts = false;
};

// An order to the launcher.
struct Action {
  enum class Kind {
    kStart,      // worker, host: start its process
    kTerminate,  // worker: ask its process to end
    kKill,       // worker: end its process
    kPublish,    // text: the new generation, see GenerationText
    kBroken,     // text: the number of a generation that cannot come about any more
    kNotice,     // text: a number above the last notice's
    kFinish,     // status, text: the job is over; after a failure the text says why. The last order
  };
  Kind kind = Kind::kFinish;
  int worker = -1;
  std::string host;
  std::string text;
  int status = 0;
};

class Membership {
 public:
  explicit Membership(const MembershipOptions& options, int64_t now_ns)
      : options_(options), started_ns_(now_ns) {}

  void SetHosts(const std::vector<HostSlots>& hosts) { hosts_ = hosts; }
  // Notes that the worker asks for a generation after `left`, 0 for its first generation.
  void WorkerReady(int worker, uint64_t left, int64_t now_ns);
  // Notes that the worker's process ended; `status` as a shell tells it, 0 for success.
  void WorkerExited(int worker, int status, int64_t now_ns);
  // Returns the orders for now, in order. Called after each of the above, and from time to time.
  std::vector<Action> Advance(int64_t now_ns);

  uint64_t generation() const { return generation_; }
  int generation_size() const { return generation_size_; }  // Returns its ranks.
  int live() const { return static_cast<int>(workers_.size()); }

 private:
  enum class Stage { kBooting, kReady, kMember, kDismissed };
  struct Worker {
    std::string host;
    Stage stage = Stage::kBooting;
    int rank = -1;         // its rank in its last generation
    bool surplus = false;  // Its slot was taken away.
    int64_t since_ns = 0;  // the time at which this stage began
  };
  struct Cooling {
    int failures = 0;
    int64_t until_ns = 0;
  };

  int Count(Stage stage) const;
  int CountOn(const std::string& host) const;
  int SlotsOf(const std::string& host) const;
  bool CoolsDown(const std::string& host, int64_t now_ns) const;
  void Move(Worker& worker, Stage stage, int64_t now_ns);
  void MarkSurplus();
  void StartWorkers(int64_t now_ns);
  void EndSurplus(int64_t now_ns);
  void Notify(int64_t now_ns);
  void PressLaggards(int64_t now_ns);
  void FormGeneration(int64_t now_ns);
  bool MayForm(int64_t now_ns);
  bool StateIsLost() const;
  void Publish(int64_t now_ns);
  void FinishWhenEmpty();
  void Finish(int status, std::string why);

  const MembershipOptions options_;
  const int64_t started_ns_;
  std::vector<HostSlots> hosts_;
  std::map<std::string, Cooling> cooling_;
  std::map<int, Worker> workers_;
  std::vector<Action> actions_;
  int next_worker_ = 0;
  uint64_t generation_ = 0;
  int generation_size_ = 0;
  uint64_t notice_ = 0;
  bool notice_outstanding_ = false;
  int completed_ = 0;           // workers whose program came to its end
  int failed_status_ = 0;       // The status of a member of this generation.
  int last_failure_ = 0;        // the last status of any worker that failed
  int64_t short_since_ns_ = 0;  // Fewer have been ready than needed since then; 0 where enough are.
  bool finished_ = false;
};

}  // namespace tutti::tools
