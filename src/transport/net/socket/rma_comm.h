#pragma once

// Is one end of a socket connection for one-sided operations; see rma_frame.h for what it reads and
// writes. The stream keeps all operations in order, so every signal is a strong one.
//
// A connection that breaks is made again, as those for messages are (resume.h). Each end then says
// how many operations of the other end it has carried out, and the other end goes on from there:
//
//   put, signal    repeated from the first that the target has not carried out. What such a put has
//                  written in part is written again, with the same bytes. Its signal is added after
//                  the last byte, in the same step in which the put begins to count as carried out:
//                  no signal is added twice, and none is left out.
//   get, flush     asked again as long as the answer has not come as a whole. A get then reads what
//                  lies there now, which may be newer than what the first answer had.
//   atomic         asked again likewise. The target keeps what it has fetched for as long as it may be
//                  asked again, and answers with that: no word is changed twice.
//
// So the origin keeps the bytes of a put until the target has said that it has them: up to
// kKeepBytes are copied when the put is begun; a longer put is not done before.

#include <array>
#include <map>
#include <memory>
#include <vector>

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
  Result<NetRequest*> Iatomic(NetLocal before, const NetAtomic& atomic) override;
  Result<NetRequest*> Iflush() override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  NetCare Care() const override { return channel_->Care(); }

  // Operations of one end under way. The other end allows as many unanswered ones.
  static constexpr size_t kRequests = 64;
  // Operations that the other end may not have carried out, on a connection that can be resumed: a
  // copied put is done before that.
  static constexpr size_t kKeptOperations = 2 * kRequests;

 private:
  class Memory;
  enum class State : uint8_t { kFree, kUnderWay, kDone };
  struct Request : NetRequest {
    State state = State::kFree;
    RmaFrame frame;
    std::byte* to = nullptr;  // A get or an atomic reads to there.
  };
  enum class Kind : uint8_t { kOperation, kAnswer, kNote };
  // A frame, and perhaps bytes, to be written.
  struct Outgoing {
    std::array<std::byte, kRmaFrameBytes> frame;
    const std::byte* data = nullptr;
    size_t total = 0;    // frame and data
    size_t written = 0;  // So many of `total` are written.
    Kind kind = Kind::kNote;
    uint64_t number = 0;     // The operation's number.
    Request* put = nullptr;  // The put that is done when it is written.
    uint64_t key = 0;        // The range that an answer's data lies in.
  };
  // Holds what a connection that can be resumed may have to repeat.
  struct Operation {
    RmaFrame frame;
    const std::byte* data = nullptr;
    std::vector<std::byte> kept;  // the data, where it was copied
    Request* put = nullptr;       // The put that is not done yet.
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
    void Clear() { from_ = to_; }

   private:
    std::array<T, kSize> items_ = {};
    uint64_t from_ = 0;
    uint64_t to_ = 0;
  };
  // Describes what is being read behind a kPut or kGot frame.
  struct Payload {
    bool active = false;
    std::byte* to = nullptr;
    size_t left = 0;
    Request* get = nullptr;    // The bytes answer it. Where it is null, they are a put's.
    uint64_t key = 0;          // The put's range.
    uint64_t* word = nullptr;  // The word of the put's signal.
    uint64_t word_key = 0;
    uint64_t value = 0;
    bool is_long = false;  // the put's origin waits to hear that it has come
  };

  static Status CheckLocal(const NetLocal& local, size_t bytes);
  // Returns null when there is no room.
  Request* Begin(const RmaFrame& frame);
  // Has an operation written, and kept where that may be needed again.
  void Send(Request& request, const std::byte* data);
  Outgoing& Queued(Kind kind, RmaFrame frame, const std::byte* data, size_t bytes);
  void QueueOperation(const RmaFrame& frame, const std::byte* data, Request* put);
  void QueueNote(RmaFrameType type);
  static bool IsLong(const RmaFrame& put) { return put.bytes > kKeepBytes; }
  // Returns how many operations of the other end have been carried out.
  uint64_t CarriedOut() const { return asked_ - (payload_.active && !payload_.get ? 1 : 0); }
  // Tells the other end of them, where it may wait for that.
  void TellCarriedOut();
  Result<bool> Resume();
  void BeginAgain();
  Status TakeResume(const RmaFrame& frame);
  Status TakeCount(const RmaFrame& frame);
  void DropCarriedOut(uint64_t has);
  void Forget(uint64_t key);
  Result<bool> Write();
  Status WriteFailed(int error);
  void CountWritten(size_t bytes);
  Result<bool> Read();
  Result<size_t> ReadOnce(bool* emptied);
  Status TakeStaged();
  Status TakeFrame(const RmaFrame& frame);
  Status TakeQuestion(const RmaFrame& frame);
  Status TakePut(const RmaFrame& frame);
  Status TakeGet(const RmaFrame& frame);
  Status TakeAtomic(const RmaFrame& frame, bool again);
  Status TakeAnswer(const RmaFrame& frame);
  void FinishPayload();
  // Returns where the bytes lie, or null and why they may not be reached.
  std::byte* Reach(uint64_t key, uint64_t offset, size_t bytes, RmaRefusal& refusal) const;
  uint64_t* ReachWord(uint64_t key, uint64_t offset, RmaRefusal& refusal) const;
  Status Refuse(RmaRefusal refusal, uint64_t number);

  static constexpr size_t kStagingBytes = 8192;
  // So many times in a row what is to be sent leaves without a look at what has come: the other end
  // must not wait for long behind a kernel that only puts.
  static constexpr int kUnread = 8;
  // One call of Progress moves about this much in each direction at most, so that a busy connection
  // leaves time for others.
  static constexpr size_t kTurnBytes = 1 << 20;

  uint64_t next_key_;
  std::map<uint64_t, NetRegion> ranges_;  // The ranges given out, by their keys.
  std::array<Request, kRequests> requests_;
  std::array<Request*, kRequests> free_;  // the first num_free_ are free
  size_t num_free_ = kRequests;
  // Own operations, answers, and one note at a time.
  Queue<Outgoing, 2 * kKeptOperations> outgoing_;
  Queue<Request*, kRequests> awaiting_;  // all but puts, in the order of their answers
  size_t answers_ = 0;                   // So many are in outgoing_.
  size_t notes_ = 0;                     // So many are in outgoing_.
  int unread_ = 0;                       // Progress has written so many times without reading.
  // That of a write that failed. What arrived before it is still read.
  int write_error_ = 0;
  uint64_t begun_ = 0;  // operations, over the connection's life
  uint64_t asked_ = 0;  // Counts the same of the other end.
  // What follows is for connections that can be resumed. The operations that may have to be
  // repeated are kept in order, and first_kept_ is the number of the first.
  Queue<Operation, kKeptOperations> operations_;
  uint64_t first_kept_ = 0;
  uint64_t written_ = 0;          // operations that the other end may have as a whole
  uint64_t acknowledged_ = 0;     // operations that the other end has carried out
  uint64_t told_ = 0;             // CarriedOut() as the other end knows it
  bool told_late_ = false;        // the other end waits to hear that a long put has come
  bool awaiting_resume_ = false;  // new sockets are there, and the other end has not said kResume
  uint64_t again_from_ = 0;       // the other end may ask again from here on, up to asked_
  // What the other end's atomic operations have fetched, by their numbers modulo the length. It
  // keeps no more operations than that, so none that is longer ago is asked for again.
  std::array<uint64_t, kKeptOperations> fetched_ = {};
  Payload payload_;
  size_t staged_from_ = 0;  // staging_[staged_from_, staged_to_) has been read but not used
  size_t staged_to_ = 0;
  std::array<std::byte, kStagingBytes> staging_;
};

}  // namespace tutti
