/* Tutti (or any library with NCCL's ABI that takes host memory) under measurement: one process per
 * rank, null stream.
 *
 * Environment besides bench_common.h's: RANK; BENCH_ID_FILE, where rank 0 leaves the id;
 * BENCH_MEMORY, "nccl" for buffers from ncclMemAlloc or "plain". */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_common.h"

static ncclComm_t comm;
static int my_rank;
static char sentence[512];

static const char* Explain(const char* doing, ncclResult_t result) {
  if (result == ncclSuccess) return NULL;
  snprintf(sentence, sizeof(sentence), "%s: %s: %s", doing, ncclGetErrorString(result),
           ncclGetLastError(comm));
  for (char* c = sentence; *c != '\0'; ++c) {
    if (*c == '\n') *c = ' '; /* an answer to the driver is one line */
  }
  return sentence;
}

/* Rank 0 writes the id into a temporary file and renames the complete file; the other ranks poll.
 * No deadline is needed here, because the driver ends a group that takes too long. */
static const char* ShareId(ncclUniqueId* id) {
  const char* path = getenv("BENCH_ID_FILE");
  char draft[512];
  if (path == NULL) return "BENCH_ID_FILE is not set";
  if (my_rank != 0) {
    for (;;) {
      FILE* file = fopen(path, "rb");
      const size_t got = file == NULL ? 0 : fread(id, 1, sizeof(*id), file);
      if (file != NULL) fclose(file);
      if (got == sizeof(*id)) return NULL;
      usleep(1000);
    }
  }
  const ncclResult_t result = ncclGetUniqueId(id);
  if (result != ncclSuccess) return Explain("ncclGetUniqueId", result);
  snprintf(draft, sizeof(draft), "%s.draft", path);
  FILE* file = fopen(draft, "wb");
  const int written = file != NULL && fwrite(id, sizeof(*id), 1, file) == 1;
  if (file == NULL || fclose(file) != 0 || !written || rename(draft, path) != 0)
    return "cannot write the id file";
  return NULL;
}

static const char* Start(int* rank, int ranks) {
  const char* text = getenv("RANK");
  ncclUniqueId id;
  if (text == NULL) return "RANK is not set";
  *rank = my_rank = atoi(text);
  const char* trouble = ShareId(&id);
  if (trouble != NULL) return trouble;
  return Explain("ncclCommInitRank", ncclCommInitRank(&comm, ranks, id, my_rank));
}

static const char* Call(enum BenchCollective collective, float* send, float* recv, size_t count) {
  switch (collective) {
    case kAllReduce:
      return Explain("ncclAllReduce",
                     ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, comm, NULL));
    case kAllGather:
      return Explain("ncclAllGather", ncclAllGather(send, recv, count, ncclFloat32, comm, NULL));
    case kReduceScatter:
      return Explain("ncclReduceScatter",
                     ncclReduceScatter(send, recv, count, ncclFloat32, ncclSum, comm, NULL));
    case kBroadcast:
      return Explain("ncclBcast",
                     ncclBcast(my_rank == 0 ? send : recv, count, ncclFloat32, 0, comm, NULL));
    case kAlltoAll:
      return Explain("ncclAlltoAll", ncclAlltoAll(send, recv, count, ncclFloat32, comm, NULL));
    default:
      return "no such collective";
  }
}

static const char* Allocate(void** memory, size_t bytes) {
  return Explain("ncclMemAlloc", ncclMemAlloc(memory, bytes));
}

static void Stop(void) { ncclCommDestroy(comm); }

int main(void) {
  const char* memory = getenv("BENCH_MEMORY");
  const int from_library = memory != NULL && strcmp(memory, "nccl") == 0;
  const struct BenchPeer peer = {
      .start = Start, .call = Call, .allocate = from_library ? Allocate : NULL, .stop = Stop};
  return BenchMain(&peer);
}
