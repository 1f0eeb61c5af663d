// The NIC: a thread of each process that carries messages between queue pairs, of this process or
// others. A process has a number, its slot, which its queue pairs' numbers begin with and by which
// its Unix socket is found. Requests go over a connection from the requester's process, and the
// answers come back over the same one.

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "queue_pairs.h"
#include "state.h"

namespace fakeverbs {
namespace {

// Messages are cut into parts of so many bytes.
constexpr size_t kPart = size_t{128} << 10;
constexpr size_t kReceiveBytes = 4 * kPart;
constexpr std::chrono::milliseconds kDeliverEvery(1);
// The next part to be sent is chosen among the first parcels of a connection.
constexpr size_t kMostChoices = 16;
// Of requests up to this length the NIC looks whether their memory stays unchanged.
constexpr size_t kMostKept = 4096;
// One round in so many raises an event for nothing.
constexpr unsigned kMostEventsApart = 16;

// Holds what is to be sent over a connection: a request of a queue pair, or an answer.
struct Parcel {
  uint32_t pair = 0;
  std::shared_ptr<Work> work;  // null: an answer
  Frame answer;                // a read's bytes follow it
  uint64_t offset = 0;         // So much was sent before it.
};

struct Link {
  int fd = -1;
  uint32_t slot = 0;  // Requests go to the process of this slot; kSlots: it sends them to this one.
  std::deque<Parcel> parcels;
  std::vector<std::byte> out;  // a frame on its way
  size_t sent = 0;
  std::vector<std::byte> in;
  size_t filled = 0;
  bool watched_for_room = false;
};

struct Nic {
  uint32_t slot = 0;
  int listener = -1;
  int epoll = -1;
  int wake = -1;
  std::map<uint32_t, std::unique_ptr<Link>> requests;  // The key is the other process's slot.
  std::list<Link> serving;
  std::set<uint32_t> waiting;  // slots for which something was posted
};

Nic* nic = nullptr;

sockaddr_un AddressOf(uint32_t slot, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name =
      "tutti-fake-verbs." + std::to_string(getuid()) + "." + std::to_string(slot);
  memcpy(address.sun_path + 1, name.data(), name.size());  // an abstract name begins with a zero
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

void Watch(int fd, uint32_t events, int operation) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(nic->epoll, operation, fd, &event) != 0) Violation("a socket cannot be watched");
}

// Copies a part of what a request sends. Returns false where its memory is not registered.
bool Gather(const Qp& pair, const Work& work, uint64_t offset, size_t bytes, std::byte* to) {
  if ((work.flags & IBV_SEND_INLINE) != 0) {
    if (bytes > 0) memcpy(to, work.inlined.data() + offset, bytes);
    return true;
  }
  uint64_t at = 0;
  size_t done = 0;
  for (const ibv_sge& element : work.elements) {
    while (done < bytes && offset + done >= at && offset + done < at + element.length) {
      const uint64_t skip = offset + done - at;
      const size_t part = std::min<size_t>(bytes - done, element.length - skip);
      const std::byte* const from = Locate(element.lkey, pair.domain, element.addr + skip, part, 0);
      if (!from) return false;
      memcpy(to + done, from, part);
      done += part;
    }
    at += element.length;
  }
  return done == bytes;
}

void ApplyFaults(const Qp& pair, Work& work) {
  work.examined = true;
  State& s = TheState();
  ++s.examined;
  if (s.examined == s.down_after) SetPortState(*s.devices.front(), 1, false);
  if (s.examined == s.fatal_after) RaiseFatalEvent(s, *s.devices.front());
  const bool unlucky = s.fail_one_in > 0 && s.examined % s.fail_one_in == 0;
  if (unlucky || !PortOf(pair).active) work.failure = IBV_WC_RETRY_EXC_ERR;
  auto& faults = s.send_faults;
  for (auto fault = faults.begin(); fault != faults.end(); ++fault) {
    if (fault->opcode >= 0 && fault->opcode != work.frame.opcode) continue;
    if (fault->queue_pair != 0 && fault->queue_pair != pair.qp.qp_num) continue;
    if (!fault->device.empty() && fault->device != pair.context->device->spec.name) continue;
    if (fault->skip-- > 0) continue;
    work.failure = fault->status;
    work.lose_answer = fault->delivered;
    faults.erase(fault);
    return;
  }
}

bool CarriesData(uint8_t opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

// Returns the queue pair of this process whose order a parcel has to keep.
uint32_t OrderOf(const Parcel& parcel) { return parcel.work ? parcel.pair : parcel.answer.source; }

// Returns the parcel whose next part goes first. Only the parcels of one queue pair keep their
// order.
size_t ChooseParcel(const Link& link) {
  std::array<size_t, kMostChoices> choices;
  size_t count = 0;
  for (size_t i = 0; i < std::min(link.parcels.size(), kMostChoices); ++i) {
    const auto begin = link.parcels.begin(), end = begin + static_cast<ptrdiff_t>(i);
    const bool behind = std::any_of(
        begin, end, [&](const Parcel& earlier) { return OrderOf(earlier) == OrderOf(*end); });
    if (!behind) choices[count++] = i;
  }
  return choices[TheState().random() % count];
}

void PutFrame(Link& link, const Frame& frame) {
  link.out.resize(sizeof(Frame) + frame.bytes);
  memcpy(link.out.data(), &frame, sizeof(Frame));
  link.sent = 0;
}

// Puts the next part of a request into `out`. Returns whether it was the last one; nothing is put
// there where the request is not to be sent.
bool PutRequest(Link& link, Parcel& parcel) {
  State& s = TheState();
  const auto found = s.pairs.find(parcel.pair);
  if (found == s.pairs.end()) return true;
  Qp& pair = *found->second;
  if (std::find(pair.sends.begin(), pair.sends.end(), parcel.work) == pair.sends.end()) return true;
  Work& work = *parcel.work;
  if (!work.examined) ApplyFaults(pair, work);
  if (work.failure != IBV_WC_SUCCESS && !work.lose_answer) {
    Settle(pair);
    return true;
  }
  Frame frame = work.frame;
  const uint64_t left = CarriesData(frame.opcode) ? frame.total - parcel.offset : 0;
  frame.bytes = static_cast<uint32_t>(std::min<uint64_t>(left, kPart));
  frame.offset = parcel.offset;
  frame.last = frame.bytes == left;
  PutFrame(link, frame);
  if (frame.bytes > 0 &&
      !Gather(pair, work, parcel.offset, frame.bytes, &link.out[sizeof(Frame)])) {
    link.out.clear();
    work.failure = IBV_WC_LOC_PROT_ERR;
    Settle(pair);
    return true;
  }
  if (frame.total <= kMostKept && (work.flags & IBV_SEND_INLINE) == 0)
    work.sent.insert(work.sent.end(), link.out.begin() + sizeof(Frame), link.out.end());
  parcel.offset += frame.bytes;
  return frame.last;
}

// The same for an answer.
bool PutAnswer(Link& link, Parcel& parcel) {
  State& s = TheState();
  Frame frame = parcel.answer;
  const bool reads = frame.opcode == IBV_WR_RDMA_READ && frame.answer == Answer::kDone;
  const uint64_t left = reads ? frame.total - parcel.offset : 0;
  frame.bytes = static_cast<uint32_t>(std::min<uint64_t>(left, kPart));
  frame.offset = parcel.offset;
  frame.last = frame.bytes == left;
  PutFrame(link, frame);
  if (frame.bytes > 0) {
    const auto pair = s.pairs.find(frame.source);
    const std::byte* const from =
        pair == s.pairs.end()
            ? nullptr
            : Locate(frame.key, pair->second->domain, frame.address + parcel.offset, frame.bytes,
                     IBV_ACCESS_REMOTE_READ);
    if (!from) {  // it was there when the request came
      frame.answer = Answer::kAccess;
      frame.bytes = 0;
      frame.last = true;
      PutFrame(link, frame);
      return true;
    }
    memcpy(&link.out[sizeof(Frame)], from, frame.bytes);
  }
  parcel.offset += frame.bytes;
  return frame.last;
}

// Writes what the socket takes. Returns false when the other process is gone.
bool Write(Link& link) {
  State& s = TheState();
  for (;;) {
    while (link.sent < link.out.size()) {
      const ssize_t sent = send(link.fd, &link.out[link.sent], link.out.size() - link.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent < 0) {
        if (!link.watched_for_room) Watch(link.fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
        link.watched_for_room = true;
        return true;
      }
      link.sent += static_cast<size_t>(sent);
    }
    link.out.clear();
    link.sent = 0;
    if (link.parcels.empty()) break;
    if (link.parcels.front().work ? s.hold_sends : s.hold_answers) break;
    const size_t chosen = ChooseParcel(link);
    Parcel& parcel = link.parcels[chosen];
    const bool last = parcel.work ? PutRequest(link, parcel) : PutAnswer(link, parcel);
    if (last) link.parcels.erase(link.parcels.begin() + static_cast<ptrdiff_t>(chosen));
  }
  if (link.watched_for_room) Watch(link.fd, EPOLLIN, EPOLL_CTL_MOD);
  link.watched_for_room = false;
  return true;
}

void TakeFrame(Link& link, const Frame& frame, const std::byte* bytes) {
  if (frame.kind == FrameKind::kReply) return TakeAnswer(frame, bytes);
  Frame answer;
  if (!Take(frame, bytes, answer)) return;
  Parcel parcel;
  parcel.answer = answer;
  link.parcels.push_back(std::move(parcel));
}

// Takes what has come. Returns false when the other process is gone.
bool Read(Link& link) {
  link.in.resize(kReceiveBytes);
  for (;;) {
    const ssize_t got =
        recv(link.fd, &link.in[link.filled], link.in.size() - link.filled, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0) return Write(link);
    link.filled += static_cast<size_t>(got);
    size_t at = 0;
    while (link.filled - at >= sizeof(Frame)) {
      Frame frame;
      memcpy(&frame, &link.in[at], sizeof(frame));
      if (frame.bytes > kPart) return false;
      if (link.filled - at < sizeof(frame) + frame.bytes) break;
      TakeFrame(link, frame, link.in.data() + at + sizeof(frame));
      at += sizeof(frame) + frame.bytes;
    }
    memmove(link.in.data(), &link.in[at], link.filled - at);
    link.filled -= at;
  }
}

// Nothing that was posted for that process is answered any more.
void LosePeer(uint32_t slot) {
  for (const auto& entry : TheState().pairs) {
    Qp& pair = *entry.second;
    if (pair.remote >> kSlotShift != slot || pair.sends.empty()) continue;
    for (const auto& work : pair.sends) {
      if (work->failure == IBV_WC_SUCCESS) work->failure = IBV_WC_RETRY_EXC_ERR;
      work->lose_answer = false;
    }
    Settle(pair);
  }
}

void Drop(Link& link) {
  close(link.fd);
  if (link.slot == kSlots) {
    nic->serving.remove_if([&](const Link& each) { return &each == &link; });
    return;
  }
  const uint32_t slot = link.slot;
  nic->requests.erase(slot);
  LosePeer(slot);
}

// Connects to the process with this slot, if it is there.
bool Connect(Link& link) {
  link.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(link.slot, length);
  if (link.fd < 0 || connect(link.fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return false;
  }
  Watch(link.fd, EPOLLIN, EPOLL_CTL_ADD);
  return true;
}

void SendRequests() {
  for (const uint32_t slot : std::exchange(nic->waiting, {})) {
    const auto link = nic->requests.find(slot);
    if (link == nic->requests.end()) continue;
    const bool connected = link->second->fd >= 0 || Connect(*link->second);
    if (!connected || !Write(*link->second)) Drop(*link->second);
  }
}

void SendAnswers() {
  std::vector<Link*> links;
  for (Link& link : nic->serving) links.push_back(&link);
  for (Link* const link : links) {
    if (!Write(*link)) Drop(*link);
  }
}

void Accept() {
  const int fd = accept4(nic->listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  Link& link = nic->serving.emplace_back();
  link.fd = fd;
  link.slot = kSlots;
  Watch(fd, EPOLLIN, EPOLL_CTL_ADD);
}

Link* LinkOf(int fd) {
  for (const auto& entry : nic->requests) {
    if (entry.second->fd == fd) return entry.second.get();
  }
  for (Link& link : nic->serving) {
    if (link.fd == fd) return &link;
  }
  return nullptr;
}

// Writes what atomic operations have left to write, and shows the completions of receives that are
// held back, after a pause in which processors may add to the same words, or see the completion of
// the other end first.
void FinishLate(std::unique_lock<std::mutex>& lock) {
  State& s = TheState();
  const bool any = std::any_of(s.devices.begin(), s.devices.end(),
                               [](const auto& device) { return device->atomic.has_value(); }) ||
                   std::any_of(s.pairs.begin(), s.pairs.end(),
                               [](const auto& entry) { return !entry.second->held.empty(); });
  if (!any) return;
  lock.unlock();
  PauseByChance();
  lock.lock();
  LandAtomics();
  for (const auto& [number, pair] : s.pairs) ShowHeld(*pair);
}

// Raises an event for a completion queue that may have no completion, now and then.
void RaiseForNothing() {
  State& s = TheState();
  if (s.queues.empty() || s.random() % kMostEventsApart != 0) return;
  const auto place = static_cast<ptrdiff_t>(s.random() % s.queues.size());
  RaiseIfArmed(*std::next(s.queues.begin(), place)->second);
}

void Run() {
  State& s = TheState();
  bool waits = false;  // Something that has come is perhaps to be delivered later.
  auto due = std::chrono::steady_clock::now();
  for (;;) {
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(nic->epoll, events.data(), events.size(),
                                 waits ? static_cast<int>(kDeliverEvery.count()) : -1);
    std::unique_lock lock(s.mutex);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.fd == nic->wake) {
        uint64_t times = 0;
        if (read(nic->wake, &times, sizeof(times)) < 0 && errno != EAGAIN) return;
        SendRequests();
        SendAnswers();
      } else if (event.data.fd == nic->listener) {
        Accept();
      } else if (Link* const link = LinkOf(event.data.fd)) {
        const bool room = (event.events & EPOLLOUT) != 0;
        if ((room && !Write(*link)) || !Read(*link)) Drop(*link);
      }
    }
    FinishLate(lock);
    RaiseForNothing();
    const auto now = std::chrono::steady_clock::now();
    waits = now >= due ? DeliverSome() : Waits();
    if (now >= due) due = now + kDeliverEvery;
  }
}

void Wake() {
  const uint64_t one = 1;
  if (write(nic->wake, &one, sizeof(one)) < 0 && errno != EAGAIN) Violation("the NIC sleeps");
}

// A child has the parent's descriptors, and must not keep its connections open.
void CloseInChild() {
  if (!nic) return;
  close(nic->listener);
  close(nic->epoll);
  close(nic->wake);
  for (const auto& entry : nic->requests) close(entry.second->fd);
  for (const Link& link : nic->serving) close(link.fd);
  nic = nullptr;
}

// Takes the first slot that no process has, from a random one on.
void TakeSlot() {
  uint32_t slot = std::random_device{}();
  for (uint32_t tried = 0; tried < kSlots; ++tried, ++slot) {
    slot %= kSlots;
    if (slot == 0) continue;
    socklen_t length = 0;
    const sockaddr_un address = AddressOf(slot, length);
    if (bind(nic->listener, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      nic->slot = slot;
      return;
    }
  }
  Violation("too many processes use it");
}

}  // namespace

void CheckUnchanged(const Qp& pair, const Work& work) {
  if (work.sent.empty()) return;
  std::vector<std::byte> again(work.sent.size());
  if (Gather(pair, work, 0, again.size(), again.data()) && again != work.sent)
    Violation("memory is written while a request that sends it is under way");
}

void StartNic() {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (nic) return;
  [[maybe_unused]] static const int forks = pthread_atfork(nullptr, nullptr, CloseInChild);
  nic = new Nic;
  nic->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  nic->epoll = epoll_create1(EPOLL_CLOEXEC);
  nic->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  TakeSlot();
  if (listen(nic->listener, SOMAXCONN) != 0) Violation("the NIC cannot listen");
  Watch(nic->listener, EPOLLIN, EPOLL_CTL_ADD);
  Watch(nic->wake, EPOLLIN, EPOLL_CTL_ADD);
  std::thread(Run).detach();
}

uint32_t SlotOfNic() { return nic->slot; }

void Transmit(Qp& pair, std::shared_ptr<Work> work) {
  const uint32_t slot = pair.remote >> kSlotShift & (kSlots - 1);
  std::unique_ptr<Link>& link = nic->requests[slot];
  if (!link) {
    link = std::make_unique<Link>();
    link->slot = slot;
  }
  Parcel parcel;
  parcel.pair = pair.key;
  parcel.work = std::move(work);
  link->parcels.push_back(std::move(parcel));
  if (nic->waiting.insert(slot).second) Wake();
}

void WakeNic() {
  State& s = TheState();
  const Lock lock(s.mutex);
  if (!nic) return;
  for (const auto& entry : nic->requests) nic->waiting.insert(entry.first);
  Wake();
}

}  // namespace fakeverbs
