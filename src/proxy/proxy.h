#pragma once

// The proxy moves chunks between FIFOs and the network. A process has a single proxy, whatever its
// number of ranks. The proxy owns the progress thread ("tutti-proxy"); each proxy connection
// belongs to the caller who asked for the connection.
//
// The thread that needs the data does the work wherever it can: kernels poll their connections
// while they wait. The progress thread takes over only connections that are handed over, and sleeps
// in epoll otherwise. docs/proxy.md has the state machine, the frames and the thread rules.
//
// Threads: all calls from any thread. Proxy connections must be destroyed before the proxy.

#include <memory>
#include <string>

#include "base/status.h"
#include "connection/fifo.h"
#include "connection/proxy_connection.h"
#include "proxy/fifo_memory.h"
#include "proxy/lent_buffers.h"
#include "sys/event_loop.h"
#include "transport/net/net.h"

namespace tutti {

// Says where the FIFO of a connection lies.
struct FifoPlace {
  size_t slot_bytes = 0;
  // Where not null: zeroed memory that outlives the connection, of FifoView::BytesFor(slot_bytes,
  // kOpTagGapBytes). A kernel is then at the other end of the FIFO, and finds chunks of any length
  // in the slots: the kernel does not look for short chunks beside their announcements, because
  // such a look would cost another read across the bus. Where null: the connection has memory of
  // its own.
  std::byte* memory = nullptr;
  // Where its address is not null, the slots are this memory of a GPU, without gaps, and `memory`
  // has kFifoDataOffset bytes.
  NetRegion slots = {};
  // Whether data in `slots` is flushed before a kernel is told of its arrival.
  bool flush = false;
  // The buffers in which sent chunks of a kernel may lie; null: all chunks lie in the slots. Must
  // outlive the connection.
  const LentBuffers* lent = nullptr;
};

class Proxy {
 public:
  struct Options {
    bool huge_pages = true;
  };
  static Result<std::unique_ptr<Proxy>> Create(const Options& options);

  // Makes the sending or the receiving end of a connection, whose FIFO has slots of
  // `place.slot_bytes`, a multiple of 64; the receiver's must be no less than the sender's. `peer`
  // goes into error sentences: "rank 1 on host b".
  Result<std::unique_ptr<ProxyConnection>> CreateSendConnection(std::unique_ptr<NetSendComm> comm,
                                                                const FifoPlace& place,
                                                                const std::string& peer);
  Result<std::unique_ptr<ProxyConnection>> CreateRecvConnection(std::unique_ptr<NetRecvComm> comm,
                                                                const FifoPlace& place,
                                                                const std::string& peer);

  // Returns the progress thread's loop. The listeners of a Net use this loop: set-up is rare and
  // short.
  EventLoop& loop() { return *loop_; }

 private:
  Proxy(const Options& options, std::unique_ptr<EventLoop> loop)
      : options_(options), loop_(std::move(loop)) {}

  const Options options_;
  const std::unique_ptr<EventLoop> loop_;
};

}  // namespace tutti
