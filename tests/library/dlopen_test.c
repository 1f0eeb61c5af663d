/*
 * Looks functions up in libtutti.so and libnccl.so.2 as programs do that load NCCL at run time.
 * Both names must give the same functions, or a process that reaches the library both ways would
 * have two copies of its state. Usage: dlopen_test LIBTUTTI LIBNCCL
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"

static void* Open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  return library;
}

int main(int argc, char** argv) {
  const char* names[] = {"ncclGetVersion",  "pncclGetVersion", "ncclAllReduce",
                         "ncclGetUniqueId", "ncclCommDestroy", "ncclGroupEnd"};
  size_t i;
  int version = 0;
  ncclResult_t (*get_version)(int*) = NULL;
  void* found;
  void *tutti, *nccl;
  if (argc != 3) return 2;
  /* libnccl alone first, so that it must bring libtutti along by itself. */
  nccl = Open(argv[2]);
  tutti = Open(argv[1]);
  if (nccl == NULL || tutti == NULL) return 1;
  for (i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    found = dlsym(nccl, names[i]);
    if (found == NULL || found != dlsym(tutti, names[i])) {
      fprintf(stderr, "%s is %p in libnccl and %p in libtutti\n", names[i], found,
              dlsym(tutti, names[i]));
      return 1;
    }
  }
  found = dlsym(nccl, "ncclGetVersion");
  memcpy(&get_version, &found, sizeof(found));
  if (get_version(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    fprintf(stderr, "ncclGetVersion gave %d\n", version);
    return 1;
  }
  if (dlsym(nccl, "ncclNoSuchFunction") != NULL) return 1;
  return 0;
}
