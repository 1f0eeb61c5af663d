/* Succeeds when the library that the loader chose has the version of the header. */
#include <stdio.h>

#include "nccl.h"

int main(void) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    fprintf(stderr, "ncclGetVersion gave %d, but nccl.h is of %d\n", version, NCCL_VERSION_CODE);
    return 1;
  }
  return 0;
}
