/* libtutti_audit.so: with LD_AUDIT=/path/libtutti_audit.so a program and its children load the
 * libnccl.so.2 beside this file, whatever path they ask for. Programs without libnccl.so.2 are left
 * as they are. TUTTI_NCCL=0 switches the exchange off.
 *
 * The loader calls the functions below (rtld-audit(7)) in a name space of their own, before the
 * first instruction of the program. */

#define _GNU_SOURCE
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the library lies, from this file's folder on; overlay/ is laid out as NVIDIA's package. */
static const char kLibrary[] = "overlay/nvidia/nccl/lib/libnccl.so.2";

static char library[PATH_MAX];

/* Sets `folder` to the folder of the file that the memory of `library` belongs to. A callback of
 * dl_iterate_phdr, because every glibc has dl_iterate_phdr. */
static int FindFolder(struct dl_phdr_info* info, size_t size, void* folder) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    if ((uintptr_t)library - begin >= info->dlpi_phdr[i].p_memsz) continue;
    const char* const slash = strrchr(info->dlpi_name, '/');
    if (slash) snprintf(folder, PATH_MAX, "%.*s/", (int)(slash - info->dlpi_name), info->dlpi_name);
    return 1;
  }
  return 0;
}

/* Sets `library`. Without the file `library` stays empty, and no library is exchanged. */
static void FindLibrary(void) {
  char folder[PATH_MAX] = "";
  dl_iterate_phdr(FindFolder, folder);
  const int length = snprintf(library, sizeof(library), "%s%s", folder, kLibrary);
  if ((size_t)length < sizeof(library) && access(library, R_OK) == 0) return;
  fprintf(stderr, "tutti: %s is not there, so programs get the libnccl.so.2 that they have\n",
          library);
  library[0] = '\0';
}

/* Returns the version of the interface. With 0 the loader forgets this library. */
unsigned int la_version(unsigned int offered) {
  const char* const asked = getenv("TUTTI_NCCL");
  if (asked && strcmp(asked, "0") == 0) return 0;
  FindLibrary();
  if (library[0] == '\0') return 0;
  return offered < LAV_CURRENT ? offered : LAV_CURRENT;
}

/* Returns the name to look for in place of `name`. The loader calls la_objsearch with the name in
 * the program, and then with each place of a search; the name in the program is enough. */
char* la_objsearch(const char* name, uintptr_t* cookie, unsigned int flag) {
  (void)cookie;
  if (flag != LA_SER_ORIG) return (char*)name;
  const char* const slash = strrchr(name, '/');
  const char* const file = slash ? slash + 1 : name;
  return strcmp(file, "libnccl.so.2") == 0 ? library : (char*)name;
}
