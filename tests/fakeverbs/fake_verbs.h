#pragma once

// A stand-in for libibverbs, for tests on machines without InfiniBand: a shared library with the
// functions that src/transport/net/verbs/library.h looks up. Name its file in TUTTI_IBVERBS, or
// link a test with it in order to call the functions below, which say what devices there are, what
// fails, and what was called. It stands in for librdmacm, too, by which queue pairs of iWARP are
// joined (manager.cc): name it in TUTTI_RDMACM.
//
// Every process that opens a device runs a thread, the NIC, which moves the bytes. NICs of all
// processes of this user in one network namespace reach one another, over Unix sockets; so ranks
// may be threads or processes. Bytes pass in order, unless SetDelivery says otherwise, and none is
// lost. What a real NIC tries again
// until its timer runs out fails here at once: a queue pair that is not there, a packet number that
// is not expected, a port that is down, a process that has ended.
//
// Devices number their queue pairs alike, as NICs do. The stand-in is stricter than most NICs: a
// request that is posted to a full queue fails, a slot of the send queue is free again only when a
// completion at or behind it was polled, a completion queue that overflows ends the process, and
// objects that are still in use cannot be destroyed. Devices of iWARP refuse immediate values and
// atomic operations, and an end that has accepted a connection and sends before something has come
// over it ends the process: the other end's kernel would take that for a part of the set-up.
//
// An atomic operation reads its word, and writes it a while later. It is atomic among the
// operations of its device, as IBV_ATOMIC_HCA says, and among no others: what a processor or
// another device adds to the word meanwhile is lost.
//
// Threads: any.

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fakeverbs {

struct PortSpec {
  std::string address = "10.77.0.1";  // Its only GID is made from this.
  bool active = true;
  uint8_t speed = 32;  // of each of its 4 lanes, as in ibv_port_attr: EDR, 100 Gb/s together
};

struct DeviceSpec {
  std::string name = "fake0";
  std::vector<PortSpec> ports = {{}};
  bool infiniband = false;     // a fabric; else Ethernet
  bool iwarp = false;          // iWARP; else RoCE
  std::string sysfs;           // the folder that its PCI path is read from; may be empty
  uint32_t max_inline = 1024;  // bytes of a request
  bool dmabuf = true;          // registers DMA-BUFs
  bool atomics = true;
  // Atomic operations are atomic with the processor's (IBV_ATOMIC_GLOB), too.
  bool global_atomics = false;
};

// Returns an address of this host's network interfaces, none of loop-back or of one link alone;
// empty where there is none. Only at such an address does a device of iWARP have a port.
std::string InterfaceAddress();

// Says which devices there are from now on. The default is one, or what FAKE_VERBS says:
// "fake0=10.77.0.1,fake1=10.77.0.2/10.77.0.3" has one port for each address, and "fake0=iwarp" is a
// device of iWARP at InterfaceAddress(). REQUIRES: no device is open.
void SetDevices(std::vector<DeviceSpec> devices);

// Takes back what the functions below have said, and forgets the calls.
void Reset();

// Has calls of a function ("reg_mr") fail with an errno value: `times` of them, after `skip`.
// FAKE_VERBS_REFUSE=<call> in the environment has all of them fail with ENOMEM.
void RefuseCalls(const std::string& call, int error, int times = 1, int skip = 0);

struct SendFault {
  int opcode = -1;  // an ibv_wr_opcode; -1: any
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  int skip = 0;             // requests of this kind that are left alone first
  bool delivered = false;   // the bytes arrive, and the acknowledgement is lost
  uint32_t queue_pair = 0;  // 0: any
  std::string device = {};  // empty: any
};
// Has one posted request fail with a completion, as the other end's or the NIC's fault.
// FAKE_VERBS_FAIL_ONE_IN=<n> in the environment has every nth request fail so.
void FailSend(const SendFault& fault);

// Holds back every request that is posted from now on, until false is said.
void HoldSends(bool hold);
// The same for the NIC's answers: the bytes arrive, and the other end is not told yet.
void HoldAnswers(bool hold);

// When the bytes of a write reach the memory of this process. The other end's completion says only
// that they have come as far as this NIC. A NIC may keep them, and let writes of one queue pair
// pass one another where they do not overlap, until an atomic operation, a read, a send, or a write
// with an immediate value comes on the same queue pair: that finds all writes before it in place.
enum class Order : uint8_t {
  kAtOnce,    // Packets arrive when they come.
  kShuffled,  // Packets arrive in an order of chance, within milliseconds.
  kReversed,  // the last first, one each millisecond
  kForced,    // only when something else on their queue pair demands it
};
struct Delivery {
  Order order = Order::kAtOnce;
  uint32_t seed = 1;  // The seed of what happens by chance.
  // False: atomic operations do not find the writes before them in place, which no NIC may do. For
  // tests that ask whether a broken network is noticed.
  bool atomics_wait = true;
};
// FAKE_VERBS_LATE_ON_GPU=1 in the environment has writes to DMA-BUFs come behind the completions
// that tell of them, whatever the order: over PCIe, data for a GPU and a completion for memory of
// the host take two ways. Only a read by the same device finds all writes before it in place.
//
// Delivers what waits, and goes on as it says. FAKE_VERBS_SHUFFLE=<seed> in the environment
// shuffles from the start.
void SetDelivery(const Delivery& delivery);

// Of what follows a step of the connection manager: its failure, or nothing at all.
struct ManagerFault {
  std::string step;  // "address", "route", "connect" or "accept"
  int error = 0;     // an errno value, of the event that tells of the failure; 0: no event comes
  int times = 1;
  int skip = 0;
};
void FailManager(const ManagerFault& fault);
// Breaks the TCP connection of a queue pair of iWARP that is joined. REQUIRES: there is one.
void CutConnection(uint32_t queue_pair);
// Tells everybody who uses a device by the connection manager that it is taken out.
void RemoveDevice(const std::string& device);
// Returns the port at which queue pairs have been awaited last.
uint16_t AwaitedPort();
// Connects, as a stranger could, to what awaits queue pairs at a port of InterfaceAddress(), and
// says `secret`. Returns whether it was refused: the connection was closed without an answer that
// accepts it.
bool StrangerIsRefused(uint16_t port, const std::string& secret);

// Takes a port down or brings it up, with the event that tells of it. FAKE_VERBS_DOWN_AFTER=<n> in
// the environment takes the first port of the first device down once n requests have been posted.
void SetPortActive(const std::string& device, int port, bool active);
// FAKE_VERBS_FATAL_AFTER=<n> in the environment raises IBV_EVENT_DEVICE_FATAL on the first device
// once n requests have been posted.
void RaiseDeviceEvent(const std::string& device, ibv_event_type event);
// Raises, for each completion queue that is armed, the event that it is armed for, with no
// completion, as a device does that is late with the event of one that was polled before. Returns
// how many there were.
int RaiseCompletionEvents();
// REQUIRES: only one device has a queue pair of this number.
void RaiseQueuePairEvent(uint32_t number, ibv_event_type event);

// Says what was called, in this order: registrations, queue pairs, posted requests.
struct Call {
  std::string name;      // "reg_mr", "reg_mr_iova2", "reg_dmabuf_mr", "dereg_mr", "create_qp",
                         // "modify_qp", "post_send"
  uint64_t address = 0;  // the virtual address; post_send: of the other end
  size_t bytes = 0;
  unsigned flags = 0;       // access; post_send: the request's
  int opcode = 0;           // post_send: an ibv_wr_opcode; modify_qp: the new state
  uint32_t queue_pair = 0;  // create_qp, modify_qp, post_send: its number
  std::string device = {};  // create_qp, post_send: the device of the queue pair
  bool begins_list = true;  // post_send: the first request of a call
};
std::vector<Call> Calls();

// Appends a line to the file that FAKE_VERBS_TELL names, if any: a Call, or the attributes that a
// queue pair gets.
void Tell(const char* line);

// Returns how many objects are alive: contexts, domains, registrations, queues, queue pairs, and
// the connection manager's channels of events and ids.
int ObjectsAlive();

}  // namespace fakeverbs
