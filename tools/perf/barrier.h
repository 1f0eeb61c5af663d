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

// Says where ranks of the same host find the page.
struct BarrierPage {
  int pid = 0;
  int fd = -1;
  uint64_t token = 0;
};

// Makes and owns the page, in the driver's process.
class BarrierPageOwner {
 public:
  static Result<BarrierPageOwner> Create();
  BarrierPage page() const { return page_; }

 private:
  UniqueFd fd_;
  BarrierPage page_;
};

// Opens the page for one of `num_ranks` ranks. Fails where the page cannot be reached, because the
// driver is on another host or in another PID namespace. With `patient`, which is for ranks that
// outnumber the cores, waiting sleeps at once.
Result<std::unique_ptr<Barrier>> OpenBarrierPage(const BarrierPage& page, int num_ranks,
                                                 bool patient);

}  // namespace tutti::tools
