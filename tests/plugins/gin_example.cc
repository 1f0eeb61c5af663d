// A plugin with one-sided operations (tutti/gin_plugin.h) over TCP: an example to start from, and
// the plugin that the tests run. Built with -DVERSION=13 it exports ncclGinPlugin_v13, with
// -DVERSION=14 ncclRmaPlugin_v14 and ncclGinPlugin_v14.
//
// The ranks of a group are joined twice: by a ring of sockets, over which registrations tell all
// ranks the size of every rank's memory, and by a full mesh, over which operations go. A frame of
// fixed size goes ahead of the bytes of a put or of an answer. A put is done when its bytes are
// written to the socket.
//
// EXAMPLE_GIN_REORDER=1 has a target keep puts and weak signals back and carry them out in another
// order, as far as plugins may: what promises nothing of order gets none.
//
// The plugin checks what it is promised, and ends the process with a sentence where a promise is
// not kept: order of calls, threads, memory that is registered, requests, room. EXAMPLE_GIN_FAIL
// makes it misbehave: "init", "devices", "listen", "connect", "register-late" (the fifth time),
// "put-late" (the tenth put fails), "error" (queryLastError reports one after ten tests), "room"
// (there is none at every third call), "no-strong", "no-va" (getGinProperties of version 14),
// "gdaki" and "gpi" (the device's operations are kernels'), "flush" and "stuck" (of the operations
// toward a rank that is gone, one fails at once, and the others 50 ms later or never).

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/gin_plugin.h"

namespace {

std::atomic<int> open_objects = 0;
std::atomic<int> contexts = 0;
std::atomic<int> num_puts = 0;
std::atomic<int> num_registered = 0;
std::atomic<int> num_tests = 0;
std::atomic<unsigned> num_begun = 0;

bool Fails(const char* how) {
  const char* const wanted = std::getenv("EXAMPLE_GIN_FAIL");
  return wanted != nullptr && std::strcmp(wanted, how) == 0;
}

void Expect(bool promise, const char* what) {
  if (promise) return;
  std::fprintf(stderr, "example GIN plugin: a promise was not kept: %s\n", what);
  std::abort();
}

// Two threads are never in calls of one kind for one context.
class InCall {
 public:
  InCall(std::atomic<bool>& busy, const char* kind) : busy_(busy) {
    Expect(!busy_.exchange(true), kind);
  }
  ~InCall() { busy_.store(false); }

 private:
  std::atomic<bool>& busy_;
};

struct Context {
  std::atomic<bool> in_set_up = false;
  bool asked_devices = false;
  std::atomic<int> open = 0;  // listeners and groups
};

struct Listener {
  Context* context = nullptr;
  int fd = -1;
};

// What a rank knows of memory that all have registered together.
struct Memory {
  uint32_t number = 0;
  char* base = nullptr;
  std::vector<uint64_t> bytes;  // of each rank's part
  bool holds_signals = false;
};

enum class Kind : uint32_t { kPut, kGet, kAnswer };

struct Frame {
  Kind kind = Kind::kPut;
  uint32_t memory = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t request = 0;  // of a get and its answer
  uint32_t adds = 0;
  uint32_t strong = 0;
  uint32_t signal_memory = 0;
  uint32_t unused = 0;
  uint64_t signal_offset = 0;
  uint64_t added = 0;
};

struct Request {
  uint32_t rank = 0;
  bool done = false;
  char* to = nullptr;  // where a get's bytes go
};

struct Outgoing {
  Frame frame;
  const char* data = nullptr;
  size_t bytes = 0;
  size_t written = 0;
  Request* request = nullptr;  // done when all is written
};

// A put that a target has kept back.
struct Kept {
  Frame frame;
  std::vector<char> bytes;
};

struct Peer {
  int fd = -1;
  bool broken = false;
  bool told = false;  // A test has told of it, at that time.
  std::chrono::steady_clock::time_point told_at;
  std::deque<Outgoing> out;
  Frame frame;
  size_t frame_read = 0;
  size_t data_read = 0;
  char* to = nullptr;
  std::vector<char> kept_bytes;
  std::vector<Kept> kept;
  int under_way = 0;  // requests toward the rank
};

struct Group {
  Context* context = nullptr;
  int num_ranks = 0;
  int rank = 0;
  int ring_next = -1;
  int ring_previous = -1;
  std::vector<Peer> peers;
  std::atomic<bool> in_data = false;
  std::atomic<bool> has_context = false;
  std::mutex mutex;  // of what registrations and operations both use
  std::map<uint32_t, std::unique_ptr<Memory>> memories;
  uint32_t num_memories = 0;
  std::map<uint64_t, std::unique_ptr<Request>> requests;
  uint64_t num_requests = 0;
  std::mt19937 random{7};
};

constexpr size_t kMostKept = 6;
// An addition takes less time between its read and its write than so many loads.
constexpr unsigned kMostLooks = 2000;

bool Reorders() {
  static const bool reorders = std::getenv("EXAMPLE_GIN_REORDER") != nullptr;
  return reorders;
}

bool WriteAll(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = send(fd, at, bytes, MSG_NOSIGNAL);
    if (wrote <= 0) return false;
    at += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// A rank that never comes must not keep the others for ever; one that is known not to come, not
// long.
void LimitWaits(int fd) {
  const timeval limit = {Fails("connect") || Fails("register-late") ? 2 : 60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

Memory* Known(Group& group, void* handle, uint64_t offset, uint64_t bytes, uint32_t rank) {
  auto* const memory = static_cast<Memory*>(handle);
  const std::lock_guard lock(group.mutex);
  const auto found = std::find_if(group.memories.begin(), group.memories.end(),
                                  [&](const auto& known) { return known.second.get() == memory; });
  Expect(found != group.memories.end(), "an operation names memory that is not registered");
  Expect(offset <= memory->bytes[rank] && bytes <= memory->bytes[rank] - offset,
         "an operation leaves the memory that it names");
  return memory;
}

// Returns where a frame of another rank reads or writes here; null where the memory is gone.
char* Reached(Group& group, uint32_t number, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(group.mutex);
  const auto found = group.memories.find(number);
  if (found == group.memories.end()) return nullptr;
  Memory& memory = *found->second;
  const uint64_t size = memory.bytes[static_cast<size_t>(group.rank)];
  return offset <= size && bytes <= size - offset ? memory.base + offset : nullptr;
}

// Adds as a NIC does whose atomic operations are atomic among themselves only: what a processor
// adds between the read and the write is lost.
void Add(Group& group, const Frame& frame) {
  if (frame.adds == 0) return;
  auto* const word = reinterpret_cast<uint64_t*>(
      Reached(group, frame.signal_memory, frame.signal_offset, sizeof(uint64_t)));
  if (word == nullptr) return;
  const uint64_t before = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  for (auto looks = group.random() % kMostLooks; looks > 0; --looks)
    __atomic_load_n(word, __ATOMIC_ACQUIRE);
  __atomic_store_n(word, before + frame.added, __ATOMIC_RELEASE);
}

void CarryOut(Group& group, const Kept& kept) {
  char* const to = Reached(group, kept.frame.memory, kept.frame.offset, kept.frame.bytes);
  if (to != nullptr && kept.frame.bytes > 0) std::memcpy(to, kept.bytes.data(), kept.frame.bytes);
  Add(group, kept.frame);
}

void CarryOutKept(Group& group, Peer& peer) {
  std::shuffle(peer.kept.begin(), peer.kept.end(), group.random);
  for (const Kept& kept : peer.kept) CarryOut(group, kept);
  peer.kept.clear();
}

// Leaves the rest for later, so that who looks meanwhile sees some without the others.
void CarryOutSome(Group& group, Peer& peer) {
  std::shuffle(peer.kept.begin(), peer.kept.end(), group.random);
  for (size_t count = 1 + group.random() % peer.kept.size(); count > 0; --count) {
    CarryOut(group, peer.kept.back());
    peer.kept.pop_back();
  }
}

// Takes a frame whose bytes are all there.
void Take(Group& group, Peer& peer) {
  const Frame& frame = peer.frame;
  if (frame.kind == Kind::kGet) {
    Outgoing answer;
    answer.frame.kind = Kind::kAnswer;
    answer.frame.request = frame.request;
    answer.data = Reached(group, frame.memory, frame.offset, frame.bytes);
    answer.bytes = answer.frame.bytes = answer.data != nullptr ? frame.bytes : 0;
    if (answer.data == nullptr) peer.broken = true;
    peer.out.push_back(answer);
  } else if (frame.kind == Kind::kAnswer) {
    const auto found = group.requests.find(frame.request);
    if (found != group.requests.end()) {
      found->second->done = true;
      --peer.under_way;
    }
  } else if (frame.strong != 0) {
    CarryOutKept(group, peer);
    if (Reorders()) CarryOut(group, {frame, peer.kept_bytes});
    if (!Reorders()) Add(group, frame);
  } else if (Reorders()) {
    peer.kept.push_back({frame, peer.kept_bytes});
    if (peer.kept.size() == kMostKept) CarryOutSome(group, peer);
  } else {
    Add(group, frame);
  }
  peer.frame_read = peer.data_read = 0;
}

// Finds where the bytes of a frame go.
bool Aim(Group& group, Peer& peer) {
  Frame& frame = peer.frame;
  if (frame.kind == Kind::kGet) return true;
  if (frame.kind == Kind::kAnswer) {
    const auto found = group.requests.find(frame.request);
    peer.to = found != group.requests.end() ? found->second->to : nullptr;
    return peer.to != nullptr;
  }
  if (frame.bytes == 0) {
    peer.kept_bytes.clear();
    return true;
  }
  char* const to = Reached(group, frame.memory, frame.offset, frame.bytes);
  if (to == nullptr) return false;
  peer.kept_bytes.resize(Reorders() ? frame.bytes : 0);
  peer.to = Reorders() ? peer.kept_bytes.data() : to;
  return true;
}

ssize_t Moved(Peer& peer, ssize_t result) {
  if (result > 0) return result;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  peer.broken = true;
  return 0;
}

void Read(Group& group, Peer& peer) {
  while (!peer.broken) {
    if (peer.frame_read < sizeof(Frame)) {
      const ssize_t got =
          Moved(peer, recv(peer.fd, reinterpret_cast<char*>(&peer.frame) + peer.frame_read,
                           sizeof(Frame) - peer.frame_read, 0));
      if (got == 0) return;
      peer.frame_read += static_cast<size_t>(got);
      if (peer.frame_read < sizeof(Frame)) continue;
      if (!Aim(group, peer)) {
        peer.broken = true;
        return;
      }
    }
    const size_t bytes = peer.frame.kind == Kind::kGet ? 0 : peer.frame.bytes;
    if (peer.data_read < bytes) {
      const ssize_t got =
          Moved(peer, recv(peer.fd, peer.to + peer.data_read, bytes - peer.data_read, 0));
      if (got == 0) return;
      peer.data_read += static_cast<size_t>(got);
    }
    if (peer.data_read == bytes) Take(group, peer);
  }
}

void Write(Peer& peer) {
  while (!peer.out.empty() && !peer.broken) {
    Outgoing& next = peer.out.front();
    while (next.written < sizeof(Frame) + next.bytes) {
      const bool in_frame = next.written < sizeof(Frame);
      const char* const from = in_frame ? reinterpret_cast<const char*>(&next.frame) + next.written
                                        : next.data + (next.written - sizeof(Frame));
      const size_t left = (in_frame ? sizeof(Frame) : sizeof(Frame) + next.bytes) - next.written;
      const ssize_t wrote = Moved(peer, send(peer.fd, from, left, MSG_NOSIGNAL));
      if (wrote == 0) return;
      next.written += static_cast<size_t>(wrote);
    }
    if (next.request != nullptr) {
      next.request->done = true;
      --peer.under_way;
    }
    peer.out.pop_front();
  }
}

void Drive(Group& group) {
  for (Peer& peer : group.peers) {
    if (peer.fd < 0) continue;
    Write(peer);
    Read(group, peer);
    Write(peer);
    // What is kept back is not kept for ever.
    if (!peer.kept.empty() && group.random() % 4 == 0) CarryOutSome(group, peer);
  }
}

ncclResult_t Init(void** ctx, uint64_t, tuttiGinLog_t) {
  if (Fails("init")) return ncclSystemError;
  *ctx = new Context;
  contexts.fetch_add(1);
  return ncclSuccess;
}

// Without a context: a process-wide call.
ncclResult_t Devices(int* count) {
  Expect(contexts.load() > 0, "devices comes after init");
  *count = Fails("devices") ? 0 : 1;
  return ncclSuccess;
}

ncclResult_t GetProperties(int device, tuttiGinDeviceProperties_t* properties) {
  Expect(device == 0 && contexts.load() > 0, "getProperties comes after init, for a device");
  static char name[] = "example0";
  *properties = {};
  properties->name = name;
  properties->ptrSupport = TUTTI_GIN_PTR_HOST;
  properties->speed = 10000;
  properties->maxComms = 1000;
  properties->maxRecvs = 1;
  properties->netDeviceType = TUTTI_GIN_TYPE_PROXY;
  if (Fails("gdaki")) properties->netDeviceType = TUTTI_GIN_TYPE_GDAKI;
  if (Fails("gpi")) properties->netDeviceType = TUTTI_GIN_TYPE_GPI;
  return ncclSuccess;
}

ncclResult_t Listen(void* ctx, int device, void* handle, void** listen_comm) {
  auto* const context = static_cast<Context*>(ctx);
  const InCall in(context->in_set_up, "one thread at a time sets up");
  Expect(device == 0, "listen takes a device");
  if (Fails("listen")) return ncclSystemError;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  const char* const own = std::getenv("EXAMPLE_ADDRESS");
  inet_pton(AF_INET, own != nullptr ? own : "127.0.0.1", &address.sin_addr);
  socklen_t length = sizeof(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd, 128) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return ncclSystemError;
  LimitWaits(fd);
  std::memset(handle, 0, TUTTI_GIN_HANDLE_BYTES);
  std::memcpy(handle, &address, sizeof(address));
  ++context->open;
  open_objects.fetch_add(1);
  *listen_comm = new Listener{context, fd};
  return ncclSuccess;
}

// What a rank says when it connects: who it is, and whether the socket is the ring's.
struct Hello {
  int rank = 0;
  int ring = 0;
};

int ConnectTo(void* handle, const Hello& hello) {
  sockaddr_in address;
  std::memcpy(&address, handle, sizeof(address));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  LimitWaits(fd);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      WriteAll(fd, &hello, sizeof(hello)))
    return fd;
  close(fd);
  return -1;
}

// Each rank connects to those below it and, by the ring, to the next.
bool Join(Group& group, void** handles, int listen_fd) {
  for (int r = 0; r < group.rank; ++r) {
    Peer& peer = group.peers[static_cast<size_t>(r)];
    peer.fd = ConnectTo(handles[r], {group.rank, 0});
    if (peer.fd < 0) return false;
  }
  if (group.num_ranks > 1) {
    group.ring_next = ConnectTo(handles[(group.rank + 1) % group.num_ranks], {group.rank, 1});
    if (group.ring_next < 0) return false;
  }
  int missing = group.num_ranks - 1 - group.rank + (group.num_ranks > 1 ? 1 : 0);
  for (; missing > 0; --missing) {
    const int fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello;
    if (fd < 0) return false;
    LimitWaits(fd);
    if (!ReadAll(fd, &hello, sizeof(hello)) || hello.rank < 0 || hello.rank >= group.num_ranks)
      return false;
    (hello.ring != 0 ? group.ring_previous : group.peers[static_cast<size_t>(hello.rank)].fd) = fd;
  }
  for (Peer& peer : group.peers)
    if (peer.fd >= 0 && fcntl(peer.fd, F_SETFL, O_NONBLOCK) != 0) return false;
  return true;
}

void CloseSockets(Group& group) {
  for (Peer& peer : group.peers)
    if (peer.fd >= 0) close(peer.fd);
  if (group.ring_next >= 0) close(group.ring_next);
  if (group.ring_previous >= 0) close(group.ring_previous);
}

ncclResult_t Connect(void* ctx, void* handles[], int num_ranks, int rank, void* listen_comm,
                     void** coll_comm) {
  auto* const context = static_cast<Context*>(ctx);
  const InCall in(context->in_set_up, "one thread at a time sets up");
  auto* const listener = static_cast<Listener*>(listen_comm);
  Expect(listener->context == context, "connect takes a listener of its context");
  Expect(rank >= 0 && rank < num_ranks, "connect takes a rank");
  if (Fails("connect") && rank == 0) return ncclSystemError;
  auto group = std::make_unique<Group>();
  group->context = context;
  group->num_ranks = num_ranks;
  group->rank = rank;
  group->peers.resize(static_cast<size_t>(num_ranks));
  if (!Join(*group, handles, listener->fd)) {
    CloseSockets(*group);
    return ncclRemoteError;
  }
  ++context->open;
  open_objects.fetch_add(1);
  *coll_comm = group.release();
  return ncclSuccess;
}

ncclResult_t MakeContext(Group& group, int count, void** made) {
  const InCall in(group.context->in_set_up, "one thread at a time sets up");
  Expect(count == 1, "this example has one context");
  Expect(!group.has_context.exchange(true), "a group has one context");
  *made = &group;
  return ncclSuccess;
}

// Tells all ranks a number of each, over the ring.
bool AllGather(Group& group, std::vector<uint64_t>& words) {
  const int n = group.num_ranks;
  for (int step = 0; step < n - 1; ++step) {
    const auto send = static_cast<size_t>((group.rank - step + n) % n);
    const auto take = static_cast<size_t>((group.rank - step - 1 + 2 * n) % n);
    if (!WriteAll(group.ring_next, &words[send], 8) ||
        !ReadAll(group.ring_previous, &words[take], 8))
      return false;
  }
  return true;
}

ncclResult_t Register(void* coll_comm, void* data, size_t bytes, int type, uint64_t flags,
                      void** handle) {
  Group& group = *static_cast<Group*>(coll_comm);
  const InCall in(group.context->in_set_up, "one thread at a time sets up");
  if (type != TUTTI_GIN_PTR_HOST) return ncclInvalidUsage;
  if (Fails("register-late") && num_registered.fetch_add(1) == 4) return ncclSystemError;
  auto memory = std::make_unique<Memory>();
  memory->base = static_cast<char*>(data);
  memory->holds_signals = (flags & TUTTI_GIN_MR_STRICT_ORDER) != 0;
  memory->bytes.resize(static_cast<size_t>(group.num_ranks));
  memory->bytes[static_cast<size_t>(group.rank)] = bytes;
  {
    // Other ranks reach the memory as soon as they have heard of it.
    const std::lock_guard lock(group.mutex);
    memory->number = ++group.num_memories;
    *handle = memory.get();
    group.memories[memory->number] = std::move(memory);
  }
  auto* const own = static_cast<Memory*>(*handle);
  std::vector<uint64_t> sizes = own->bytes;
  if (!AllGather(group, sizes)) return ncclRemoteError;
  const std::lock_guard lock(group.mutex);
  own->bytes = sizes;
  return ncclSuccess;
}

ncclResult_t Deregister(void* coll_comm, void* handle) {
  Group& group = *static_cast<Group*>(coll_comm);
  const InCall in(group.context->in_set_up, "one thread at a time sets up");
  const std::lock_guard lock(group.mutex);
  const size_t gone = std::erase_if(
      group.memories, [&](const auto& known) { return known.second.get() == handle; });
  Expect(gone == 1, "deregMrSym takes memory that is registered");
  return ncclSuccess;
}

ncclResult_t DestroyContext(void* made) {
  Group& group = *static_cast<Group*>(made);
  const InCall in(group.context->in_set_up, "one thread at a time sets up");
  Expect(group.has_context.exchange(false), "a context is destroyed once");
  Expect(group.memories.empty(), "memory is deregistered before the context is destroyed");
  return ncclSuccess;
}

ncclResult_t CloseColl(void* coll_comm) {
  auto* const group = static_cast<Group*>(coll_comm);
  Context& context = *group->context;
  const InCall in(context.in_set_up, "one thread at a time sets up");
  Expect(!group->has_context, "the context is destroyed before the group is closed");
  // What was written may still be on its way, and is not lost.
  CloseSockets(*group);
  delete group;
  --context.open;
  open_objects.fetch_sub(1);
  return ncclSuccess;
}

ncclResult_t CloseListen(void* listen_comm) {
  auto* const listener = static_cast<Listener*>(listen_comm);
  Context& context = *listener->context;
  const InCall in(context.in_set_up, "one thread at a time sets up");
  close(listener->fd);
  delete listener;
  --context.open;
  open_objects.fetch_sub(1);
  return ncclSuccess;
}

ncclResult_t Finalize(void* ctx) {
  auto* const context = static_cast<Context*>(ctx);
  Expect(context->open == 0, "finalize is the last call of a context");
  contexts.fetch_sub(1);
  delete context;
  return ncclSuccess;
}

// Checks what an operation is promised. Returns false where there is no room.
bool Begins(Group& group, int context, uint64_t bytes, uint32_t rank) {
  Expect(group.has_context && context == 0, "operations go by a context that there is");
  Expect(rank < static_cast<uint32_t>(group.num_ranks), "operations name a rank");
  Expect(bytes <= static_cast<uint64_t>(TUTTI_GIN_MAX_BYTES), "no operation is longer than 1 GiB");
  Expect(group.peers[rank].under_way < TUTTI_GIN_MAX_REQUESTS,
         "no more requests toward a rank are under way than there may be");
  return !(Fails("room") && num_begun.fetch_add(1) % 3 == 2);
}

Request* NewRequest(Group& group, uint32_t rank, uint64_t* number) {
  *number = ++group.num_requests;
  auto& request = group.requests[*number];
  request = std::make_unique<Request>();
  request->rank = rank;
  ++group.peers[rank].under_way;
  return request.get();
}

struct Signal {
  uint64_t offset = 0;
  void* memory = nullptr;
  uint64_t value = 0;
  bool strong = false;
};

ncclResult_t Put(void* made, int context, uint64_t from_offset, void* from, size_t bytes,
                 uint64_t to_offset, void* to, uint32_t rank, const Signal* signal,
                 void** request) {
  Group& group = *static_cast<Group*>(made);
  const InCall in(group.in_data, "one thread at a time moves data");
  *request = nullptr;
  if (!Begins(group, context, bytes, rank)) return ncclSuccess;
  if (Fails("put-late") && num_puts.fetch_add(1) == 9) return ncclSystemError;
  Outgoing put;
  if (bytes > 0) {
    const Memory* const source =
        Known(group, from, from_offset, bytes, static_cast<uint32_t>(group.rank));
    put.data = source->base + from_offset;
    put.bytes = put.frame.bytes = bytes;
    put.frame.memory = Known(group, to, to_offset, bytes, rank)->number;
    put.frame.offset = to_offset;
  }
  if (signal != nullptr) {
    const Memory* const memory = Known(group, signal->memory, signal->offset, 8, rank);
    Expect(memory->holds_signals, "signals lie in memory that was registered for them");
    Expect(signal->offset % 8 == 0, "signals are aligned");
    put.frame.adds = 1;
    put.frame.strong = signal->strong ? 1 : 0;
    put.frame.signal_memory = memory->number;
    put.frame.signal_offset = signal->offset;
    put.frame.added = signal->value;
  }
  uint64_t number = 0;
  Request* const own = NewRequest(group, rank, &number);
  *request = own;
  Peer& peer = group.peers[rank];
  if (rank == static_cast<uint32_t>(group.rank)) {
    CarryOut(group, {put.frame, {put.data, put.data + put.bytes}});
    own->done = true;
    --peer.under_way;
    return ncclSuccess;
  }
  if (peer.broken) return ncclRemoteError;
  put.request = own;
  peer.out.push_back(put);
  Write(peer);
  return ncclSuccess;
}

ncclResult_t Iput(void* made, int context, uint64_t from_offset, void* from, size_t bytes,
                  uint64_t to_offset, void* to, uint32_t rank, void** request) {
  return Put(made, context, from_offset, from, bytes, to_offset, to, rank, nullptr, request);
}

ncclResult_t IputSignal(void* made, int context, uint64_t from_offset, void* from, size_t bytes,
                        uint64_t to_offset, void* to, uint32_t rank, uint64_t signal_offset,
                        void* signal_memory, uint64_t value, uint32_t op, bool strong,
                        void** request) {
  const uint64_t added = op == TUTTI_GIN_SIGNAL_INC ? 1 : value;
  Expect(!(strong && Fails("no-strong")), "a plugin without strong signals is asked for none");
  const Signal signal = {signal_offset, signal_memory, added, strong};
  return Put(made, context, from_offset, from, bytes, to_offset, to, rank, &signal, request);
}

ncclResult_t Iget(void* made, int context, uint64_t from_offset, void* from, size_t bytes,
                  uint64_t to_offset, void* to, uint32_t rank, void** request) {
  Group& group = *static_cast<Group*>(made);
  const InCall in(group.in_data, "one thread at a time moves data");
  *request = nullptr;
  if (!Begins(group, context, bytes, rank)) return ncclSuccess;
  const Memory* const remote = Known(group, from, from_offset, bytes, rank);
  const Memory* const local = Known(group, to, to_offset, bytes, static_cast<uint32_t>(group.rank));
  Outgoing get;
  get.frame.kind = Kind::kGet;
  get.frame.memory = remote->number;
  get.frame.offset = from_offset;
  get.frame.bytes = bytes;
  Request* const own = NewRequest(group, rank, &get.frame.request);
  own->to = local->base + to_offset;
  *request = own;
  Peer& peer = group.peers[rank];
  if (rank == static_cast<uint32_t>(group.rank)) {
    std::memcpy(own->to, remote->base + from_offset, bytes);
    own->done = true;
    --peer.under_way;
    return ncclSuccess;
  }
  if (peer.broken) return ncclRemoteError;
  peer.out.push_back(get);
  Write(peer);
  return ncclSuccess;
}

ncclResult_t Iflush(void*, int, void*, uint32_t, void** request) {
  *request = nullptr;
  return ncclInvalidUsage;  // There is no memory of GPUs.
}

// Returns whether a test of a request to or from a rank tells that its connection is broken. NICs
// tell so of one, and a moment later of those behind it ("flush"); or never does a bad one
// ("stuck").
bool IsToldOfBreak(Peer& peer) {
  if (!peer.broken) return false;
  const auto now = std::chrono::steady_clock::now();
  if (std::exchange(peer.told, true)) {
    if (Fails("stuck")) return false;
    return !Fails("flush") || now - peer.told_at > std::chrono::milliseconds(50);
  }
  peer.told_at = now;
  return true;
}

ncclResult_t Test(void* coll_comm, void* handle, int* done) {
  Group& group = *static_cast<Group*>(coll_comm);
  const InCall in(group.in_data, "one thread at a time moves data");
  if (Fails("error")) num_tests.fetch_add(1);
  const auto found = std::find_if(group.requests.begin(), group.requests.end(),
                                  [&](const auto& own) { return own.second.get() == handle; });
  Expect(found != group.requests.end(), "a request is tested until it is done, and not again");
  Request& request = *found->second;
  *done = request.done ? 1 : 0;
  if (!request.done && IsToldOfBreak(group.peers[request.rank])) return ncclRemoteError;
  if (request.done) group.requests.erase(found);
  return ncclSuccess;
}

ncclResult_t Progress(void* made) {
  Group& group = *static_cast<Group*>(made);
  const InCall in(group.in_data, "one thread at a time moves data");
  Drive(group);
  return ncclSuccess;
}

ncclResult_t QueryLastError(void* made, bool* has_error) {
  Group& group = *static_cast<Group*>(made);
  const InCall in(group.in_data, "one thread at a time moves data");
  *has_error = Fails("error") && num_tests.load() >= 10;
  return ncclSuccess;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int exampleGinOpenObjects() {
  return open_objects.load() + contexts.load();
}

#if VERSION == 13
__attribute__((visibility("default"))) tuttiGinTable_v13_t ncclGinPlugin_v13 = {
    "ExampleGin",
    Init,
    Devices,
    GetProperties,
    Listen,
    Connect,
    [](void* coll_comm, tuttiGinConfig_v13_t* config, void** made,
       tuttiGinDeviceHandle_t** handle) {
      *handle = nullptr;
      return MakeContext(*static_cast<Group*>(coll_comm), config->nContexts, made);
    },
    [](void* coll_comm, void* data, size_t bytes, int type, uint64_t flags, void** memory,
       void** for_kernels) {
      *for_kernels = nullptr;
      return Register(coll_comm, data, bytes, type, flags, memory);
    },
    nullptr,
    Deregister,
    DestroyContext,
    CloseColl,
    CloseListen,
    Iput,
    [](void* made, int context, uint64_t from_offset, void* from, size_t bytes, uint64_t to_offset,
       void* to, uint32_t rank, uint64_t signal_offset, void* signal_memory, uint64_t value,
       uint32_t op, void** request) {
      return IputSignal(made, context, from_offset, from, bytes, to_offset, to, rank, signal_offset,
                        signal_memory, value, op, /*strong=*/true, request);
    },
    Iget,
    Iflush,
    Test,
    Progress,
    QueryLastError,
    Finalize,
};
#else
__attribute__((visibility("default"))) tuttiRmaTable_v14_t ncclRmaPlugin_v14 = {
    "ExampleGin",
    Init,
    Devices,
    GetProperties,
    Listen,
    Connect,
    [](void* coll_comm, tuttiRmaConfig_v14_t* config, void** made) {
      Expect(config->rankStride == 1, "all ranks are joined to one another");
      return MakeContext(*static_cast<Group*>(coll_comm), config->nContexts, made);
    },
    Register,
    nullptr,
    Deregister,
    DestroyContext,
    CloseColl,
    CloseListen,
    Iput,
    IputSignal,
    Iget,
    Iflush,
    Test,
    Progress,
    QueryLastError,
    Finalize,
};

// What kernels would drive themselves: this example has nothing but the properties.
__attribute__((visibility("default"))) tuttiGinTable_v14_t ncclGinPlugin_v14 = {
    "ExampleGin",
    nullptr,
    nullptr,
    [](tuttiGinProperties_v14_t* properties) {
      *properties = {!Fails("no-strong"), !Fails("no-va")};
      return ncclSuccess;
    },
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};
#endif
}
