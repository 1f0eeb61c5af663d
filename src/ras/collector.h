#pragma once

// Collects the report of a job: begins with the part of this machine and asks a process of every
// other host for the part of that host. The ranks of a communicator that no part shows yet are
// taken for ranks of other hosts. A host is asked through one rank first, and through its other
// ranks when the first rank has not answered or does not know them. Questions make no links: a host
// stays missing where no links lead to one of its ranks.
//
// Every rank is asked at most once. A rank that has not answered an earlier question is asked, and
// not waited for: polls of a job with a silent host stay quick. The thread of the server owns a
// Collector; time and letters come from outside.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ras/report.h"

namespace tutti::ras {

class Collector {
 public:
  // A rank of a communicator.
  using Seat = std::pair<uint64_t, int>;
  // Sends a question to the process of a rank. Returns false where this process has no link with
  // the rank, or the rank is lost; another rank of the same host is then asked.
  using Ask = std::function<bool(const Seat& seat, uint64_t question)>;

  // Asks at most this many processes at a time: their answers tell which others to ask.
  static constexpr size_t kMostAsked = 64;

  // `silent` has the ranks that have not answered within `patience_ns`. The collector adds such
  // ranks; the owner of `silent` removes a rank when an answer to a question of that rank comes,
  // also after the end of the collector. `next_question` numbers the questions of all collectors.
  // Both must outlive the collector. Waits until `deadline_ns` for all answers together.
  Collector(Report own, std::set<Seat>& silent, Ask ask, uint64_t& next_question,
            int64_t patience_ns, int64_t deadline_ns)
      : report_(std::move(own)),
        silent_(silent),
        ask_(std::move(ask)),
        next_question_(next_question),
        patience_ns_(patience_ns),
        deadline_ns_(deadline_ns) {}

  // Asks further processes. Returns when to call again, at the latest; 0 where the report is whole,
  // as far as it can be.
  int64_t Advance(int64_t now_ns);
  // Takes the answer to a question. Returns false where the question is not of this collector.
  bool OnAnswer(uint64_t question, const Report& told);

  const Report& report() const { return report_; }
  int num_timeouts() const { return num_timeouts_; }

 private:
  struct Question {
    Seat seat;
    std::string host;
    int64_t until_ns = 0;
  };

  void DropLate(int64_t now_ns);
  void AskFurther(int64_t now_ns);

  Report report_;
  std::set<Seat>& silent_;
  const Ask ask_;
  uint64_t& next_question_;
  const int64_t patience_ns_, deadline_ns_;

  std::map<uint64_t, Question> open_;  // by number
  std::set<uint64_t> late_;            // questions that are not waited for
  std::set<Seat> asked_;
  std::set<std::string> troubled_;  // hosts where a rank has not answered
  int num_timeouts_ = 0;
};

}  // namespace tutti::ras
