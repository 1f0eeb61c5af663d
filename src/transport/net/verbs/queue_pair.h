#pragma once

// A reliable queue pair and the completion queue it reports to. Closed when destroyed.
//
// Threads: one at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/net/verbs/nic.h"
#include "transport/net/verbs/setup.h"

namespace tutti {

// A completion queue with a descriptor that becomes readable when something completes.
class CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> Create(std::shared_ptr<VerbsNic> nic, int depth);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq& queue() const { return *queue_; }
  int fd() const { return channel_->fd; }
  // Takes up to `room` completions; returns how many there were.
  Result<int> Poll(ibv_wc* completions, int room);
  // Makes fd() readable at the next completion. One that is there already does not count: call Poll
  // afterwards.
  Status Arm();
  // Takes the event that Arm asked for, if completions that Poll has taken since say that there is
  // one: without them it is still to come, and a look would cost a system call. After some sleeps
  // without them it looks all the same: a device may raise the event for a completion that Poll
  // had taken before, and fd() would stay readable.
  void Disarm();

 private:
  CompletionQueue(std::shared_ptr<VerbsNic> nic, ibv_comp_channel& channel)
      : nic_(std::move(nic)), channel_(&channel) {}

  const std::shared_ptr<VerbsNic> nic_;
  ibv_comp_channel* const channel_;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
  bool fired_ = false;        // Completions were taken since it was armed.
  uint32_t armed_again_ = 0;  // calls of Arm since then, or since the last look in vain
};

struct QueuePairDepths {
  uint32_t sends = 1;
  uint32_t receives = 1;
};

class QueuePair {
 public:
  // Makes a queue pair of `port`, ready to be given receives. The other end may write to and read
  // from registered memory.
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<VerbsNic> nic,
                                                   const VerbsPort& port, CompletionQueue& queue,
                                                   const QueuePairDepths& depths);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return pair_->qp_num; }
  // Returns the most bytes that a request can hold itself.
  uint32_t max_inline() const { return max_inline_; }

  // The other end's queue pair, at its port.
  struct Remote {
    const VerbsEnd::Port& port;
    uint32_t number = 0;
    uint32_t first_packet = 0;  // Packets that come are numbered from here on.
  };
  // Joins it with the other end's. Packets that are sent from here are numbered from `first_packet`
  // on and have this traffic class.
  Status Join(const Remote& remote, uint32_t first_packet, uint8_t traffic_class);

  // Stops it: nothing comes or goes over it any more, and what was posted completes with an error.
  Status Stop();
  // Makes it as Create does, for `port`, with nothing posted.
  Status Renew(const VerbsPort& port);

  Status Send(ibv_send_wr& request);
  // Keeps a request, with at most one element, for PostStaged. Data that it is to hold itself must
  // stay until then.
  void Stage(const ibv_send_wr& request);
  // Which of the requests that are staged with IBV_SEND_SIGNALED ask for a completion.
  enum class Completions : uint8_t {
    // The last one, and one each kPerCompletion or kBytesPerCompletion: it stands for those before
    // it.
    kFew,
    // Those, too, whose data lies in memory. Over iWARP no completion stands for the data of other
    // requests: it says that TCP has the bytes, and siw sends out of the caller's pages, which TCP
    // may read again later, unless the request itself is to complete.
    kAllThatRefer,
  };
  // Posts what is staged, as one list.
  Status PostStaged(Completions completions = Completions::kFew);
  // Posts a receive for a send without data, or one that goes into `element`.
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
