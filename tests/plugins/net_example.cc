// A network plugin of NCCL's kind, over TCP: an example to start from, and the plugin that the
// tests run. It is written once for all versions of the interface from 6 to 12
// (transport/net/plugin/abi.h has their differences); built with -DONLY_VERSION=n it exports that
// one alone.
//
// The wire. The receiver writes grants: a word of 4 bytes with the number of buffers, then tag and
// capacity of each, 8 + 8 bytes. The sender writes messages: tag and length, 8 + 8 bytes, then the
// bytes. isend begins nothing before the group in turn has a buffer with the tag that it is given,
// so no message waits at the receiver. All integers are in the order of the processor.
//
// It also checks what plugins are promised: it counts the calls that came at the same time as
// another of the same comm, that used memory which was not registered, or that came in the wrong
// order (exampleViolations), and objects that were never closed (exampleOpenObjects). EXAMPLE_FAIL
// makes it misbehave: "init", "devices", "test-late" (the tenth test fails), "sizes" (test reports
// more than there was room for), "receive-late" (a comm takes its first receive at the second try).
//
// EXAMPLE_GPU has it say that it takes memory of GPUs: "address" (where the processor reaches it,
// as in a test's stand-in for GPUs), "dmabuf" (by DMA-BUF, whose mapping it then uses in place of
// the address), or "refuse" (it says so, and refuses both). What it was given of either kind, and
// how often it was asked to flush, is counted (exampleGpuRegions, exampleFlushes).
//
// Each send and receive is an event for profilers (EventKind): begun when it is accepted, updated
// with its bytes and ended when it is done, or when its comm is closed.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/net/plugin/abi.h"

namespace {

using tutti::netplugin::Table;

using tutti::netplugin::ProfilerCallback;

// A kind of its own, and version 1. At the data of such an event lies the number of its bytes.
constexpr int64_t kEventKind = 0x7ee7 << 16 | 1;

constexpr int kMostReceives = 8;
constexpr size_t kMostRequests = 32 * kMostReceives;

std::atomic<int> violations = 0;
std::atomic<int> open_objects = 0;
std::atomic<int> gpu_regions = 0;
std::atomic<int> dmabufs = 0;
std::atomic<int> flushes = 0;
std::atomic<int> tests = 0;
std::atomic<ProfilerCallback> profiler = nullptr;  // what init was given

bool Fails(const char* how) {
  const char* const wanted = std::getenv("EXAMPLE_FAIL");
  return wanted != nullptr && std::strcmp(wanted, how) == 0;
}

bool TakesGpuMemory(const char* how) {
  const char* const said = std::getenv("EXAMPLE_GPU");
  return said != nullptr && (how == nullptr || std::strcmp(said, how) == 0);
}

void Expect(bool promise) {
  if (!promise) violations.fetch_add(1);
}

// A comm is used by one thread at a time.
class InCall {
 public:
  explicit InCall(std::atomic<bool>& busy) : busy_(busy) { Expect(!busy_.exchange(true)); }
  ~InCall() { busy_.store(false); }

 private:
  std::atomic<bool>& busy_;
};

struct Grant {
  uint64_t tag = 0;
  uint64_t capacity = 0;
};

// A registration. Bytes of a DMA-BUF are reached where it is mapped.
struct Memory {
  char* data = nullptr;
  size_t bytes = 0;
  bool of_gpu = false;
  char* mapped = nullptr;  // where `data` is in the mapping
  void* mapping = nullptr;
  size_t mapping_bytes = 0;

  char* At(void* address) const {
    return mapped != nullptr ? mapped + (static_cast<char*>(address) - data)
                             : static_cast<char*>(address);
  }
};
char* Reach(void* address, void* memory) {
  return memory != nullptr ? static_cast<Memory*>(memory)->At(address)
                           : static_cast<char*>(address);
}

struct Comm;

struct Request {
  Comm* comm = nullptr;
  // A send's header, and how much of header and data has been written.
  Grant header;
  const char* data = nullptr;
  size_t moved = 0;
  // A receive's buffers, and what came into each; -1: nothing yet.
  int count = 0;
  std::array<char*, kMostReceives> buffers = {};
  std::array<Grant, kMostReceives> grants = {};
  std::array<int64_t, kMostReceives> sizes = {};
  bool done = false;
  bool tested = true;  // the caller knows that it is done; the request is free
  void* event = nullptr;
  uint64_t event_bytes = 0;
};

void Report(Request& request, int what, void* handle = nullptr) {
  const ProfilerCallback callback = profiler.load();
  if (callback != nullptr)
    callback(&request.event, what, handle, handle != nullptr ? kEventKind : 0,
             &request.event_bytes);
}

// Ends the event of a request with what it has moved: a send's in two steps, a receive's in one.
void EndEvent(Request& request) {
  using namespace tutti::netplugin;
  if (request.event == nullptr) return;
  request.event_bytes = request.header.capacity;
  for (int i = 0; i < request.count; ++i)
    request.event_bytes += static_cast<uint64_t>(request.sizes[static_cast<size_t>(i)]);
  if (request.count == 0) Report(request, kEventUpdate);
  Report(request, request.count == 0 ? kEventStop : kEventUpdateAndStop);
  Expect(request.event == nullptr);
}

// A connection. The queue holds the requests that are not done, in order.
struct Comm {
  std::atomic<bool> busy = false;
  bool asked_to_receive = false;
  int fd = -1;
  bool sends = false;
  bool broken = false;
  std::vector<std::unique_ptr<Request>> requests;
  std::deque<Request*> queue;
  std::map<void*, size_t> memory;          // The key is the address, the value the bytes there.
  std::deque<std::vector<Grant>> granted;  // A sender keeps here what is left of each group.
  std::string in;                          // bytes that were read and not used
  std::string out;                         // grants that are still to be written
  Request* current = nullptr;              // A receiver reads this message.
  int current_buffer = 0;
  size_t current_left = 0;
};

struct Listener {
  int fd = -1;
};

struct Handle {
  sockaddr_in address;
  int fd_plus_1;  // The sender's descriptor, from one call of connect to the next.
};
static_assert(sizeof(Handle) <= 128);

bool NonBlocking(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

Comm* NewComm(int fd, bool sends) {
  auto* const comm = new Comm;
  comm->fd = fd;
  comm->sends = sends;
  open_objects.fetch_add(1);
  return comm;
}

Request* NewRequest(Comm& comm) {
  for (const auto& request : comm.requests) {
    if (request->tested) {
      *request = Request();
      request->comm = &comm;
      request->tested = false;
      return request.get();
    }
  }
  if (comm.requests.size() == kMostRequests) return nullptr;
  comm.requests.push_back(std::make_unique<Request>());
  comm.requests.back()->comm = &comm;
  comm.requests.back()->tested = false;
  return comm.requests.back().get();
}

bool Registered(const Comm& comm, const void* data, size_t bytes) {
  if (bytes == 0) return true;
  const auto* const begin = static_cast<const char*>(data);
  for (const auto& [base, length] : comm.memory) {
    const auto* const from = static_cast<const char*>(base);
    if (begin >= from && begin + bytes <= from + length) return true;
  }
  return false;
}

// Returns how many bytes moved; 0 when none could; breaks the comm when the connection is broken.
size_t Moved(Comm& comm, ssize_t result, bool reading) {
  if (result > 0) return static_cast<size_t>(result);
  if (result == 0 && !reading) return 0;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  comm.broken = true;
  return 0;
}

bool ReadSome(Comm& comm) {
  std::array<char, 4096> bytes;
  const size_t got = Moved(comm, recv(comm.fd, bytes.data(), bytes.size(), 0), true);
  comm.in.append(bytes.data(), got);
  return got > 0;
}

void TakeGrants(Comm& comm) {
  while (ReadSome(comm)) {
  }
  for (;;) {
    uint32_t count = 0;
    if (comm.in.size() < sizeof(count)) return;
    std::memcpy(&count, comm.in.data(), sizeof(count));
    if (comm.in.size() < sizeof(count) + count * sizeof(Grant)) return;
    std::vector<Grant> group(count);
    std::memcpy(group.data(), comm.in.data() + sizeof(count), count * sizeof(Grant));
    comm.in.erase(0, sizeof(count) + count * sizeof(Grant));
    comm.granted.push_back(std::move(group));
  }
}

void Send(Comm& comm) {
  TakeGrants(comm);
  while (!comm.queue.empty() && !comm.broken) {
    Request& request = *comm.queue.front();
    const size_t whole = sizeof(Grant) + request.header.capacity;
    while (request.moved < whole) {
      const bool in_header = request.moved < sizeof(Grant);
      const char* const from = in_header
                                   ? reinterpret_cast<const char*>(&request.header) + request.moved
                                   : request.data + (request.moved - sizeof(Grant));
      const size_t end = in_header ? sizeof(Grant) : whole;
      const size_t sent =
          Moved(comm, send(comm.fd, from, end - request.moved, MSG_NOSIGNAL), false);
      if (sent == 0) return;
      request.moved += sent;
    }
    request.done = true;
    comm.queue.pop_front();
  }
}

// Finds the buffer of the group in turn that has the tag of the message whose header is in `in`.
bool TakeHeader(Comm& comm) {
  Grant header;
  if (comm.in.size() < sizeof(header)) return false;
  if (comm.queue.empty()) return false;
  std::memcpy(&header, comm.in.data(), sizeof(header));
  comm.in.erase(0, sizeof(header));
  Request& group = *comm.queue.front();
  for (int i = 0; i < group.count; ++i) {
    const auto at = static_cast<size_t>(i);
    if (group.sizes[at] >= 0 || group.grants[at].tag != header.tag) continue;
    if (header.capacity > group.grants[at].capacity) break;
    group.sizes[at] = static_cast<int64_t>(header.capacity);
    comm.current = &group;
    comm.current_buffer = i;
    comm.current_left = header.capacity;
    return true;
  }
  comm.broken = true;
  return false;
}

void EndMessage(Comm& comm) {
  Request& group = *comm.current;
  comm.current = nullptr;
  for (int i = 0; i < group.count; ++i) {
    if (group.sizes[static_cast<size_t>(i)] < 0) return;
  }
  group.done = true;
  comm.queue.pop_front();
}

void Receive(Comm& comm) {
  while (!comm.out.empty() && !comm.broken) {
    const size_t sent =
        Moved(comm, send(comm.fd, comm.out.data(), comm.out.size(), MSG_NOSIGNAL), false);
    if (sent == 0) break;
    comm.out.erase(0, sent);
  }
  while (!comm.broken) {
    if (comm.current == nullptr) {
      if (!TakeHeader(comm) && !ReadSome(comm)) return;
      if (comm.current == nullptr) continue;
    }
    const auto at = static_cast<size_t>(comm.current_buffer);
    char* const to = comm.current->buffers[at] +
                     (static_cast<size_t>(comm.current->sizes[at]) - comm.current_left);
    if (!comm.in.empty() && comm.current_left > 0) {
      const size_t part = std::min(comm.in.size(), comm.current_left);
      std::memcpy(to, comm.in.data(), part);
      comm.in.erase(0, part);
      comm.current_left -= part;
    } else if (comm.current_left > 0) {
      const size_t got = Moved(comm, recv(comm.fd, to, comm.current_left, 0), true);
      if (got == 0) return;
      comm.current_left -= got;
    }
    if (comm.current_left == 0) EndMessage(comm);
  }
}

ncclResult_t Init(ProfilerCallback callback) {
  profiler.store(callback);
  return Fails("init") ? ncclSystemError : ncclSuccess;
}

ncclResult_t Devices(int* count) {
  *count = Fails("devices") ? 0 : 1;
  return ncclSuccess;
}

ncclResult_t Listen(void* handle, void** listen_comm) {
  Handle own = {};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  own.address.sin_family = AF_INET;
  // The example serves one host, or hosts that reach this address.
  const char* const address = std::getenv("EXAMPLE_ADDRESS");
  inet_pton(AF_INET, address != nullptr ? address : "127.0.0.1", &own.address.sin_addr);
  socklen_t length = sizeof(own.address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&own.address), length) != 0 ||
      listen(fd, 128) != 0 || !NonBlocking(fd) ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own.address), &length) != 0) {
    close(fd);
    return ncclSystemError;
  }
  std::memcpy(handle, &own, sizeof(own));
  *listen_comm = new Listener{fd};
  open_objects.fetch_add(1);
  return ncclSuccess;
}

ncclResult_t Connect(void* handle, void** send_comm) {
  *send_comm = nullptr;
  Handle own;
  std::memcpy(&own, handle, sizeof(own));
  if (own.fd_plus_1 == 0) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !NonBlocking(fd)) return ncclSystemError;
    const int result = connect(fd, reinterpret_cast<sockaddr*>(&own.address), sizeof(own.address));
    if (result != 0 && errno != EINPROGRESS) {
      close(fd);
      return ncclRemoteError;
    }
    own.fd_plus_1 = fd + 1;
    std::memcpy(handle, &own, sizeof(own));
    return ncclSuccess;  // not yet, even where it stands already: callers must come again
  }
  const int fd = own.fd_plus_1 - 1;
  pollfd waiting = {fd, POLLOUT, 0};
  if (poll(&waiting, 1, 0) == 0) return ncclSuccess;
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    close(fd);
    return ncclRemoteError;
  }
  *send_comm = NewComm(fd, true);
  return ncclSuccess;
}

ncclResult_t Accept(void* listen_comm, void** recv_comm) {
  *recv_comm = nullptr;
  const int fd = accept(static_cast<Listener*>(listen_comm)->fd, nullptr, nullptr);
  if (fd < 0) return errno == EAGAIN || errno == EINTR ? ncclSuccess : ncclSystemError;
  if (!NonBlocking(fd)) return ncclSystemError;
  *recv_comm = NewComm(fd, false);
  return ncclSuccess;
}

// A registration within another one counts for itself.
ncclResult_t Keep(Comm& comm, const Memory& made, void** memory) {
  auto& known = comm.memory[made.data];
  known = std::max(known, made.bytes);
  *memory = new Memory(made);
  open_objects.fetch_add(1);
  return ncclSuccess;
}

ncclResult_t Register(void* comm, void* data, size_t bytes, int type, void** memory) {
  const InCall call(static_cast<Comm*>(comm)->busy);
  const bool of_gpu = type == tutti::netplugin::kPtrGpu;
  if (of_gpu ? !TakesGpuMemory("address") : type != tutti::netplugin::kPtrHost)
    return ncclInvalidUsage;
  gpu_regions.fetch_add(of_gpu ? 1 : 0);
  return Keep(*static_cast<Comm*>(comm), {static_cast<char*>(data), bytes, of_gpu}, memory);
}

ncclResult_t RegisterDmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                            void** memory) {
  const InCall call(static_cast<Comm*>(comm)->busy);
  Expect(type == tutti::netplugin::kPtrGpu && fd >= 0);
  if (!TakesGpuMemory("dmabuf")) return ncclInvalidUsage;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  Memory made = {static_cast<char*>(data), bytes, true};
  made.mapping_bytes = bytes + offset % page;
  made.mapping = mmap(nullptr, made.mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(offset / page * page));
  if (made.mapping == MAP_FAILED) return ncclSystemError;
  made.mapped = static_cast<char*>(made.mapping) + offset % page;
  dmabufs.fetch_add(1);
  return Keep(*static_cast<Comm*>(comm), made, memory);
}

ncclResult_t Deregister(void* comm, void* memory) {
  const InCall call(static_cast<Comm*>(comm)->busy);
  auto* const handle = static_cast<Memory*>(memory);
  Expect(static_cast<Comm*>(comm)->memory.erase(handle->data) == 1);
  if (handle->mapping != nullptr) munmap(handle->mapping, handle->mapping_bytes);
  delete handle;
  open_objects.fetch_sub(1);
  return ncclSuccess;
}

ncclResult_t Isend(void* send_comm, void* data, size_t bytes, int tag, void* memory, void* handle,
                   void** request) {
  *request = nullptr;
  Comm& comm = *static_cast<Comm*>(send_comm);
  const InCall call(comm.busy);
  Expect(comm.sends && (bytes == 0 || memory != nullptr) && Registered(comm, data, bytes));
  Send(comm);
  if (comm.broken) return ncclRemoteError;
  if (comm.granted.empty()) return ncclSuccess;
  std::vector<Grant>& group = comm.granted.front();
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].tag != static_cast<uint64_t>(tag)) continue;
    if (group[i].capacity < bytes) {
      comm.broken = true;
      shutdown(comm.fd, SHUT_RDWR);
      return ncclInvalidUsage;
    }
    Request* const made = NewRequest(comm);
    if (made == nullptr) return ncclSuccess;
    group.erase(group.begin() + static_cast<ptrdiff_t>(i));
    if (group.empty()) comm.granted.pop_front();
    made->header = {static_cast<uint64_t>(tag), bytes};
    made->data = Reach(data, memory);
    if (handle != nullptr) Report(*made, tutti::netplugin::kEventStart, handle);
    comm.queue.push_back(made);
    Send(comm);
    *request = made;
    return ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t Irecv(void* recv_comm, int count, void** data, const size_t* bytes, const int* tags,
                   void** memory, void* handle, void** request) {
  *request = nullptr;
  Comm& comm = *static_cast<Comm*>(recv_comm);
  const InCall call(comm.busy);
  Expect(!comm.sends && count >= 1 && count <= kMostReceives);
  if (comm.broken) return ncclRemoteError;
  if (!std::exchange(comm.asked_to_receive, true) && Fails("receive-late")) return ncclSuccess;
  Request* const made = NewRequest(comm);
  if (made == nullptr) return ncclSuccess;
  made->count = count;
  const auto number = static_cast<uint32_t>(count);
  comm.out.append(reinterpret_cast<const char*>(&number), sizeof(number));
  for (size_t i = 0; i < number; ++i) {
    Expect((bytes[i] == 0 || memory[i] != nullptr) && Registered(comm, data[i], bytes[i]));
    made->buffers[i] = Reach(data[i], memory[i]);
    made->grants[i] = {static_cast<uint64_t>(tags[i]), bytes[i]};
    made->sizes[i] = -1;
    comm.out.append(reinterpret_cast<const char*>(&made->grants[i]), sizeof(Grant));
  }
  if (handle != nullptr) Report(*made, tutti::netplugin::kEventStart, handle);
  comm.queue.push_back(made);
  Receive(comm);
  *request = made;
  return ncclSuccess;
}

// Is done at the next test: the processor's writes are where everybody sees them.
ncclResult_t Iflush(void* recv_comm, int count, void** data, int* bytes, void** memory,
                    void** request) {
  *request = nullptr;
  Comm& comm = *static_cast<Comm*>(recv_comm);
  const InCall call(comm.busy);
  Expect(!comm.sends && count >= 1 && count <= kMostReceives);
  bool of_gpu = false;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    Expect(memory[i] != nullptr && Registered(comm, data[i], static_cast<size_t>(bytes[i])));
    of_gpu = of_gpu || static_cast<Memory*>(memory[i])->of_gpu;
  }
  if (!of_gpu) return ncclSuccess;
  Request* const made = NewRequest(comm);
  if (made == nullptr) return ncclSuccess;
  flushes.fetch_add(1);
  made->done = true;
  *request = made;
  return ncclSuccess;
}

ncclResult_t Test(void* request, int* done, int* bytes) {
  Request& own = *static_cast<Request*>(request);
  const InCall call(own.comm->busy);
  Expect(!own.tested);
  if (Fails("test-late") && tests.fetch_add(1) == 10) return ncclSystemError;
  Comm& comm = *own.comm;
  if (!own.done) {
    if (comm.sends) {
      Send(comm);
    } else {
      Receive(comm);
    }
  }
  *done = own.done ? 1 : 0;
  if (!own.done) return comm.broken ? ncclRemoteError : ncclSuccess;
  own.tested = true;
  EndEvent(own);
  for (size_t i = 0; bytes != nullptr && i < static_cast<size_t>(own.count); ++i) {
    bytes[i] = static_cast<int>(own.sizes[i]);
    if (Fails("sizes")) bytes[i] = static_cast<int>(own.grants[i].capacity) + 1;
  }
  return ncclSuccess;
}

ncclResult_t CloseComm(void* closed) {
  auto* const comm = static_cast<Comm*>(closed);
  Expect(comm->memory.empty());
  for (const auto& request : comm->requests)
    if (request->event != nullptr) Report(*request, tutti::netplugin::kEventStop);
  close(comm->fd);
  delete comm;
  open_objects.fetch_sub(1);
  return ncclSuccess;
}

ncclResult_t CloseListen(void* closed) {
  auto* const listener = static_cast<Listener*>(closed);
  close(listener->fd);
  delete listener;
  open_objects.fetch_sub(1);
  return ncclSuccess;
}

char name[] = "Example";

template <int kVersion>
ncclResult_t GetProperties(int device, tutti::netplugin::Properties<kVersion>* properties) {
  Expect(device == 0);
  *properties = {};
  properties->name = name;
  properties->ptr_support = tutti::netplugin::kPtrHost;
  if (TakesGpuMemory(nullptr)) properties->ptr_support |= tutti::netplugin::kPtrGpu;
  if (TakesGpuMemory("dmabuf") || TakesGpuMemory("refuse"))
    properties->ptr_support |= tutti::netplugin::kPtrDmabuf;
  properties->speed = 10000;
  properties->max_comms = 65536;
  properties->max_recvs = kMostReceives;
  return ncclSuccess;
}

// A table of one version: each function drops what that version hands over and the example has no
// use for.
template <int kVersion>
Table<kVersion> MakeTable() {
  using namespace tutti::netplugin;
  using Size = typename Table<kVersion>::Size;
  using RegisterSize = typename Table<kVersion>::RegisterSize;
  Table<kVersion> table = {};
  table.name = name;
  table.devices = Devices;
  table.get_properties = GetProperties<kVersion>;
  if constexpr (kVersion >= 11) {
    table.init = [](void** context, uint64_t, CommConfig*, LogFunction, ProfilerCallback callback) {
      const ncclResult_t result = Init(callback);
      if (result != ncclSuccess) return result;
      *context = new int(0);
      open_objects.fetch_add(1);
      return ncclSuccess;
    };
    table.finalize = [](void* context) {
      delete static_cast<int*>(context);
      open_objects.fetch_sub(1);
      return ncclSuccess;
    };
    table.listen = [](void* context, int, void* handle, void** comm) {
      Expect(context != nullptr);
      return Listen(handle, comm);
    };
    table.connect = [](void* context, int, void* handle, void** comm, void**) {
      Expect(context != nullptr);
      return Connect(handle, comm);
    };
  } else {
    if constexpr (kVersion == 10) {
      table.init = [](LogFunction, ProfilerCallback callback) { return Init(callback); };
      table.connect = [](int, CommConfig* config, void* handle, void** comm, void**) {
        Expect(config != nullptr);
        return Connect(handle, comm);
      };
    } else {
      table.init = [](LogFunction) { return Init(nullptr); };
      if constexpr (kVersion >= 7) {
        table.connect = [](int, void* handle, void** comm, void**) {
          return Connect(handle, comm);
        };
      } else {
        table.connect = [](int, void* handle, void** comm) { return Connect(handle, comm); };
      }
    }
    table.listen = [](int, void* handle, void** comm) { return Listen(handle, comm); };
  }
  if constexpr (kVersion >= 7) {
    table.accept = [](void* listener, void** comm, void**) { return Accept(listener, comm); };
  } else {
    table.accept = Accept;
  }
  table.reg_mr = [](void* comm, void* data, RegisterSize bytes, int type, void** memory) {
    return Register(comm, data, static_cast<size_t>(bytes), type, memory);
  };
  table.reg_mr_dmabuf = RegisterDmabuf;
  table.dereg_mr = Deregister;
  if constexpr (kVersion >= 10) {
    table.isend = [](void* comm, void* data, Size bytes, int tag, void* memory, void* handle,
                     void** request) {
      return Isend(comm, data, bytes, tag, memory, handle, request);
    };
    table.irecv = [](void* comm, int count, void** data, Size* bytes, int* tags, void** memory,
                     void** handles, void** request) {
      Expect(handles != nullptr);
      return Irecv(comm, count, data, bytes, tags, memory, handles[0], request);
    };
  } else {
    table.isend = [](void* comm, void* data, Size bytes, int tag, void* memory, void** request) {
      return Isend(comm, data, static_cast<size_t>(bytes), tag, memory, nullptr, request);
    };
    table.irecv = [](void* comm, int count, void** data, Size* bytes, int* tags, void** memory,
                     void** request) {
      std::array<size_t, kMostReceives> sizes = {};
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        sizes[i] = static_cast<size_t>(bytes[i]);
      }
      return Irecv(comm, count, data, sizes.data(), tags, memory, nullptr, request);
    };
  }
  table.iflush = Iflush;
  table.test = Test;
  table.close_send = CloseComm;
  table.close_recv = CloseComm;
  table.close_listen = CloseListen;
  return table;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int exampleViolations() { return violations.load(); }
EXPORT int exampleOpenObjects() { return open_objects.load(); }
EXPORT int exampleGpuRegions() { return gpu_regions.load() + dmabufs.load(); }
EXPORT int exampleFlushes() { return flushes.load(); }

#ifdef ONLY_VERSION
#define NAME_OF(version) ncclNetPlugin_v##version
#define NAME(version) NAME_OF(version)
EXPORT Table<ONLY_VERSION> NAME(ONLY_VERSION);
Table<ONLY_VERSION> NAME(ONLY_VERSION) = MakeTable<ONLY_VERSION>();
#else
EXPORT Table<12> ncclNetPlugin_v12;
Table<12> ncclNetPlugin_v12 = MakeTable<12>();
#endif
