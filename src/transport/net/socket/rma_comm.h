#pragma once

// One end of a socket connection for one-sided operations. rma_frame.h describes its frames. The
// stream keeps all operations in order, hence every signal is a strong signal.
//
// A broken connection is made again, as connections for messages are (resume.h). Each end then says
// how many operations of its peer it has carried out, and the peer continues from there:
//
//   put, signal    repeated from the first that the target has not carried out. A put that was
//                  written in part is written again, with the same bytes. Its signal is added after
//                  the last byte, in the same step in which the put begins to count as carried out:
//                  no signal is added twice, and none is left out.
//   get, flush     asked again as long as the answer has not come as a whole. A repeated get reads
//                  the current bytes, which may be newer than the bytes of the first answer.
//   atomic         asked again likewise. The target keeps the fetched value for as long as it may be
//                  asked again, and answers with this value: no word is changed twice.
//
// The origin therefore keeps the bytes of a put until the target has acknowledged them. Up to
// kKeepBytes are copied when the put is begun; a longer put is done only after its acknowledgement.

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
  // `first_key` is the key of the first registered range, and not 0. Later keys count up, hence no
  // key is given out twice.
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

  // The most operations of one end under way. The other end allows as many unanswered operations.
  static constexpr size_t kRequests = 64;
  // The most operations that the other end may not have carried out, on a connection that can be
  // resumed. The number exceeds kRequests because a copied put is done before it is carried out.
  static constexpr size_t kKeptOperations = 2 * kRequests;

 private:
  class Memory;
  enum class State : uint8_t { kFree, kUnderWay, kDone };
  struct Request : NetRequest {
    State state = State::kFree;
    RmaFrame frame;
    std::byte* to = nullptr;  // the destination of a get or an atomic
  };
  enum class Kind : uint8_t { kOperation, kAnswer, kNote };
  // A frame, and perhaps bytes, to be written.
  struct Outgoing {
    std::array<std::byte, kRmaFrameBytes> frame;
    const std::byte* data = nullptr;
    size_t total = 0;    // frame and data
    size_t written = 0;  // the written bytes of `total`
    Kind kind = Kind::kNote;
    uint64_t number = 0;     // the operation's number
    Request* put = nullptr;  // the put that is done when its bytes are written
    uint64_t key = 0;        // the range of an answer's data
  };
  // An operation that a resumed connection may have to repeat.
  struct Operation {
    RmaFrame frame;
    const std::byte* data = nullptr;
    std::vector<std::byte> kept;  // the data, if they were copied
    Request* put = nullptr;       // the put that is not done yet
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
  // Describes the bytes that are being read behind a kPut or kGot frame.
  struct Payload {
    bool active = false;
    std::byte* to = nullptr;
    size_t left = 0;
    Request* get = nullptr;    // the get that the bytes answer; null: the bytes are a put's
    uint64_t key = 0;          // the put's range
    uint64_t* word = nullptr;  // the word of the put's signal
    uint64_t word_key = 0;
    uint64_t value = 0;
    bool is_long = false;  // the put's origin waits for an acknowledgement
  };

  static Status CheckLocal(const NetLocal& local, size_t bytes);
  // Returns null when there is no room.
  Request* Begin(const RmaFrame& frame);
  // Queues an operation for writing, and keeps it where it may have to be repeated.
  void Send(Request& request, const std::byte* data);
  Outgoing& Queued(Kind kind, RmaFrame frame, const std::byte* data, size_t bytes);
  void QueueOperation(const RmaFrame& frame, const std::byte* data, Request* put);
  void QueueNote(RmaFrameType type);
  static bool IsLong(const RmaFrame& put) { return put.bytes > kKeepBytes; }
  // Returns how many operations of the other end have been carried out.
  uint64_t CarriedOut() const { return asked_ - (payload_.active && !payload_.get ? 1 : 0); }
  // Tells the other end how many of its operations are carried out, if it may wait for the number.
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
  // Returns the address of the bytes, or null with the reason why they may not be reached.
  std::byte* Reach(uint64_t key, uint64_t offset, size_t bytes, RmaRefusal& refusal) const;
  uint64_t* ReachWord(uint64_t key, uint64_t offset, RmaRefusal& refusal) const;
  Status Refuse(RmaRefusal refusal, uint64_t number);

  static constexpr size_t kStagingBytes = 8192;
  // How many times in a row Progress may write without reading. The bound keeps the other end from
  // a long wait behind a kernel that only puts.
  static constexpr int kUnread = 8;
  // About the most bytes that one call of Progress moves in each direction. The bound makes a busy
  // connection leave time for others.
  static constexpr size_t kTurnBytes = 1 << 20;

  uint64_t next_key_;
  std::map<uint64_t, NetRegion> ranges_;  // the ranges given out, by their keys
  std::array<Request, kRequests> requests_;
  std::array<Request*, kRequests> free_;  // the first num_free_ are free
  size_t num_free_ = kRequests;
  // Own operations, answers, and one note at a time.
  Queue<Outgoing, 2 * kKeptOperations> outgoing_;
  Queue<Request*, kRequests> awaiting_;  // all but puts, in the order of their answers
  size_t answers_ = 0;                   // the answers in outgoing_
  size_t notes_ = 0;                     // the notes in outgoing_
  int unread_ = 0;                       // writes of Progress since the last read
  // The error of a failed write, kept while the data that arrived before it are read.
  int write_error_ = 0;
  uint64_t begun_ = 0;  // operations, over the connection's life
  uint64_t asked_ = 0;  // operations of the other end, over the connection's life
  // The members below are for connections that can be resumed. Operations that may have to be
  // repeated are kept in order, and first_kept_ is the number of the first.
  Queue<Operation, kKeptOperations> operations_;
  uint64_t first_kept_ = 0;
  uint64_t written_ = 0;          // operations that the other end may have as a whole
  uint64_t acknowledged_ = 0;     // operations that the other end has carried out
  uint64_t told_ = 0;             // the value of CarriedOut() that the other end knows
  bool told_late_ = false;        // the other end waits for the acknowledgement of a long put
  bool awaiting_resume_ = false;  // new sockets have come, but not yet kResume from the other end
  // the first operation, up to asked_, that the other end may ask again
  uint64_t again_from_ = 0;
  // The values fetched by the other end's atomic operations, by their numbers modulo the length.
  // The other end keeps at most kKeptOperations operations, hence it never asks for an older value
  // again.
  std::array<uint64_t, kKeptOperations> fetched_ = {};
  Payload payload_;
  size_t staged_from_ = 0;  // staging_[staged_from_, staged_to_) has been read but not used
  size_t staged_to_ = 0;
  std::array<std::byte, kStagingBytes> staging_;
};

}  // namespace tutti
