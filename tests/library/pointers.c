/* With NCCL_CHECK_POINTERS a buffer that is no memory is an error of the call, and the communicator
 * stays usable. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nccl.h"

static int Expect(ncclResult_t found, ncclResult_t expected, const char* what) {
  if (found == expected) return 1;
  fprintf(stderr, "%s gave %d (%s)\n", what, (int)found, ncclGetLastError(NULL));
  return 0;
}

int main(void) {
  float data[4] = {1, 2, 3, 4};
  ncclComm_t comm;
  int good = 1;
  // Far from where the system maps what nobody asks a place for: otherwise a thread's memory may
  // come to lie in the hole.
  char* hole =
      mmap((void*)0x10000000, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (hole == MAP_FAILED || munmap(hole + 4096, 4096) != 0) return 2;
  setenv("NCCL_CHECK_POINTERS", "1", 1);
  if (!Expect(ncclCommInitAll(&comm, 1, NULL), ncclSuccess, "init")) return 1;

  good &= Expect(ncclAllReduce(hole + 4096, data, 4, ncclFloat32, ncclSum, comm, NULL),
                 ncclInvalidArgument, "a send buffer that is not mapped");
  good &= Expect(ncclAllReduce(data, hole + 4096 - 8, 4, ncclFloat32, ncclSum, comm, NULL),
                 ncclInvalidArgument, "a receive buffer that ends in a hole");
  if (strstr(ncclGetLastError(comm), "receive buffer of 16 bytes") == NULL) {
    fprintf(stderr, "the sentence is: %s\n", ncclGetLastError(comm));
    good = 0;
  }
  good &= Expect(ncclAllReduce(data, hole, 4, ncclFloat32, ncclSum, comm, NULL), ncclSuccess,
                 "mapped buffers");
  good &= memcmp(data, hole, sizeof(data)) == 0;
  good &= Expect(ncclCommDestroy(comm), ncclSuccess, "destroy");
  return good ? 0 : 1;
}
