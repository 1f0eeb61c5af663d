#pragma once

// A barrier between the ranks of a measurement that does not go through the library under test.
//
// Ranks of one host share a page of memory: they leave within a fraction of a microsecond of each
// other, which is what makes short operations measurable. The page is a memfd of the driver's
// process that ranks open through /proc/<pid>/fd; a random token proves that they found the right
// one. Ranks that cannot (other hosts) ask the driver.

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

class Barrier {
 public:
  virtual ~Barrier() = default;
  // Returns when all ranks have called it as often as this one has.
  virtual Status Wait() = 0;
};

// Where the page is, for ranks of the same host.
struct BarrierPage {
  int pid = 0;
  int fd = -1;
  uint64_t token = 0;
};

// The driver's side: owns the page.
class BarrierPageOwner {
 public:
  static Result<BarrierPageOwner> Create();
  BarrierPage page() const { return page_; }

 private:
  UniqueFd fd_;
  BarrierPage page_;
};

// Fails when the page is not there: another host, another PID namespace. `num_ranks` all take part.
// `patient`: ranks outnumber cores, so waiting sleeps at once.
Result<std::unique_ptr<Barrier>> OpenBarrierPage(const BarrierPage& page, int num_ranks,
                                                 bool patient);

}  // namespace tutti::tools
