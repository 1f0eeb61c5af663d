#pragma once

// Joins the ranks of a measurement in a barrier outside the library under test.
//
// Ranks of one host share a page of memory and leave the barrier within a fraction of a microsecond
// of each other, close enough to measure short operations. The page is a memfd of the driver's
// process, and ranks open the page through /proc/<pid>/fd; a random token proves that a rank found
// the right page. Ranks of further hosts ask the driver.

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

class Barrier {
 public:
  virtual ~Barrier() = default;
  // Returns when all ranks have called Wait equally often.
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
// driver is on another host or in another PID namespace. With `patient`, for ranks that outnumber
// the cores, waiting sleeps at once.
Result<std::unique_ptr<Barrier>> OpenBarrierPage(const BarrierPage& page, int num_ranks,
                                                 bool patient);

}  // namespace tutti::tools
