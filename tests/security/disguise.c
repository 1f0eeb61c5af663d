/* What an attacker would change in the library: the process takes itself, and the far end of every
   local socket, for a certain user. The kernel knows better. Loaded before the C library
   (LD_PRELOAD), and without effect until `DisguiseAs` is called. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

static int disguised;
static uid_t disguise;

void DisguiseAs(uid_t user) {
  disguise = user;
  disguised = 1;
}

uid_t getuid(void) {
  uid_t (*const next)(void) = (uid_t(*)(void))dlsym(RTLD_NEXT, "getuid");
  return disguised ? disguise : next();
}

int getsockopt(int fd, int level, int option, void* restrict value, socklen_t* restrict size) {
  int (*const next)(int, int, int, void*, socklen_t*) =
      (int (*)(int, int, int, void*, socklen_t*))dlsym(RTLD_NEXT, "getsockopt");
  const int result = next(fd, level, option, value, size);
  if (disguised && result == 0 && level == SOL_SOCKET && option == SO_PEERCRED)
    ((struct ucred*)value)->uid = disguise;
  return result;
}
