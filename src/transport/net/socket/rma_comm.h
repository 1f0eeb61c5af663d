#pragma once

// One end of a socket connection for one-sided operations; see rma_frame.h for what it reads and
// writes. The stream keeps all operations in order, so every signal is a strong one.

#include <array>
#include <map>
#include <memory>

#include "transport/net/channel_comm.h"
#include "transport/net/rma.h"
#include "transport/net/socket/channel.h"
#include "transport/net/socket/rma_frame.h"

namespace tutti {

class SocketRmaComm final : public ChannelComm<NetRmaComm, SocketChannel> {
 public:
  // `first_key` is the key of the first range that is registered, and not 0. Those that follow
  // count up, so none is given out twice.
  SocketRmaComm(std::unique_ptr<SocketChannel> channel, uint64_t first_key);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                           const NetSignal* signal) override;
  Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) override;
  Result<NetRequest*> Iflush() override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;

  // Operations of one end under way. The other end allows as many unanswered ones.
  static constexpr size_t kRequests = 64;

 private:
  class Memory;
  enum class State : uint8_t { kFree, kUnderWay, kDone };
  struct Request : NetRequest {
    State state = State::kFree;
    RmaFrame frame;
    std::byte* to = nullptr;  // of a get
  };
  // A frame, and perhaps bytes, to be written.
  struct Outgoing {
    std::array<std::byte, kRmaFrameBytes> frame;
    const std::byte* data = nullptr;
    size_t total = 0;    // frame and data
    size_t written = 0;  // of total
    Request* put = nullptr;
    bool answer = false;
    uint64_t key = 0;  // of the range that an answer's data lies in
  };
  // A queue of fixed size.
  template <typename T, size_t kSize>
  class Queue {
   public:
    bool empty() const { return from_ == to_; }
    size_t size() const { return static_cast<size_t>(to_ - from_); }
    T& At(size_t i) { return items_[(from_ + i) % kSize]; }
    T& Push() { return items_[to_++ % kSize]; }  // REQUIRES: size() < kSize
    void Pop() { ++from_; }

   private:
    std::array<T, kSize> items_ = {};
    uint64_t from_ = 0;
    uint64_t to_ = 0;
  };
  // What is being read behind a kPut or kGot frame.
  struct Payload {
    bool active = false;
    std::byte* to = nullptr;
    size_t left = 0;
    Request* get = nullptr;    // that the bytes answer; null: they are a put's
    uint64_t key = 0;          // of the put's range
    uint64_t* word = nullptr;  // of the put's signal
    uint64_t word_key = 0;
    uint64_t value = 0;
  };

  static Status CheckLocal(const NetLocal& local, size_t bytes);
  Request* Begin(const RmaFrame& frame);
  Outgoing& Queued(const RmaFrame& frame, const std::byte* data, size_t bytes);
  void Forget(uint64_t key);
  Result<bool> Write();
  void CountWritten(size_t bytes);
  Result<bool> Read();
  Result<size_t> ReadOnce();
  Status TakeStaged();
  Status TakeFrame(const RmaFrame& frame);
  Status TakePut(const RmaFrame& frame);
  Status TakeGet(const RmaFrame& frame);
  Status TakeAnswer(const RmaFrame& frame);
  void FinishPayload();
  // Returns where the bytes lie, or null and why they may not be reached.
  std::byte* Reach(uint64_t key, uint64_t offset, size_t bytes, RmaRefusal& refusal) const;
  Status Refuse(RmaRefusal refusal, uint64_t number);

  static constexpr size_t kStagingBytes = 8192;

  uint64_t next_key_;
  std::map<uint64_t, NetRegion> ranges_;  // those given out, by key
  std::array<Request, kRequests> requests_;
  std::array<Request*, kRequests> free_;  // the first num_free_ are free
  size_t num_free_ = kRequests;
  Queue<Outgoing, 2 * kRequests> outgoing_;  // own operations, and answers
  Queue<Request*, kRequests> awaiting_;      // gets and flushes, in the order of their answers
  size_t answers_ = 0;                       // among outgoing_
  uint64_t begun_ = 0;                       // operations, over the connection's life
  uint64_t asked_ = 0;                       // the same of the other end's
  Payload payload_;
  size_t staged_from_ = 0;  // staging_[staged_from_, staged_to_) has been read but not used
  size_t staged_to_ = 0;
  std::array<std::byte, kStagingBytes> staging_;
};

}  // namespace tutti
