#include "fakecard/card_link.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

#include "fakecard/fake_mlx5_state.h"
#include "fakeverbs/state.h"

namespace fakemlx5 {
namespace {

using tutti::testing::FakeCard;

constexpr size_t kRegisterBytes = 1 << 20;

// Ends the process, which would not work any more.
[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

// -------------------------------------------------------------------------------------------------
// A thread of this process

class OwnCard final : public CardLink {
 public:
  OwnCard(FakeCard::Finder finder, tutti::testing::CardReach* reach)
      : card_(/*seed=*/7, /*most_delay=*/1) {
    card_.SetFinder(std::move(finder));
    if (reach != nullptr) card_.SetReach(reach);
    card_.Start();
  }
  uint32_t AddQueue(uint32_t domain, uint16_t size, const PlacedQueue& queue) override {
    return card_.AddQueue(
        static_cast<int>(domain), size,
        {.entries =
             reinterpret_cast<tutti::device::mlx5::Entry*>(queue.entries->base + queue.entries_at),
         .completions = reinterpret_cast<uint8_t*>(queue.completions->base + queue.completions_at),
         .record = reinterpret_cast<uint32_t*>(queue.record->base + queue.record_at),
         .doorbell = queue.uar->doorbell,
         .completions_number = queue.completions_number});
  }
  void RemoveQueue(uint32_t queue) override { card_.RemoveQueue(queue); }
  void Connect(uint32_t queue, uint32_t to) override { card_.Connect(queue, to); }
  bool IsDead(uint32_t queue) override { return card_.IsDead(queue); }
  void FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome) override {
    card_.FailEntry(queue, index, syndrome);
  }
  std::vector<std::string> complaints() override { return card_.complaints(); }
  std::vector<std::string> Describe() override { return card_.Describe(); }

 private:
  FakeCard card_;
};

// -------------------------------------------------------------------------------------------------
// A process of its own

enum class Wish : uint32_t {
  kUmem,
  kUmemGone,
  kRegion,
  kRegionGone,
  kAdd,
  kRemove,
  kConnect,
  kIsDead,
  kFail,
  kComplaints,
  kDescribe,
  kEndCard
};
// What is asked of the process, with a descriptor where memory is given; and what it answers.
struct Request {
  Wish wish;
  uint32_t number = 0;  // of a umem, a region or a queue pair
  uint64_t values[10] = {};
};
struct Answer {
  uint64_t value = 0;
  char text[8192] = {};  // lines
};

// The side of the card.
class Server {
 public:
  Server(int socket, std::byte* registers) : socket_(socket), registers_(registers) {}

  // Returns when the other side has ended.
  void Serve() {
    Request request;
    int fd = -1;
    while (Receive(&request, &fd)) {
      Answer answer;
      std::string text;
      answer.value = Fulfil(request, fd, &text);
      std::snprintf(answer.text, sizeof(answer.text), "%s", text.c_str());
      if (fd >= 0) close(fd);
      if (send(socket_, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer)) return;
    }
  }

 private:
  struct Mapping {
    std::byte* mapped = nullptr;
    size_t mapped_bytes = 0;
    std::byte* base = nullptr;
    uint64_t bytes = 0, begin = 0, domain = 0, access = 0;
  };

  bool Receive(Request* request, int* fd) {
    iovec part = {request, sizeof(*request)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    *fd = -1;
    if (recvmsg(socket_, &message, MSG_CMSG_CLOEXEC) != sizeof(*request)) return false;
    if (const cmsghdr* const given = CMSG_FIRSTHDR(&message))
      std::memcpy(fd, CMSG_DATA(given), sizeof(*fd));
    return true;
  }

  static Mapping Map(int fd, uint64_t offset, uint64_t bytes) {
    const uint64_t from = offset / kPage * kPage;
    Mapping made;
    made.mapped_bytes = bytes + (offset - from);
    void* const at = mmap(nullptr, made.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                          static_cast<off_t>(from));
    if (at == MAP_FAILED) Fail("the card cannot map memory");
    made.mapped = static_cast<std::byte*>(at);
    made.base = made.mapped + (offset - from);
    made.bytes = bytes;
    return made;
  }
  void End(std::map<uint32_t, Mapping>& all, uint32_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = all.find(number);
    if (found == all.end()) return;
    munmap(found->second.mapped, found->second.mapped_bytes);
    all.erase(found);
  }

  // Called by the card's thread.
  std::byte* Find(int domain, uint32_t key, uint64_t address, uint64_t bytes, uint64_t access) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(key);
    if (found == regions_.end()) return nullptr;
    const Mapping& region = found->second;
    if (region.domain != domains_[static_cast<size_t>(domain)] ||
        (region.access & access) != access || address < region.begin || bytes > region.bytes ||
        address - region.begin > region.bytes - bytes)
      return nullptr;
    return region.base + (address - region.begin);
  }
  int NumberOf(uint64_t domain) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < domains_.size(); ++i)
      if (domains_[i] == domain) return static_cast<int>(i);
    domains_.push_back(domain);
    return static_cast<int>(domains_.size() - 1);
  }

  uint32_t Add(const Request& r) {
    if (card_ == nullptr) {
      card_ = std::make_unique<FakeCard>(/*seed=*/7, /*most_delay=*/1);
      card_->SetFinder(
          [this](int domain, uint32_t key, uint64_t address, uint64_t bytes, FakeCard::End end) {
            return Find(domain, key, address, bytes, AccessOf(end));
          });
      card_->Start();
    }
    const auto at = [&](size_t i) {
      return umems_.at(static_cast<uint32_t>(r.values[i])).base + r.values[i + 1];
    };
    return card_->AddQueue(NumberOf(r.values[0]), static_cast<uint16_t>(r.values[1]),
                           {.entries = reinterpret_cast<tutti::device::mlx5::Entry*>(at(2)),
                            .completions = reinterpret_cast<uint8_t*>(at(4)),
                            .record = reinterpret_cast<uint32_t*>(at(6)),
                            .doorbell = reinterpret_cast<uint64_t*>(registers_ + r.values[8]),
                            .completions_number = static_cast<uint32_t>(r.values[9])});
  }

  static std::string Join(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }

  uint64_t Fulfil(const Request& r, int fd, std::string* text) {
    switch (r.wish) {
      case Wish::kUmem:
        umems_[r.number] = Map(fd, r.values[0], r.values[1]);
        break;
      case Wish::kUmemGone:
        End(umems_, r.number);
        break;
      case Wish::kRegion: {
        Mapping made = Map(fd, r.values[0], r.values[1]);
        made.begin = r.values[2];
        made.domain = r.values[3];
        made.access = r.values[4];
        const std::lock_guard lock(mutex_);
        regions_[r.number] = made;
        break;
      }
      case Wish::kRegionGone:
        End(regions_, r.number);
        break;
      case Wish::kAdd:
        return Add(r);
      case Wish::kRemove:
        card_->RemoveQueue(r.number);
        break;
      case Wish::kConnect:
        card_->Connect(r.number, static_cast<uint32_t>(r.values[0]));
        break;
      case Wish::kIsDead:
        return card_->IsDead(r.number) ? 1 : 0;
      case Wish::kFail:
        card_->FailEntry(r.number, r.values[0], static_cast<uint8_t>(r.values[1]));
        break;
      case Wish::kComplaints:
        if (card_ != nullptr) *text = Join(card_->complaints());
        break;
      case Wish::kDescribe:
        if (card_ != nullptr) *text = Join(card_->Describe());
        break;
      case Wish::kEndCard:
        card_.reset();
        break;
    }
    return 0;
  }

  const int socket_;
  std::byte* const registers_;
  std::mutex mutex_;  // guards regions_ and domains_
  std::map<uint32_t, Mapping> umems_, regions_;
  std::vector<uint64_t> domains_;
  std::unique_ptr<FakeCard> card_;
};

// This side: asks, and waits for the answer.
class Client final : public fakeverbs::RegionWatcher {
 public:
  // Makes the process, where the environment asks for it.
  static Client* Start() {
    if (std::getenv("FAKE_CARD_PROCESS") == nullptr) return nullptr;
    int ends[2];
    void* const registers =
        mmap(nullptr, kRegisterBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (registers == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      Fail("the card's process");
    const pid_t process = fork();
    if (process < 0) Fail("the card's process");
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      Server(ends[1], static_cast<std::byte*>(registers)).Serve();
      std::_Exit(0);
    }
    close(ends[1]);
    PutRegistersInto(registers, kRegisterBytes);
    auto* const made = new Client(ends[0], static_cast<std::byte*>(registers));
    fakeverbs::WatchRegions(made);
    return made;
  }

  Answer Ask(const Request& request, int fd = -1) {
    iovec part = {const_cast<Request*>(&request), sizeof(request)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const given = CMSG_FIRSTHDR(&message);
      given->cmsg_level = SOL_SOCKET;
      given->cmsg_type = SCM_RIGHTS;
      given->cmsg_len = CMSG_LEN(sizeof(fd));
      std::memcpy(CMSG_DATA(given), &fd, sizeof(fd));
    }
    Answer answer;
    const std::lock_guard lock(mutex_);
    if (sendmsg(socket_, &message, MSG_NOSIGNAL) != sizeof(request) ||
        recv(socket_, &answer, sizeof(answer), 0) != sizeof(answer))
      Fail("the card's process has ended");
    return answer;
  }

  uint64_t PlaceOf(const uint64_t* doorbell) const {
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(doorbell) - registers_);
  }

  // Memory that is registered by its address the card does not find.
  void Added(const fakeverbs::Region& region, int fd, uint64_t offset) override {
    Request request{.wish = Wish::kRegion, .number = region.mr.lkey};
    request.values[0] = offset;
    request.values[1] = region.mr.length;
    request.values[2] = region.begin;
    request.values[3] = reinterpret_cast<uintptr_t>(region.domain);
    request.values[4] = region.access;
    Ask(request, fd);
  }
  void Gone(uint32_t key) override { Ask({.wish = Wish::kRegionGone, .number = key}); }

 private:
  Client(int socket, std::byte* registers) : socket_(socket), registers_(registers) {}

  const int socket_;
  std::byte* const registers_;
  std::mutex mutex_;
};

// Made when the library is loaded.
Client* const the_client = Client::Start();

class CardApart final : public CardLink {
 public:
  ~CardApart() override { the_client->Ask({.wish = Wish::kEndCard}); }
  uint32_t AddQueue(uint32_t domain, uint16_t size, const PlacedQueue& queue) override {
    Request request{.wish = Wish::kAdd};
    request.values[0] = reinterpret_cast<uintptr_t>(DomainOf(domain));
    request.values[1] = size;
    request.values[2] = queue.entries->umem.umem_id;
    request.values[3] = queue.entries_at;
    request.values[4] = queue.completions->umem.umem_id;
    request.values[5] = queue.completions_at;
    request.values[6] = queue.record->umem.umem_id;
    request.values[7] = queue.record_at;
    request.values[8] = the_client->PlaceOf(queue.uar->doorbell);
    if (request.values[8] >= kRegisterBytes) Fail("doorbells that the card's process has not");
    request.values[9] = queue.completions_number;
    return static_cast<uint32_t>(the_client->Ask(request).value);
  }
  void RemoveQueue(uint32_t queue) override {
    the_client->Ask({.wish = Wish::kRemove, .number = queue});
  }
  void Connect(uint32_t queue, uint32_t to) override {
    the_client->Ask({.wish = Wish::kConnect, .number = queue, .values = {to}});
  }
  bool IsDead(uint32_t queue) override {
    return the_client->Ask({.wish = Wish::kIsDead, .number = queue}).value != 0;
  }
  void FailEntry(uint32_t queue, uint64_t index, uint8_t syndrome) override {
    the_client->Ask({.wish = Wish::kFail, .number = queue, .values = {index, syndrome}});
  }
  std::vector<std::string> complaints() override { return Lines(Wish::kComplaints); }
  std::vector<std::string> Describe() override { return Lines(Wish::kDescribe); }

 private:
  static std::vector<std::string> Lines(Wish wish) {
    std::istringstream text(the_client->Ask({.wish = wish}).text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
};

}  // namespace

uint64_t AccessOf(FakeCard::End end) {
  static constexpr unsigned kAccess[] = {0, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                         IBV_ACCESS_REMOTE_ATOMIC};
  return kAccess[static_cast<size_t>(end)];
}

bool CardIsApart() { return the_client != nullptr; }

std::unique_ptr<CardLink> MakeCard(FakeCard::Finder finder, tutti::testing::CardReach* reach) {
  if (CardIsApart()) return std::make_unique<CardApart>();
  return std::make_unique<OwnCard>(std::move(finder), reach);
}

bool GiveUmem(const Umem& umem, int fd, uint64_t offset) {
  if (!CardIsApart()) return true;
  if (fd < 0) return false;
  the_client->Ask(
      {.wish = Wish::kUmem, .number = umem.umem.umem_id, .values = {offset, umem.bytes}}, fd);
  return true;
}
void TakeUmemBack(const Umem& umem) {
  if (CardIsApart()) the_client->Ask({.wish = Wish::kUmemGone, .number = umem.umem.umem_id});
}

}  // namespace fakemlx5
