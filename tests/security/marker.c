/* A library that somebody else would have a rank load: its constructor leaves a file as a proof. */

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void LeaveMark(void) {
  const char* const path = getenv("MARK");
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) close(fd);
}
