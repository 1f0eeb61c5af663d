#pragma once

// Filters InfiniBand devices and ports by NCCL_IB_HCA, a list of device names with commas. A name
// matches every device whose name begins so; with "=" in front of the list a name matches only the
// device of exactly that name. ":2" behind a name means port 2 only. "^" in front of the list
// excludes the named devices and ports.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti {

class HcaFilter {
 public:
  // Returns InvalidUsage for an entry without a name, or with a port outside 1 to 255.
  static Result<HcaFilter> Parse(std::string_view text);

  // Returns whether the filter admits port `port` of `device`. An empty filter admits all.
  bool Admits(std::string_view device, uint8_t port) const;

 private:
  struct Entry {
    std::string name;
    uint8_t port = 0;  // 0: all ports
  };
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<Entry> entries_;
};

}  // namespace tutti
