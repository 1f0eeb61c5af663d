#pragma once

// A reliable queue pair, and the completion queue to which queue pairs report. The destructors
// close both.
//
// Threads: one at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/net/verbs/nic.h"
#include "transport/net/verbs/setup.h"

namespace tutti {

// A completion queue with a descriptor that becomes readable when a request completes.
class CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> Create(std::shared_ptr<VerbsNic> nic, int depth);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq& queue() const { return *queue_; }
  int fd() const { return channel_->fd; }
  // Takes up to `room` completions, and returns their number.
  Result<int> Poll(ibv_wc* completions, int room);
  // Makes fd() readable at the next completion. A completion that is already in the queue does not
  // count: the caller must call Poll afterwards.
  Status Arm();
  // Takes the event that Arm has asked for, if Poll has taken completions since: without
  // completions the event is still to come, and a look would cost a system call. After several
  // sleeps without completions Disarm looks all the same, because a device may raise the event for
  // a completion that Poll had taken before, and fd() would stay readable.
  void Disarm();

 private:
  CompletionQueue(std::shared_ptr<VerbsNic> nic, ibv_comp_channel& channel)
      : nic_(std::move(nic)), channel_(&channel) {}

  const std::shared_ptr<VerbsNic> nic_;
  ibv_comp_channel* const channel_;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
  bool fired_ = false;        // Poll has taken completions since the queue was armed.
  uint32_t armed_again_ = 0;  // calls of Arm while armed, since the last look for an event
};

struct QueuePairDepths {
  uint32_t sends = 1;
  uint32_t receives = 1;
};

class QueuePair {
 public:
  // Makes a queue pair of `port`, ready to be given receives. The peer may write to and read from
  // registered memory.
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<VerbsNic> nic,
                                                   const VerbsPort& port, CompletionQueue& queue,
                                                   const QueuePairDepths& depths);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return pair_->qp_num; }
  // Returns the most bytes of data that fit into a request (inline).
  uint32_t max_inline() const { return max_inline_; }

  // The peer's queue pair, at its port.
  struct Remote {
    const VerbsEnd::Port& port;
    uint32_t number = 0;
    uint32_t first_packet = 0;  // the number of the first packet that the peer sends
  };
  // Joins the queue pair with the peer's. Packets from here are numbered from `first_packet` on.
  Status Join(const Remote& remote, uint32_t first_packet, uint8_t traffic_class);

  // Stops the queue pair: no more data passes, and all posted requests complete with an error.
  Status Stop();
  // Makes the queue pair ready as Create does, for `port`, with nothing posted.
  Status Renew(const VerbsPort& port);

  Status Send(ibv_send_wr& request);
  // Keeps a request of at most one element for PostStaged. Inline data must stay unchanged until
  // PostStaged.
  void Stage(const ibv_send_wr& request);
  // Selects the requests that ask for a completion, among requests with IBV_SEND_SIGNALED.
  enum class Completions : uint8_t {
    // The last request, and one in kPerCompletion requests or kBytesPerCompletion bytes. A
    // completion stands for all requests before it.
    kFew,
    // As kFew, and all requests whose data lies in memory. Over iWARP a completion does not stand
    // for the data of earlier requests: siw sends out of the caller's pages, and TCP may read the
    // pages again later, unless the request itself asks for a completion.
    kAllThatRefer,
  };
  // Posts all staged requests as a list.
  Status PostStaged(Completions completions = Completions::kFew);
  // Posts a receive for a send without data, or for a send whose data goes into `element`.
  Status Receive(uint64_t id, ibv_sge* element = nullptr);

 private:
  QueuePair(std::shared_ptr<VerbsNic> nic, const VerbsPort& port, ibv_qp& pair)
      : nic_(std::move(nic)), port_(port), pair_(&pair) {}
  Status Initialise();
  Status Modify(ibv_qp_attr& attributes, int mask, const char* step);
  ibv_ah_attr AddressOf(const VerbsEnd::Port& remote, uint8_t traffic_class) const;

  struct Staged {
    ibv_send_wr request = {};
    ibv_sge element = {};
  };
  static constexpr uint32_t kPerCompletion = 16;
  static constexpr uint64_t kBytesPerCompletion = uint64_t{64} << 10;

  const std::shared_ptr<VerbsNic> nic_;
  VerbsPort port_;
  ibv_qp* const pair_;
  std::vector<Staged> staged_;
  uint32_t max_inline_ = 0;
};

}  // namespace tutti
