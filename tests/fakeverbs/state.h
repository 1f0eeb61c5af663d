#pragma once

// Has what the files of the stand-in for libibverbs share: the objects behind the structures of
// <infiniband/verbs.h>, and what NICs tell one another.

#include <infiniband/verbs.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fake_verbs.h"

#undef ibv_query_port
#undef ibv_reg_mr

namespace fakeverbs {

// Number of a process, in the upper bits of its queue pairs' numbers.
inline constexpr int kSlotShift = 12;
inline constexpr uint32_t kSlots = 1u << 12;
inline constexpr uint32_t kPacketMask = 0xffffff;

// Each device counts its queue pairs by itself, so that two of them have pairs of one number. A key
// tells the pairs of a process apart: the device's index stands above the 24 bits of the number.
inline constexpr int kDeviceShift = 24;
inline constexpr uint32_t kNumberMask = (1u << kDeviceShift) - 1;

// Limits of every device.
inline constexpr uint32_t kMaxWork = 8192;
inline constexpr int kMaxCompletions = 1 << 17;
inline constexpr int kMaxElements = 4;

// What an atomic operation writes.
struct AtomicWrite {
  uint64_t* word = nullptr;
  uint64_t value = 0;
};

struct Device {
  ibv_device device = {};  // first: a pointer to it is one to this
  DeviceSpec spec;
  uint32_t index = 0;
  uint32_t next_pair = 0;
  int open = 0;
  std::optional<AtomicWrite> atomic;  // of the last atomic operation, which has read the word
};

struct Context {
  ibv_context context = {};  // first
  Device* device = nullptr;
  std::deque<ibv_async_event> events;  // those that nobody has taken
};

struct Domain {
  ibv_pd pd = {};  // first
  int users = 0;
};

struct Region {
  ibv_mr mr = {};  // first
  Domain* domain = nullptr;
  uint64_t begin = 0;         // Queue pairs name this address.
  std::byte* base = nullptr;  // where it is in this process
  unsigned access = 0;
  void* mapping = nullptr;  // The mapping of a DMA-BUF.
  size_t mapping_bytes = 0;
};

struct Cq;

struct Channel {
  ibv_comp_channel channel = {};  // first
  std::deque<Cq*> events;
  int users = 0;
};

struct Completion {
  ibv_wc wc = {};
  uint32_t pair = 0;    // the queue pair's key
  uint64_t posted = 0;  // The number of the send among those of its queue pair; 0: it is none.
};

struct Cq {
  ibv_cq cq = {};  // first
  size_t room = 0;
  std::deque<Completion> completions;
  bool armed = false;
  uint64_t events = 0;  // So many events were raised.
  uint64_t taken = 0;
  uint64_t acked = 0;
  int users = 0;
};

enum class FrameKind : uint8_t { kRequest, kReply };

// Why a request was refused by the other NIC.
enum class Answer : uint8_t { kDone, kSilent, kNotReady, kAccess, kInvalid, kOperation };

// In front of what NICs tell one another; `bytes` bytes follow.
struct Frame {
  uint32_t magic = 0;
  FrameKind kind = FrameKind::kRequest;
  uint8_t opcode = 0;  // an ibv_wr_opcode
  bool last = false;   // It is the last of a message, or of the answer to one.
  Answer answer = Answer::kDone;
  // Queue pairs: a request has the target's number and the source's key, an answer both keys.
  uint32_t target = 0;
  uint32_t source = 0;
  uint32_t packet = 0;  // the message's number
  uint32_t bytes = 0;
  uint64_t offset = 0;  // Where these bytes lie in the message.
  uint64_t total = 0;
  uint64_t address = 0;
  uint64_t operand = 0;
  uint64_t swap = 0;
  uint32_t key = 0;
  uint32_t immediate = 0;
  uint16_t lid = 0;
  bool global = false;
  std::array<uint8_t, 16> gid = {};
};

// A posted send.
struct Work {
  Frame frame;
  uint64_t id = 0;
  uint64_t posted = 0;
  unsigned flags = 0;
  std::vector<ibv_sge> elements;
  std::vector<std::byte> inlined;
  std::vector<std::byte> sent;  // of a short request, for CheckUnchanged
  bool examined = false;        // Injected faults have been looked for.
  bool lose_answer = false;
  ibv_wc_status failure = IBV_WC_SUCCESS;
};

// Bytes of a write that have come and not reached memory.
struct Arrived {
  std::byte* to = nullptr;
  std::vector<std::byte> bytes;
  bool on_gpu = false;  // The memory is a DMA-BUF's, and only a read has the bytes in place.
};

struct Posted {
  uint64_t id = 0;
  std::vector<ibv_sge> elements;
};

struct ManagedId;     // manager.cc
struct ManagerState;  // manager.cc

struct Qp {
  ibv_qp qp = {};  // first
  uint32_t key = 0;
  Context* context = nullptr;
  Domain* domain = nullptr;
  ibv_qp_cap caps = {};
  bool all_signaled = false;
  unsigned access = 0;
  uint8_t port = 1;
  uint32_t remote = 0;
  ibv_ah_attr route = {};
  uint32_t next_packet = 0;      // The number of the next message posted.
  uint32_t expected_packet = 0;  // The number of the next message to come.
  uint64_t posted = 0;
  uint64_t reclaimed = 0;  // The slots of so many of them are free again.
  std::deque<std::shared_ptr<Work>> sends;
  std::deque<Posted> receives;
  std::deque<Arrived> arrived;  // They stand in the order in which they came.
  std::deque<Completion> held;  // completions of receives that nobody sees yet
  uint64_t events = 0;          // asynchronous ones that were taken and not acknowledged
  // iWARP: what joined it, while its connection stands; and whether it must not send, because it
  // was accepted and nothing has come yet.
  ManagedId* managed = nullptr;
  bool silent = false;
};

struct CallRefusal {
  std::string call;
  int error = 0;
  int times = 0;
  int skip = 0;
};

// Is told of memory that is registered, with its DMA-BUF, in which it begins at `offset`, and of
// its end. Called with the state's lock held. Memory without a DMA-BUF is not told of.
class RegionWatcher {
 public:
  virtual ~RegionWatcher() = default;
  virtual void Added(const Region& region, int fd, uint64_t offset) = 0;
  virtual void Gone(uint32_t key) = 0;
};
void WatchRegions(RegionWatcher* watcher);

struct State {
  State();

  std::mutex mutex;
  std::condition_variable acknowledged;  // An event of a queue pair was acknowledged.
  std::vector<std::unique_ptr<Device>> devices;
  std::map<Context*, std::unique_ptr<Context>> contexts;
  std::map<Domain*, std::unique_ptr<Domain>> domains;
  std::map<uint32_t, std::unique_ptr<Region>> regions;  // The key is that of remote access.
  std::map<Channel*, std::unique_ptr<Channel>> channels;
  std::map<Cq*, std::unique_ptr<Cq>> queues;
  std::map<uint32_t, std::unique_ptr<Qp>> pairs;  // by Qp::key
  uint32_t next_key = 0;
  std::vector<CallRefusal> refusals;
  RegionWatcher* watcher = nullptr;
  std::list<SendFault> send_faults;
  uint64_t fail_one_in = 0;  // 0: none
  uint64_t down_after = 0;   // 0: never
  uint64_t fatal_after = 0;  // 0: never
  uint64_t examined = 0;     // requests, over the life of the process
  std::vector<Call> calls;
  bool late_on_gpu = false;  // Writes to DMA-BUFs come behind their completions.
  bool hold_sends = false;
  bool hold_answers = false;
  Delivery delivery;
  std::mt19937 random;  // It decides how requests are delivered.
  std::shared_ptr<ManagerState> manager;
};

// The state of this process. A child of a fork has one of its own.
State& TheState();
using Lock = std::lock_guard<std::mutex>;

// All of these REQUIRE that the state's lock is held.

// Returns the errno value with which a call is to fail, or 0.
int Refusal(const char* call);
void SetPortState(Device& device, int port, bool active);
void RaiseFatalEvent(State& s, const Device& device);
void Note(const Call& call);
// Ends the process: the library under test has done what no NIC allows.
[[noreturn]] void Violation(const std::string& what);
// Returns where a registration has these bytes; null when it does not, or forbids the access.
std::byte* Locate(uint32_t key, const Domain* domain, uint64_t address, uint64_t bytes,
                  unsigned access);
void Complete(Cq& queue, const Completion& completion);
// Raises the event of a queue that is armed; returns whether it was.
bool RaiseIfArmed(Cq& queue);
void Raise(Context& context, const ibv_async_event& event);
const PortSpec& PortOf(const Qp& pair);
void Fail(Qp& pair);
// Completes the sends at the head of the queue that have failed, and all behind them.
void Settle(Qp& pair);
// iWARP: has a queue pair that is joined end its connection.
void LeaveManaged(Qp& pair);
// Forgets what the connection manager was told to do; returns how many objects of it are alive.
void ResetManager();
int ManagedObjectsAlive();
// In the child of a fork: closes what is the parent's.
void CloseManagerInChild(ManagerState& manager);
// Completes the first send.
void Finish(Qp& pair, ibv_wc_status status);
// Shows the completions that a queue pair holds back.
void ShowHeld(Qp& pair);
// Ends the process where a request that is answered sends other bytes than before: a NIC that gets
// no answer reads the memory again.
void CheckUnchanged(const Qp& pair, const Work& work);

// The NIC's thread.
void StartNic();
uint32_t SlotOfNic();
// Hands a posted send to the NIC.
void Transmit(Qp& pair, std::shared_ptr<Work> work);
// Has the NIC look at what it holds back.
void WakeNic();

}  // namespace fakeverbs
