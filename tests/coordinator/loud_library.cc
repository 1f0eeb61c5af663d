// A library that shows when a process loads the library: its constructor makes the file that
// LOUD_FILE names.

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace {

__attribute__((constructor)) void MakeFile() {
  if (const char* const path = std::getenv("LOUD_FILE"))
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

}  // namespace
