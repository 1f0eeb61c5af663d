/* libtutti_audit.so: LD_AUDIT=/path/libtutti_audit.so gives a program that asks for libnccl.so.2,
 * by whatever path, the one that lies beside this file, and its children likewise. Programs that
 * ask for none are left as they are. TUTTI_NCCL=0 switches it off.
 *
 * The loader calls these functions (rtld-audit(7)) in a name space of their own, before the
 * program's first instruction. */

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

/* Sets `folder` to that of the file whose memory `library` is in; of dl_iterate_phdr, which every
 * glibc has. */
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

/* Sets `library`; it stays empty where the file is not there, and then nothing is exchanged. */
static void FindLibrary(void) {
  char folder[PATH_MAX] = "";
  dl_iterate_phdr(FindFolder, folder);
  const int length = snprintf(library, sizeof(library), "%s%s", folder, kLibrary);
  if ((size_t)length < sizeof(library) && access(library, R_OK) == 0) return;
  fprintf(stderr, "tutti: %s is not there, so programs get the libnccl.so.2 that they have\n",
          library);
  library[0] = '\0';
}

/* Returns the version of the interface that is spoken; 0 has the loader forget this library. */
unsigned int la_version(unsigned int offered) {
  const char* const asked = getenv("TUTTI_NCCL");
  if (asked && strcmp(asked, "0") == 0) return 0;
  FindLibrary();
  if (library[0] == '\0') return 0;
  return offered < LAV_CURRENT ? offered : LAV_CURRENT;
}

/* Returns the name that is to be looked for in place of `name`. Called with what was asked for,
 * and then with each place where the loader would look; the first is enough. */
char* la_objsearch(const char* name, uintptr_t* cookie, unsigned int flag) {
  (void)cookie;
  if (flag != LA_SER_ORIG) return (char*)name;
  const char* const slash = strrchr(name, '/');
  const char* const file = slash ? slash + 1 : name;
  return strcmp(file, "libnccl.so.2") == 0 ? library : (char*)name;
}
