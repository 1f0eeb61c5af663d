#include "sys/own_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace tutti {
namespace {

// Ends this process, with status 0 where all is as it should be.
void UseUpAllAndEnd() {
  const int next = dup(0);
  const rlimit limit = {static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};
  setrlimit(RLIMIT_NOFILE, &limit);
  int opened = 0;
  const Status ran = WithOwnDescriptors([&] {
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) ++opened;
  });
  const bool untouched = fcntl(next, F_GETFD) != -1 && dup(0) == -1;
  _exit(ran.ok() && untouched && opened == kOwnDescriptors ? 0 : 1);
}

TEST(OwnDescriptorsTest, AreThereWhereTheProcessHasNone) {
  EXPECT_EXIT(UseUpAllAndEnd(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tutti
