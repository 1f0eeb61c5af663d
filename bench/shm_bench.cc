// Compares the costs of the ways of moving bytes from one process to another process of the same
// machine. Each byte ends up in a buffer of the receiver:
//
//   fifo <slot>   copied into a ring of slots and out again, the two halves overlapping; two copies
//                 on two cores
//   pull          the receiver reads the sender's memory with process_vm_readv; one copy, by the
//                 kernel
//   push          the sender writes the receiver's memory with process_vm_writev; one copy, too
//   mapped        the receiver copies from the sender's buffer in mapped memory (ncclMemAlloc); one
//                 copy
//   memcpy        for comparison: one process copies between two buffers of its own
//
// Two processes run, each pinned to a core. A time is from the moment both stand ready to the
// moment the sender may use its buffer again. Methods take turns within each round. Buffers rotate
// through --rotate bytes on either side, to keep a transfer from finding its data in the cache.
// Printed: median and 10th percentile over all transfers of all rounds.
//
//   shm_bench [--sizes 4K,64K,1M] [--rounds 9] [--rotate 128M] [--cpus 0,1] [--huge-dir DIR]
//   [--lookup]
//
// --huge-dir: the mapped buffers are files of this directory, a tmpfs mounted with huge=always; for
// systems whose shmem_enabled forbids huge pages to memfd:
//   unshare -m sh -c 'mount -t tmpfs -o huge=always none /mnt && shm_bench --huge-dir /mnt'
// --lookup: measures only HostMemory::Find, and fetching and mapping an allocation.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/copy.h"
#include "base/wait.h"
#include "connection/fifo.h"
#include "sys/shared_memory.h"
#include "transport/shm/registry.h"
#include "transport/shm/remote_copy.h"

namespace tutti {
namespace {

struct Options {
  std::vector<size_t> sizes;
  int rounds = 9;
  size_t rotate_bytes = size_t{128} << 20;
  int cpus[2] = {0, 1};
  std::string huge_dir;
  bool lookup = false;
};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "shm_bench: %s\n", why.c_str());
  std::exit(1);
}
void Require(const Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

// Copies into the memory of another process, which the library never does.
void WriteRemote(pid_t pid, std::byte* to, std::byte* from, size_t bytes) {
  const iovec local = {from, bytes}, remote = {to, bytes};
  if (process_vm_writev(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    Die("writing the memory of another process failed");
}

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0)
    Die("cannot pin to core " + std::to_string(cpu));
}

// Holds the signals of the two processes: two counters, each written by one side.
struct Control {
  alignas(64) std::atomic<uint64_t> sender{0};
  alignas(64) std::atomic<uint64_t> receiver{0};
};

// Waits as the library does before the library sleeps, but never sleeps, because a wake-up would be
// timed.
void WaitFor(const std::atomic<uint64_t>& word, uint64_t value) {
  const WaitPolicy policy;
  Backoff backoff(policy);
  while (word.load(std::memory_order_acquire) < value)
    if (!backoff.Pause()) sched_yield();
}

// Memory that both processes map at the same address, because the child inherits the mapping.
std::byte* MapShared(size_t bytes, const std::string& huge_dir, std::vector<SharedMemory>& keep) {
  if (huge_dir.empty()) {
    auto memory = SharedMemory::Create(bytes, HugePages::kAdvise);
    if (!memory.ok()) Require(memory.status());
    keep.push_back(std::move(memory).value());
    return keep.back().data();
  }
  const size_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const int fd = open(huge_dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(rounded)) != 0)
    Die("cannot make a file in " + huge_dir);
  auto* area = static_cast<std::byte*>(
      mmap(nullptr, rounded + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  area += (kHugePageBytes - reinterpret_cast<uintptr_t>(area) % kHugePageBytes) % kHugePageBytes;
  if (mmap(area, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    Die("cannot map " + huge_dir);
  return area;
}

std::byte* MapPrivate(size_t bytes) {
  void* area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) Die("out of memory");
  return static_cast<std::byte*>(area);
}

enum class Method { kFifo16K, kFifo64K, kFifo256K, kPull, kPush, kMapped, kMemcpy };
struct MethodInfo {
  Method method;
  const char* name;
  size_t slot_bytes;
};
constexpr std::array<MethodInfo, 7> kMethods = {{{Method::kFifo16K, "fifo 16K", 16 << 10},
                                                 {Method::kFifo64K, "fifo 64K", 64 << 10},
                                                 {Method::kFifo256K, "fifo 256K", 256 << 10},
                                                 {Method::kPull, "pull", 0},
                                                 {Method::kPush, "push", 0},
                                                 {Method::kMapped, "mapped", 0},
                                                 {Method::kMemcpy, "memcpy", 0}}};

// The buffers of one size. `source` is the sender's private memory, `mapped` the sender's shared
// memory, and `target` the receiver's private memory. Both processes know the addresses, because
// the buffers were mapped before the fork and written afterwards.
struct Buffers {
  size_t bytes;
  size_t count;
  std::byte* source;
  std::byte* mapped;
  std::byte* target;
  std::byte* At(std::byte* base, uint64_t turn) const { return base + turn % count * bytes; }
};

class Side {
 public:
  Side(bool is_sender, pid_t peer, Control& control, const std::array<FifoView, 3>& rings)
      : is_sender_(is_sender), peer_(peer), control_(control) {
    for (size_t i = 0; i < rings.size(); ++i) {
      senders_[i] = FifoSender(rings[i]);
      receivers_[i] = FifoReceiver(rings[i]);
    }
  }

  // Runs a transfer; returns its time on the sender and 0 on the receiver.
  int64_t Transfer(Method method, const Buffers& buffers) {
    Meet();
    ++turn_;
    const int64_t start_ns = NowNs();
    switch (method) {
      case Method::kPull:
      case Method::kMapped:
        if (!is_sender_) Fetch(method, buffers);
        break;
      case Method::kPush:
        if (is_sender_)
          WriteRemote(peer_, buffers.At(buffers.target, turn_), buffers.At(buffers.source, turn_),
                      buffers.bytes);
        break;
      case Method::kMemcpy:
        if (is_sender_)
          CopyBytes(buffers.At(buffers.mapped, turn_), buffers.At(buffers.source, turn_),
                    buffers.bytes);
        break;
      default:
        Ring(static_cast<size_t>(method), buffers);
    }
    // The end: the receiver has all data, and the sender knows.
    if (!is_sender_) {
      ++done_;
      if (method == Method::kPush) WaitFor(control_.sender, done_);
      control_.receiver.store(done_, std::memory_order_release);
      return 0;
    }
    control_.sender.store(++done_, std::memory_order_release);
    WaitFor(control_.receiver, done_);
    return NowNs() - start_ns;
  }

  uint64_t next_turn() const { return turn_ + 1; }

  // Both return when both have come.
  void Meet() {
    ++done_;
    (is_sender_ ? control_.sender : control_.receiver).store(done_, std::memory_order_release);
    WaitFor(is_sender_ ? control_.receiver : control_.sender, done_);
  }

 private:
  static uintptr_t Address(const std::byte* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
  }

  void Fetch(Method method, const Buffers& buffers) {
    std::byte* const to = buffers.At(buffers.target, turn_);
    if (method == Method::kMapped) {
      CopyBytes(to, buffers.At(buffers.mapped, turn_), buffers.bytes);
    } else {
      Require(ReadRemote(peer_, to, Address(buffers.At(buffers.source, turn_)), buffers.bytes));
    }
  }

  void Ring(size_t index, const Buffers& buffers) {
    const WaitPolicy policy;
    const size_t slot_bytes = kMethods[index].slot_bytes;
    FifoSender& sender = senders_[index];
    FifoReceiver& receiver = receivers_[index];
    for (size_t at = 0; at < buffers.bytes; at += slot_bytes) {
      const size_t piece = std::min(slot_bytes, buffers.bytes - at);
      Backoff backoff(policy);
      if (is_sender_) {
        std::byte* place;
        while ((place = sender.TryAcquire(piece)) == nullptr)
          if (!backoff.Pause()) sched_yield();
        CopyBytes(place, buffers.At(buffers.source, turn_) + at, piece);
        sender.Publish(piece, 0);
      } else {
        FifoChunk chunk;
        while ((chunk = receiver.TryPeek()).data == nullptr)
          if (!backoff.Pause()) sched_yield();
        CopyBytes(buffers.At(buffers.target, turn_) + at, chunk.data, piece);
        receiver.Release();
      }
    }
  }

  const bool is_sender_;
  const pid_t peer_;
  Control& control_;
  uint64_t done_ = 0;
  uint64_t turn_ = 0;
  std::array<FifoSender, 3> senders_;
  std::array<FifoReceiver, 3> receivers_;
};

// Returns the content of every buffer of the sender at `i`.
std::byte Pattern(size_t i) { return static_cast<std::byte>(i / 64 * 7 + 1); }

void CheckTransfer(Side& side, bool is_sender, Method method, const Buffers& buffers) {
  if (method == Method::kMemcpy) return;
  side.Meet();
  std::byte* const target = buffers.At(buffers.target, side.next_turn());
  if (!is_sender) std::memset(target, 0, buffers.bytes);
  side.Transfer(method, buffers);
  if (is_sender) return;
  const size_t first = static_cast<size_t>(target - buffers.target);
  for (size_t i = 0; i < buffers.bytes; ++i)
    if (target[i] != Pattern(first + i)) Die("the data did not arrive");
}

// Both sides run this same schedule.
void RunSize(Side& side, bool is_sender, const Buffers& buffers, int rounds) {
  const size_t bytes = buffers.bytes * buffers.count;
  if (is_sender) {
    for (size_t i = 0; i < bytes; ++i) buffers.source[i] = buffers.mapped[i] = Pattern(i);
  } else {
    std::memset(buffers.target, 0, bytes);
  }
  const auto batch =
      static_cast<int>(std::clamp<size_t>((size_t{32} << 20) / buffers.bytes, 3, 500));
  std::array<std::vector<int64_t>, kMethods.size()> times;
  for (int round = 0; round < rounds; ++round) {
    for (size_t m = 0; m < kMethods.size(); ++m) {
      const size_t method = (m + static_cast<size_t>(round)) % kMethods.size();
      for (int i = 0; i < batch; ++i)
        times[method].push_back(side.Transfer(kMethods[method].method, buffers));
    }
  }
  for (const MethodInfo& method : kMethods) CheckTransfer(side, is_sender, method.method, buffers);
  if (!is_sender) return;
  std::printf("| %zu |", buffers.bytes);
  for (auto& list : times) {
    std::sort(list.begin(), list.end());
    std::printf(" %.1f (%.1f) |", static_cast<double>(list[list.size() / 2]) / 1e3,
                static_cast<double>(list[list.size() / 10]) / 1e3);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Kilobytes of shared memory that this process maps with huge pages.
long HugeKilobytes() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  std::string key;
  long value = 0;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    words >> key >> value;
    if (key == "ShmemPmdMapped:") return value;
  }
  return 0;
}

void CompareMethods(const Options& options) {
  std::vector<SharedMemory> keep;
  auto& control = *new (MapShared(sizeof(Control), "", keep)) Control;
  std::array<FifoView, 3> rings;
  for (size_t i = 0; i < rings.size(); ++i)
    rings[i] = {MapShared(FifoView::BytesFor(kMethods[i].slot_bytes), options.huge_dir, keep),
                kMethods[i].slot_bytes};
  const size_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  const size_t area = std::max(options.rotate_bytes, 2 * largest);
  Buffers buffers{};
  buffers.source = MapPrivate(area);
  buffers.target = MapPrivate(area);
  buffers.mapped = MapShared(area, options.huge_dir, keep);

  std::fflush(stdout);
  const pid_t parent = getpid();
  PermitRemoteCopies();
  const pid_t child = fork();
  const bool is_sender = child != 0;
  // A side ends when its peer fails, instead of waiting.
  if (is_sender) {
    signal(SIGCHLD, [](int) { _exit(1); });
  } else {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  PermitRemoteCopies();
  Pin(options.cpus[is_sender ? 0 : 1]);
  Side side(is_sender, is_sender ? child : parent, control, rings);
  if (is_sender) {
    std::printf("Microseconds, median (10th percentile):\n\n| bytes |");
    for (const MethodInfo& method : kMethods) std::printf(" %s |", method.name);
    std::printf("\n|---|");
    for (size_t i = 0; i < kMethods.size(); ++i) std::printf("---|");
    std::printf("\n");
  }
  for (const size_t bytes : options.sizes) {
    buffers.bytes = bytes;
    buffers.count = std::max(options.rotate_bytes / bytes, size_t{2});
    RunSize(side, is_sender, buffers, options.rounds);
  }
  side.Meet();
  if (!is_sender) pause();  // until the sender has printed its result and ends
  std::printf("\nShared memory mapped with huge pages: %ld MB.\n", HugeKilobytes() / 1024);
}

// This thread's time on its core, which excludes programs of other users.
int64_t ThreadNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

template <class Body>
double NsPerCall(int64_t (*clock_ns)(), int calls, Body body) {
  std::vector<double> times;
  for (int round = 0; round < 15; ++round) {
    const int64_t start_ns = clock_ns();
    for (int i = 0; i < calls; ++i) body(i);
    times.push_back(static_cast<double>(clock_ns() - start_ns) / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void MeasureLookups() {
  auto loop = EventLoop::Create("shm_bench");
  if (!loop.ok()) Require(loop.status());
  auto server = FdServer::Create(**loop);
  if (!server.ok()) Require(server.status());
  HostMemory memory;
  uint64_t hits = 0;
  const auto find = [&](const void* pointer) {
    asm volatile("" ::: "memory");
    hits += memory.Find(pointer, 64).has_value();
  };
  std::printf("| allocations | Find, hit (ns) | Find, miss (ns) |\n|---|---|---|\n");
  std::printf("| 0 | - | %.1f |\n", NsPerCall(ThreadNs, 10'000'000, [&](int) { find(&memory); }));
  std::vector<std::byte*> bases;
  for (const size_t count : {1, 4, 16, 64, 256, 1024, 4096}) {
    while (bases.size() < count) {
      auto allocated = memory.Allocate(4096);
      if (!allocated.ok()) Require(allocated.status());
      bases.push_back(static_cast<std::byte*>(allocated.value()));
    }
    const double hit = NsPerCall(ThreadNs, 300'000, [&](int i) {
      find(bases[static_cast<size_t>(i) * 7919 % count] + 100);
    });
    const double miss = NsPerCall(ThreadNs, 300'000, [&](int) { find(&memory); });
    std::printf("| %zu | %.1f | %.1f |\n", count, hit, miss);
  }
  for (std::byte* base : bases) Require(memory.Free(base));

  auto allocated = memory.Allocate(1 << 20);
  if (!allocated.ok()) Require(allocated.status());
  auto handle = memory.Export(memory.Find(*allocated, 1)->id, **server);
  if (!handle.ok()) Require(handle.status());
  const double map_ns = NsPerCall(NowNs, 100, [&](int) {
    PeerMemory peers({});
    Require(peers.Map(0, *handle).status());
  });
  PeerMemory peers({});
  Require(peers.Map(0, *handle).status());
  const double again_ns = NsPerCall(ThreadNs, 1'000'000, [&](int) {
    asm volatile("" ::: "memory");
    hits += !peers.Find(0, handle->allocation_id).empty();
  });
  std::printf("\nPeerMemory: fetch and map %.1f us, find again %.1f ns (%s)\n", map_ns / 1e3,
              again_ns, hits > 0 ? "checked" : "?");
}

size_t ParseSize(const std::string& text) {
  char* end = nullptr;
  size_t value = std::strtoull(text.c_str(), &end, 10);
  if (*end == 'K') value <<= 10;
  if (*end == 'M') value <<= 20;
  if (value == 0) Die("not a size: " + text);
  return value;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Options Parse(int argc, char** argv) {
  Options options;
  std::string sizes = "4K,16K,64K,256K,1M,4M,16M,64M";
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--lookup") {
      options.lookup = true;
      continue;
    }
    if (i + 1 == argc) Die("unknown option, or one without its value: " + name);
    const std::string value = argv[++i];
    if (name == "--sizes") {
      sizes = value;
    } else if (name == "--rounds") {
      options.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--rotate") {
      options.rotate_bytes = ParseSize(value);
    } else if (name == "--huge-dir") {
      options.huge_dir = value;
    } else if (name == "--cpus" && Split(value).size() == 2) {
      for (size_t side = 0; side < 2; ++side)
        options.cpus[side] = std::atoi(Split(value)[side].c_str());
    } else {
      Die("unknown option " + name);
    }
  }
  for (const std::string& size : Split(sizes)) options.sizes.push_back(ParseSize(size));
  return options;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  const tutti::Options options = tutti::Parse(argc, argv);
  if (options.lookup) {
    tutti::MeasureLookups();
  } else {
    tutti::CompareMethods(options);
  }
  return 0;
}
