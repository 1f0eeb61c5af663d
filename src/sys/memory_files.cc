#include "sys/memory_files.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace tutti {

Status CheckMemoryFilesAllowed() {
  const UniqueFd fd(memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int error = errno;
  if (fd.valid() || (error != EPERM && error != EACCES && error != ENOSYS)) return Status::Ok();
  return ErrnoError(error, "this process may not make shared memory (memfd_create)");
}

}  // namespace tutti
