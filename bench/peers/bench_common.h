/* What every benchmarked library's program has in common: the conversation with the driver, the
 * barrier, the buffers and the one measuring loop. A program for a library supplies a BenchPeer and
 * calls BenchMain.
 *
 * Conversation, over a Unix socket, in lines:
 *   rank to driver   hello RANK
 *   driver to rank   measure COLLECTIVE BYTES WARMUP ITERATIONS BATCH CHECK
 *   rank to driver   times NS NS ...      one number an iteration: the time of its BATCH calls
 *                    wrong SENTENCE | error SENTENCE
 *   driver to rank   quit
 * Between two commands a rank is blocked in read() and costs no CPU, so that the library whose turn
 * it is has the machine to itself.
 *
 * Environment, set by the driver: BENCH_SOCKET, BENCH_BARRIER (paths), BENCH_RANKS,
 * BENCH_POOL_BYTES, BENCH_PIN (1: rank r on core r), BENCH_YIELD (1: the barrier yields, for more
 * ranks than cores).
 */
#ifndef BENCH_COMMON_H_
#define BENCH_COMMON_H_

#include <stddef.h>
#include <stdint.h>

enum BenchCollective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAlltoAll,
  kCollectives
};

/* A library under measurement. All calls return NULL, or a sentence if they fail. */
struct BenchPeer {
  /* Joins the job. Called once, after this process was pinned. */
  const char* (*start)(int* rank, int ranks);
  /* One collective on float32. `count` is the elements of one rank's shard: the whole buffer for
   * kAllReduce and kBroadcast, one rank's part for the others. kBroadcast is in place, from rank 0:
   * the root reads `send`, the others write `recv`. */
  const char* (*call)(enum BenchCollective collective, float* send, float* recv, size_t count);
  /* Memory for a buffer pool; NULL member: pages from the system. */
  const char* (*allocate)(void** memory, size_t bytes);
  void (*stop)(void);
};

/* Runs the conversation to its end and returns the exit status. */
int BenchMain(const struct BenchPeer* peer);

/* The parts that programs in other languages use through a shared library. */
struct BenchBarrier;
struct BenchBarrier* BenchBarrierOpen(const char* path, int ranks, int yield);
void BenchBarrierWait(struct BenchBarrier* barrier);
void BenchPin(int rank);

/* How far apart buffers lie for messages of `bytes`, and how many are taken in turn. See
 * bench_common.c. */
size_t BenchStride(size_t bytes);
size_t BenchSlots(size_t bytes, size_t pool_bytes);

#endif /* BENCH_COMMON_H_ */
