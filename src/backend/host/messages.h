#pragma once

// A batch of sends and receives that progress together, in whatever order the peers serve them.
// Each message is a state machine, and the executing thread steps all of them in turn until all are
// done.
//
//   from      to          condition                          action
//   queued    moving      earlier messages of the same       -
//                         link and direction are done
//   moving    moving      room in the FIFO / a chunk in it   copy a chunk, publish / release it
//   moving    done        all bytes have passed
//
// Messages of one link and direction go in the order of AddSend or AddRecv, as in NCCL's matching.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "backend/host/wait_context.h"
#include "base/rounding.h"
#include "base/status.h"
#include "connection/proxy_connection.h"

namespace tutti {

class MessageBatch {
 public:
  explicit MessageBatch(WaitContext& wait) : wait_(wait) {}

  // `tag` marks every chunk, and sender and receiver must agree on the tag. The buffers must stay
  // until Run returns. `proxy` moves chunks between hosts; null within a machine.
  void AddSend(const SendLink& link, ProxyConnection* proxy, const std::byte* data, size_t bytes,
               uint32_t tag);
  void AddRecv(const RecvLink& link, ProxyConnection* proxy, std::byte* data, size_t bytes,
               uint32_t tag);

  // Steps all messages to their end. Returns false after a failed wait (the WaitContext has the
  // reason).
  bool Run();

  // Returns how many chunks a message of `bytes` takes through slots of `slot_bytes`: at least one.
  static uint64_t ChunksFor(size_t bytes, size_t slot_bytes) {
    return bytes == 0 ? 1 : DivUp(bytes, slot_bytes);
  }

 private:
  // The number of unfinished messages of a link that are announced to its proxy connection. A proxy
  // connection knows a bounded number of operations (proxy/op_pool.h), and kBegunAhead messages
  // keep its FIFO full even when the messages are small.
  static constexpr size_t kBegunAhead = kFifoSlots;

  struct Message {
    SendLink send;
    RecvLink recv;
    ProxyConnection* proxy;
    std::byte* data;
    size_t bytes;
    size_t moved = 0;
    uint32_t tag;
    bool done = false;

    bool is_send() const { return send.fifo != nullptr; }
    int peer() const { return is_send() ? send.peer : recv.peer; }
    size_t slot_bytes() const {
      return is_send() ? send.fifo->view().slot_bytes : recv.fifo->view().slot_bytes;
    }
    const void* link() const {
      return is_send() ? static_cast<const void*>(send.fifo) : static_cast<const void*>(recv.fifo);
    }
  };
  // Messages of one link and direction. Only the first unfinished message moves.
  struct Queue {
    const void* link;
    std::vector<Message> messages;
    size_t next = 0;
    size_t begun = 0;
    bool unfinished() const { return next < messages.size(); }
    bool remote() const { return messages.front().proxy != nullptr; }
  };

  void Add(Message message);
  void BeginAhead(Queue& queue);
  bool OnlyRemoteLeft() const;
  Queue& NextUnfinished(size_t& turn);
  std::span<const int> UnfinishedPeers();
  bool StepAll();
  bool StepQueue(Queue& queue);
  bool StepSend(Message& message);
  bool StepRecv(Message& message);

  WaitContext& wait_;
  std::vector<Queue> queues_;
  std::vector<int> peers_;
  size_t unfinished_ = 0;
};

}  // namespace tutti
