#define _GNU_SOURCE
#include "bench_common.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const char* const kNames[kCollectives] = {"allreduce", "allgather", "reduce_scatter",
                                                 "broadcast", "alltoall"};

/* ---- Barrier: a counter and a generation in a mapped file, the same for every library, to
 * keep a library's own barrier out of the measurement. ---- */

struct BenchBarrier {
  int arrived;
  char pad1[60]; /* on lines of their own: waiters poll the generation while others count */
  int generation;
  char pad2[60];
};

/* A rank that has waited so long, some 20 us, yields between looks: threads of its library, which
 * share its core, may still have to move what another rank waits for, and under a real-time policy
 * (chrt) they would get the core only at the end of a time slice of 100 ms. */
static const int kBarrierLooks = 1024;

static int barrier_ranks;
static int barrier_yield;

struct BenchBarrier* BenchBarrierOpen(const char* path, int ranks, int yield) {
  barrier_ranks = ranks;
  barrier_yield = yield;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  void* memory = mmap(NULL, sizeof(struct BenchBarrier), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? NULL : memory;
}

void BenchBarrierWait(struct BenchBarrier* barrier) {
  const int generation = __atomic_load_n(&barrier->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == barrier_ranks) {
    __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&barrier->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  for (int looks = 0; __atomic_load_n(&barrier->generation, __ATOMIC_ACQUIRE) == generation;
       ++looks) {
    if (barrier_yield || looks >= kBarrierLooks) {
      sched_yield();
    } else {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
}

void BenchPin(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)(rank % (int)sysconf(_SC_NPROCESSORS_ONLN)), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

/* ---- Buffers: successive calls take successive slots of a pool. Small messages get a page and a
 * line each, so that they share neither lines nor cache sets; together they stay within a core's
 * second-level cache, as the small buffers of a real program do. From 64 KB on they go round 32 MB,
 * which is more than that cache. The largest have the pool's room for one or two, each of them
 * larger than any cache of a core. ---- */

enum { kMaxSlots = 256 };
static const size_t kRotationBytes = (size_t)32 << 20;

size_t BenchStride(size_t bytes) {
  const size_t page = 4096;
  const size_t whole_pages = (bytes + page - 1) / page * page;
  return bytes < 16 * page ? whole_pages + 64 : whole_pages;
}

size_t BenchSlots(size_t bytes, size_t pool_bytes) {
  const size_t stride = BenchStride(bytes);
  size_t slots = kRotationBytes / stride;
  if (slots > kMaxSlots) slots = kMaxSlots;
  if (slots < 2) slots = 2;
  if (slots > pool_bytes / stride) slots = pool_bytes / stride;
  return slots;
}

/* ---- One rank ---- */

struct Rank {
  const struct BenchPeer* peer;
  int rank;
  int ranks;
  FILE* from_driver;
  FILE* to_driver;
  struct BenchBarrier* barrier;
  size_t pool_bytes;
  float* send_pool;
  float* recv_pool;
};

struct Command {
  enum BenchCollective collective;
  size_t bytes; /* as nccl-tests counts: the larger of a rank's two buffers */
  size_t count; /* elements of a shard */
  int warmup;
  int iterations;
  int batch;
  int check;
};

static long long EnvironmentNumber(const char* name) {
  const char* text = getenv(name);
  if (text == NULL) {
    fprintf(stderr, "bench: %s is not set; this program is started by bench/peers/run.py\n", name);
    exit(2);
  }
  return atoll(text);
}

static void Say(struct Rank* r, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(r->to_driver, format, arguments);
  va_end(arguments);
  fputc('\n', r->to_driver);
  fflush(r->to_driver);
}

static int64_t NowNs(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The rank before the library knows it, for pinning before the library starts threads that inherit
 * the pin. */
static int LauncherRank(void) {
  static const char* const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    const char* text = getenv(names[i]);
    if (text != NULL) return atoi(text);
  }
  fprintf(stderr, "bench: no launcher gave this process its rank\n");
  exit(2);
}

static int ConnectDriver(struct Rank* r) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char* path = getenv("BENCH_SOCKET");
  if (path == NULL || strlen(path) >= sizeof(address.sun_path)) return -1;
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0) return -1;
  r->from_driver = fdopen(fd, "r");
  r->to_driver = fdopen(dup(fd), "w");
  return r->from_driver != NULL && r->to_driver != NULL ? 0 : -1;
}

/* Returns element `index` of rank `rank`'s send pool. Small whole numbers: sums are exact in any
 * order. */
static float Pattern(int rank, size_t index) { return (float)(index % 1021) + 3.0F * (float)rank; }

static const char* MakePools(struct Rank* r) {
  void* pools[2];
  for (int i = 0; i < 2; ++i) {
    if (r->peer->allocate != NULL) {
      const char* trouble = r->peer->allocate(&pools[i], r->pool_bytes);
      if (trouble != NULL) return trouble;
    } else {
      pools[i] =
          mmap(NULL, r->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pools[i] == MAP_FAILED) return "no memory for the buffers";
    }
  }
  r->send_pool = pools[0];
  r->recv_pool = pools[1];
  for (size_t i = 0; i < r->pool_bytes / sizeof(float); ++i) {
    r->send_pool[i] = Pattern(r->rank, i);
    r->recv_pool[i] = 0;
  }
  return NULL;
}

static size_t SlotOffset(const struct Rank* r, const struct Command* c, size_t call) {
  return call % BenchSlots(c->bytes, r->pool_bytes) * (BenchStride(c->bytes) / sizeof(float));
}

static const char* CallSlot(struct Rank* r, const struct Command* c, size_t offset) {
  return r->peer->call(c->collective, r->send_pool + offset, r->recv_pool + offset, c->count);
}

static size_t ReceivedCount(const struct Rank* r, const struct Command* c) {
  const int many = c->collective == kAllGather || c->collective == kAlltoAll;
  return many ? c->count * (size_t)r->ranks : c->count;
}

static float Expected(const struct Rank* r, const struct Command* c, size_t offset, size_t i) {
  const size_t mine = offset + (size_t)r->rank * c->count;
  const int from = (int)(i / c->count);
  float sum = 0;
  switch (c->collective) {
    case kAllGather:
      return Pattern(from, offset + i % c->count);
    case kAlltoAll:
      return Pattern(from, mine + i % c->count);
    case kBroadcast:
      return Pattern(0, offset + i);
    case kReduceScatter:
      for (int s = 0; s < r->ranks; ++s) sum += Pattern(s, mine + i);
      return sum;
    default:
      for (int s = 0; s < r->ranks; ++s) sum += Pattern(s, offset + i);
      return sum;
  }
}

/* Makes a call and checks its result in up to a thousand places. Returns NULL, or fills `text`. */
static const char* CheckOnce(struct Rank* r, const struct Command* c, char* text,
                             size_t text_size) {
  const size_t offset = SlotOffset(r, c, 1);
  const size_t received = ReceivedCount(r, c);
  const size_t step = received / 1000 + 1;
  float* recv = r->recv_pool + offset;
  const int in_place_root = c->collective == kBroadcast && r->rank == 0;
  for (size_t i = 0; i < received; i += step) recv[i] = NAN;
  recv[received - 1] = NAN;
  const char* trouble = CallSlot(r, c, offset);
  if (trouble != NULL || in_place_root) return trouble;
  for (size_t sample = 0;; sample += step) {
    const size_t i = sample < received ? sample : received - 1;
    const float expected = Expected(r, c, offset, i);
    if (recv[i] != expected) {
      snprintf(text, text_size, "%s of %zu bytes: element %zu on rank %d is %g, not %g",
               kNames[c->collective], c->bytes, i, r->rank, (double)recv[i], (double)expected);
      return text;
    }
    if (i == received - 1) break;
  }
  return NULL;
}

/* The measuring loop. Ranks leave the barrier together; then each makes its calls
 * back to back. */
static const char* Measure(struct Rank* r, const struct Command* c, int64_t* times_ns) {
  size_t call = 0;
  for (int i = -c->warmup; i < c->iterations; ++i) {
    BenchBarrierWait(r->barrier);
    const int64_t start_ns = NowNs();
    for (int b = 0; b < c->batch; ++b) {
      const char* trouble = CallSlot(r, c, SlotOffset(r, c, call++));
      if (trouble != NULL) return trouble;
    }
    if (i >= 0) times_ns[i] = NowNs() - start_ns;
  }
  return NULL;
}

static int ParseCommand(const struct Rank* r, const char* line, struct Command* c) {
  char name[32];
  if (sscanf(line, "measure %31s %zu %d %d %d %d", name, &c->bytes, &c->warmup, &c->iterations,
             &c->batch, &c->check) != 6) {
    return -1;
  }
  for (c->collective = 0; c->collective < kCollectives; ++c->collective) {
    if (strcmp(name, kNames[c->collective]) == 0) break;
  }
  if (c->collective == kCollectives || c->bytes > r->pool_bytes || c->warmup < 0 ||
      c->iterations < 0 || c->batch < 1) {
    return -1;
  }
  const int whole = c->collective == kAllReduce || c->collective == kBroadcast;
  c->count = c->bytes / sizeof(float) / (whole ? 1 : (size_t)r->ranks);
  if (c->count == 0) {
    c->count = 1;
    c->bytes = sizeof(float) * (size_t)r->ranks;
  }
  return 0;
}

/* A rank with a wrong result measures all the same, because the others will wait for it at the
 * barrier. */
static void Obey(struct Rank* r, const struct Command* c) {
  char text[256];
  int64_t* times_ns = calloc((size_t)c->iterations + 1, sizeof(*times_ns));
  const char* checked = c->check ? CheckOnce(r, c, text, sizeof(text)) : NULL;
  const char* trouble = times_ns == NULL  ? "no memory for the times"
                        : checked == text ? NULL
                                          : checked;
  if (trouble == NULL) trouble = Measure(r, c, times_ns);
  if (trouble != NULL) {
    Say(r, "error %s", trouble);
  } else if (checked != NULL) {
    Say(r, "wrong %s", checked);
  } else {
    fputs("times", r->to_driver);
    for (int i = 0; i < c->iterations; ++i) fprintf(r->to_driver, " %lld", (long long)times_ns[i]);
    Say(r, "");
  }
  free(times_ns);
}

int BenchMain(const struct BenchPeer* peer) {
  struct Rank r = {.peer = peer, .ranks = (int)EnvironmentNumber("BENCH_RANKS")};
  r.pool_bytes = (size_t)EnvironmentNumber("BENCH_POOL_BYTES");
  if (EnvironmentNumber("BENCH_PIN")) BenchPin(LauncherRank());
  r.barrier =
      BenchBarrierOpen(getenv("BENCH_BARRIER"), r.ranks, (int)EnvironmentNumber("BENCH_YIELD"));
  if (r.barrier == NULL || ConnectDriver(&r) != 0) {
    fprintf(stderr, "bench: cannot reach the driver: %s\n", strerror(errno));
    return 2;
  }
  const char* trouble = peer->start(&r.rank, r.ranks);
  if (trouble == NULL) trouble = MakePools(&r);
  if (trouble != NULL) {
    Say(&r, "error %s", trouble);
    return 1;
  }
  Say(&r, "hello %d", r.rank);

  char line[256];
  while (fgets(line, sizeof(line), r.from_driver) != NULL && strncmp(line, "quit", 4) != 0) {
    struct Command command;
    if (ParseCommand(&r, line, &command) == 0) {
      Obey(&r, &command);
    } else {
      Say(&r, "error not a command: %.*s", (int)strcspn(line, "\n"), line);
    }
  }
  peer->stop();
  return 0;
}
