#pragma once

// The common part of the two ends of proxy connections: which thread drives them, when the progress
// thread watches them, how they fail.
//
// One thread at a time drives a connection (moves bytes, arms descriptors): the thread that holds
// `driver_`. No thread waits for the flag. Poll gives up when the flag is taken. HandOver, a ready
// descriptor and Close leave a request behind, which the holder serves before it returns. A request
// is therefore always served, by the thread that has the connection.
//
//   kernel's thread            progress thread (epoll)
//   Poll ── Drive              descriptor ready ── request ── Drive, re-arm
//   HandOver ── request ── Drive, arm
//
// Who moves data next, when no thread has the connection:
//
//   state       moves data next                              leaves the state by
//   kKernel     the kernel, by Poll                          HandOver → kProgress
//   kProgress   the progress thread, by armed descriptors    the kernel sleeps on them itself, or
//                                                            nothing is under way → kKernel;
//                                                            the kernel polls → kTimer
//   kTimer      the progress thread, by a timer instead,     the timer fires, or HandOver → kProgress;
//               because a kernel polls too or the network    the kernel sleeps on them → kKernel
//               has no descriptors
//   kStopped    nobody                                       never
//
// A descriptor is armed for a single event (EPOLLONESHOT), and only while the connection is handed
// over. An idle connection, or a connection polled by a kernel, therefore wakes no thread. An idle
// connection is armed for errors only, anew after every event: a break is noticed at once, and the
// connection is made again where the network can do so, since the other end may wait for the new
// connection. The descriptors of sockets that were replaced report errors for ever, hence a
// connection that asks for care (NetCare) is looked at by a timer instead.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "connection/proxy_connection.h"
#include "proxy/fifo_memory.h"
#include "proxy/lent_buffers.h"
#include "proxy/op_pool.h"
#include "sys/event_loop.h"
#include "transport/net/net.h"

namespace tutti {

// A FIFO of a single process, and the registration of its slots with the network.
struct NetFifo {
  FifoMemory memory;
  std::unique_ptr<NetMemory> registration;
  bool in_slots = false;              // data lies in the slots, however short: see FifoPlace
  bool flush = false;                 // arrived data in the slots is flushed
  const LentBuffers* lent = nullptr;  // See FifoPlace.
  // True where op_tags cannot travel behind the data: the network does not carry them, and the data
  // lies on a GPU at one end or both, where the processor cannot write tags. Then op_tags are the
  // tags of messages, and a network that keeps tags apart delivers nothing where the two ends are
  // in different operations.
  bool matches_op_tags = false;
};
// The op_tag as a tag of a message: for plugins, not a negative number.
constexpr uint32_t TagOf(uint32_t op_tag) { return op_tag & 0x7fffffff; }

// Says which thread drives a connection. A flag and no mutex, because no thread waits.
class TUTTI_CAPABILITY("driver") DriverFlag {
 public:
  bool TryTake() TUTTI_TRY_ACQUIRE(true) {
    return !taken_.exchange(true, std::memory_order_seq_cst);
  }
  void Give() TUTTI_RELEASE() { taken_.store(false, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> taken_ = false;
};

class ConnectionCore : public ProxyConnection {
 public:
  FifoView fifo() const override { return memory_.view(); }
  void Begin(uint64_t chunks, uint32_t op_tag) override;
  bool Poll() override;
  SleepAdvice PrepareToSleep(std::vector<pollfd>& descriptors) override;
  void HandOver() override;
  uint64_t ChunksDone() const override { return done_.load(std::memory_order_acquire); }
  Status status() const override;
  void Close(Status reason) override;
  std::string Describe() const override;

 protected:
  // `doing` is "sending" or "receiving"; `preposition` "to" or "from"; `peer` as in "rank 1 on host
  // b".
  ConnectionCore(EventLoop& loop, FifoMemory memory, NetComm& comm, std::string doing,
                 std::string peer);

  // Moves as much as can be moved now. Called by the driving thread.
  virtual Result<bool> Move() = 0;
  // Returns how many sent bytes the peer may not have yet. Called by the driving thread.
  virtual size_t CountUndelivered() const { return 0; }
  // Drives the connection once, unless another thread does, also when nothing is under way.
  bool Look();
  // Returns CountUndelivered(); nothing while another thread drives the connection.
  std::optional<size_t> Undelivered();
  // Waits until no other thread is in the connection. The most derived destructor calls this first.
  void Stop();

  // Returns whether the connection is broken, also when status() says ok because nothing is under
  // way.
  bool Failed() const { return failed_.load(std::memory_order_acquire); }

  // Chunks counted over the connection's life, done <= posted. Written by the driver, read by any.
  uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Returns the chunks of all operations that were begun.
  uint64_t begun() const { return ops_.end(); }
  // Returns the operation of a chunk that is begun and not done.
  ProxyOp OpOf(uint64_t chunk) const { return ops_.Find(chunk); }
  void CountPosted() { posted_.store(posted() + 1, std::memory_order_relaxed); }
  void CountDone() { done_.store(done() + 1, std::memory_order_release); }

 private:
  // A descriptor of the connection, as the event loop sees it.
  struct Watch {
    int fd = -1;
    std::optional<uint32_t> armed;  // the awaited events besides errors; nothing: not even errors
    bool added = false;
    std::atomic<bool> fired = false;
  };

  // Watches a connection without operations.
  void WatchIdle() TUTTI_REQUIRES(driver_);
  // Has a connection without operations driven after `after_ns`.
  void TendAfter(int64_t after_ns) TUTTI_REQUIRES(driver_);
  // Drives a connection without operations. `fired`: because a descriptor has fired.
  void Tend(bool fired) TUTTI_REQUIRES(driver_);
  // The requests, a bit each. All of them have the connection driven, unless a kernel has the
  // connection.
  enum Wish : uint32_t {
    kLook = 1,      // a descriptor is ready, or more data may be waiting
    kHandOver = 2,  // the progress thread is to drive the connection
    kTimerFired = 4,
    kTendTimerFired = 8
  };
  // Leaves a request, and serves it unless another thread has the connection and will serve it.
  void Request(Wish wish);
  void ServeRequests();
  bool Drive() TUTTI_REQUIRES(driver_);
  void Serve(uint32_t wishes) TUTTI_REQUIRES(driver_);
  // Returns whether a descriptor has fired.
  bool CollectFired(uint32_t wishes) TUTTI_REQUIRES(driver_);
  bool Settled() const { return done() >= ops_.end(); }
  void Arm() TUTTI_REQUIRES(driver_);
  void TakeBack() TUTTI_REQUIRES(driver_);
  void ArmWatch(Watch& watch, uint32_t events) TUTTI_REQUIRES(driver_);
  enum class State : uint8_t { kKernel, kProgress, kTimer, kStopped };
  // The events that change the state: see the table at the top.
  enum class Event : uint8_t {
    kHandedOver,
    kTakenBack,  // The kernel sleeps on the descriptors itself.
    kSettled,    // Nothing is under way any more.
    kTimerSet,
    kTimerFired,
    kStop
  };
  void Advance(Event event) TUTTI_REQUIRES(driver_);
  void LookAgainSoon() TUTTI_REQUIRES(driver_);
  void LookAgainLater() TUTTI_REQUIRES(driver_);
  void Fail(const Status& status);
  void WakeAll();

  EventLoop& loop_;
  FifoMemory memory_;
  NetComm& comm_;
  const std::string doing_;
  const std::string peer_;

  OpPool ops_;
  std::atomic<uint64_t> posted_ = 0;
  std::atomic<uint64_t> done_ = 0;

  std::atomic<uint32_t> wishes_ = 0;  // the requests that nobody has served

  DriverFlag driver_;
  State state_ TUTTI_GUARDED_BY(driver_) = State::kKernel;
  uint64_t kernel_polls_ TUTTI_GUARDED_BY(driver_) = 0;
  // The value of kernel_polls_ when the progress thread last looked.
  uint64_t kernel_polls_before_ TUTTI_GUARDED_BY(driver_) = 0;
  // Tells tasks posted to the loop whether the connection still lives.
  std::shared_ptr<char> alive_ TUTTI_GUARDED_BY(driver_) = std::make_shared<char>();
  EventLoop::TimerId timer_ TUTTI_GUARDED_BY(driver_) = 0;
  EventLoop::TimerId tend_timer_ TUTTI_GUARDED_BY(driver_) = 0;
  std::vector<std::unique_ptr<Watch>> watches_ TUTTI_GUARDED_BY(driver_);
  std::vector<NetWait> waits_ TUTTI_GUARDED_BY(driver_);

  // Raised once, and read by any thread without the driver's flag. Not a state of its own, because
  // a failed connection is handed over and taken back like any other.
  std::atomic<bool> failed_ = false;
  mutable Mutex failure_mutex_;
  Status failure_ TUTTI_GUARDED_BY(failure_mutex_);
};

}  // namespace tutti
