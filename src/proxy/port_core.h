#pragma once

// What sending and receiving ports have in common: who drives them, when the progress thread
// watches them, how they fail.
//
// One thread at a time drives a port (moves bytes, arms descriptors): whoever holds `busy_`. Nobody
// waits for it. Poll gives up when it is taken; HandOver, a ready descriptor and Close leave a
// request behind, which the holder serves before it is through. So a request is always served, by
// whichever thread has the port.
//
//   kernel's thread            progress thread (epoll)
//   Poll ── Drive              descriptor ready ── request ── Drive, re-arm
//   HandOver ── request ── Drive, arm
//
// A descriptor is armed for one event at a time (EPOLLONESHOT), and only while the port is handed
// over: so an idle port, or one that a kernel polls, wakes nobody.

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proxy/fifo_memory.h"
#include "proxy/net_port.h"
#include "proxy/op_pool.h"
#include "sys/event_loop.h"
#include "transport/net/net.h"

namespace tutti {

class PortCore : public NetPort {
 public:
  FifoView fifo() const override { return memory_.view(); }
  void Begin(uint64_t chunks, uint32_t op_tag) override;
  bool Poll() override;
  void HandOver() override;
  Status status() const override;
  void Close(Status reason) override;
  std::string Describe() const override;

 protected:
  // `doing` is "sending" or "receiving"; `preposition` "to" or "from"; `peer` as in "rank 1 on host
  // b".
  PortCore(EventLoop& loop, FifoMemory memory, NetComm& comm, std::string doing, std::string peer);

  // Moves what can be moved now. Called by one thread at a time.
  virtual Result<bool> Move() = 0;
  // The most derived destructor calls this first: afterwards no other thread is in the port.
  void Stop();

  // Whether the connection is broken, also when status() says ok because nothing is under way.
  bool Failed() const { return failed_.load(std::memory_order_acquire); }

  // Chunks counted over the connection's life, done <= posted. Written by the driver, read by any.
  uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  void CountPosted() { posted_.store(posted() + 1, std::memory_order_relaxed); }
  void CountDone() { done_.store(done() + 1, std::memory_order_release); }

 private:
  // A descriptor of the connection, as the event loop sees it.
  struct Watch {
    int fd = -1;
    uint32_t armed = 0;  // events it waits for; 0: none
    bool added = false;
    std::atomic<bool> fired = false;
  };

  bool TryLock() { return !busy_.exchange(true, std::memory_order_seq_cst); }
  void Unlock() { busy_.store(false, std::memory_order_seq_cst); }
  // Leaves a request, and serves it unless another thread has the port and will.
  void Request();
  void ServeRequests();
  // The rest: REQUIRES busy_.
  bool Drive();
  void Serve();
  void CollectFired();
  bool Settled() const { return done() >= ops_.end(); }
  void Arm();
  void ArmWatch(Watch& watch, uint32_t events);
  void LookAgainLater();
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

  std::atomic<bool> busy_ = false;
  std::atomic<bool> requested_ = false;
  std::atomic<bool> hand_over_requested_ = false;
  std::atomic<bool> timer_fired_ = false;
  // Under busy_:
  bool handed_over_ = false;
  bool looking_later_ = false;  // a timer stands in for the descriptors, because a kernel polls
  uint64_t kernel_polls_ = 0;
  uint64_t kernel_polls_before_ = 0;  // when the progress thread last looked
  bool stopped_ = false;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // what tasks posted to the loop look at
  EventLoop::TimerId timer_ = 0;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::vector<NetWait> waits_;

  std::atomic<bool> failed_ = false;
  mutable std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace tutti
