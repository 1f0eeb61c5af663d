#pragma once

// The messages between the proxies of two GPUs that only a network joins. Networks reach memory of
// the host, and windows lie in GPUs. Data therefore goes through pinned memory at both ends:
//
//   window ──copy──▶ slot, out ──one-sided put, +1 to `arrived`──▶ slot, in ──copy──▶ window,
//                                                                                 then the signal
//
// A mailbox joins two ranks. Each end has, in its part of a window of the host (GinMailLayout),
// slots for messages to send and slots for messages to receive. A message has one slot, and longer
// data goes as several messages. The receiver carries out messages in the order of sending, and
// every signal is therefore strong. The receiver tells the number of emptied slots (`credits`)
// either in its own messages or by adding to a word.
//
// An idle end closes, and takes no message after its close. Nobody receives the other end's
// remaining messages: a put or signal of one message counts as done, because its source may be used
// again; a get fails, and a put that needs the peer to make room fails.
//
// Threads: one at a time, with the context of the GPU current.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "gin/copy_line.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

// The layout of one peer's mailbox in a rank's part of the window of mailboxes.
struct GinMailLayout {
  static constexpr uint32_t kSlots = 8;
  static constexpr size_t kHeaderBytes = 128;
  // The peer adds to these words. Each has a line of its own.
  static constexpr size_t kArrivedAt = 0, kCreditsAt = 64, kClosedAt = 128;
  static constexpr size_t kSlotsAt = 256;

  size_t slot_bytes = 256 << 10;  // the data that fits a slot besides the header

  // Returns the layout for `num_peers` peers. Slots are shorter for many peers, to pin at most 64
  // MiB of data for all mailboxes, or 16 KiB for each slot.
  static GinMailLayout For(size_t num_peers);
  size_t SlotBytes() const { return kHeaderBytes + slot_bytes; }
  size_t bytes() const { return kSlotsAt + 2 * kSlots * SlotBytes(); }
  // Return the places of slots for incoming and for outgoing messages.
  size_t InAt(uint64_t number) const { return kSlotsAt + number % kSlots * SlotBytes(); }
  size_t OutAt(uint64_t number) const { return InAt(number) + kSlots * SlotBytes(); }
};

class GinMail {
 public:
  struct Parts {
    int peer = 0;
    GinMailLayout layout;
    const Window* window = nullptr;  // has the mailboxes; all pointers here outlive the mail
    uint64_t own_at = 0;             // where the peer's mailbox lies in this rank's part
    uint64_t peer_at = 0;            // where this rank's lies in the peer's part
    RemoteWindows* remote = nullptr;
    const SymmetricMemory* symmetric = nullptr;  // reached by puts and gets
    int rank = 0;
    GinCopyLine* line_out = nullptr;  // copies from windows to slots
    GinCopyLine* line_in = nullptr;   // copies from slots to windows
    // Adds to a signal of this rank, by its number among all, or to an 8-byte word of GPU memory.
    std::function<Status(uint64_t number, uint64_t added)> add_to_signal;
    std::function<Status(std::byte* word, uint64_t added)> add_to_word;
  };
  explicit GinMail(Parts parts) : parts_(std::move(parts)) {}
  GinMail(const GinMail&) = delete;
  GinMail& operator=(const GinMail&) = delete;

  int peer() const { return parts_.peer; }

  enum class Signal : uint32_t { kNone, kNumbered, kWord };
  // An operation for the peer to carry out. Places are offsets in the slices of the flat space and
  // equal on all ranks.
  struct Order {
    enum class Kind : uint32_t { kPut = 1, kValue = 2, kGet = 3, kReply = 4 };
    Kind kind = Kind::kPut;
    const std::byte* from = nullptr;  // kPut, kReply: memory of this GPU
    uint64_t from_at = 0;             // kGet: the source, at the peer
    uint64_t to_at = 0;               // the target: of kGet at this rank, else at the peer
    uint64_t bytes = 0;
    uint64_t value = 0;  // kValue
    Signal signal = Signal::kNone;
    uint64_t signal_at = 0;
    uint64_t added = 0;
    bool* done = nullptr;  // Becomes true: the source has been read; of kGet, the bytes are here.
    bool begun = false;    // a part has been cut off
  };
  void Send(const Order& order) { orders_.push_back(order); }

  // Moves all data that can move now. Returns whether any data moved. With `attend` also takes
  // incoming data from the network, as the progress thread does otherwise. Fails with
  // InvalidArgument where this rank refuses the peer's put, and with InvalidUsage where a get or a
  // long put cannot be done because the peer has closed its end or is gone. REQUIRES: line_in and
  // line_out are sealed now and then.
  Result<bool> Move(bool attend);
  // Returns whether this end waits for nothing: the peer has carried out all messages, or has
  // closed its end.
  bool idle() const;
  // Notes that the peer has ended its communicator and the connection: no further message comes or
  // goes.
  void NoteGone();
  // Tells the peer that this end has stopped writing. Returns true when the message is under way.
  // REQUIRES: idle.
  Result<bool> Close();
  // Returns whether the peer has closed its end or is gone, and therefore writes nothing here any
  // more.
  bool PeerHasClosed() const;
  // Returns whether the network has done with this end's slots; then they may be given back while
  // the connection goes on. REQUIRES: Move is not called any more.
  bool Settle();
  // Has the network forget the slots, and breaks the connection if the network still needs the
  // slots.
  void Drop();

 private:
  struct Header;
  // An outgoing message: its data is copied to the slot, and then put.
  struct Piece {
    uint64_t copied_at = 0;  // a number of line_out
    size_t bytes = 0;        // The header is counted.
    bool* done = nullptr;
  };
  // An incoming message while its data is copied to its place.
  struct Arrival {
    uint64_t copied_at = 0;  // a number of line_in
    Signal signal = Signal::kNone;
    uint64_t signal_at = 0;
    uint64_t added = 0;
    bool* done = nullptr;  // the flag of the get that the message completes
  };

  std::byte* Own(uint64_t at) const { return parts_.window->own.data() + parts_.own_at + at; }
  std::atomic_ref<uint64_t> Word(size_t at) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(Own(at)));
  }
  uint64_t Credits() const;
  uint64_t num_cut() const { return num_put_ + pieces_.size(); }
  Status Cut(bool* moved);
  Status CutOne(Order& order);
  Status PutPieces(RmaConnection& connection, bool* moved);
  Status TestPuts(RmaConnection& connection, bool* moved);
  Status ReturnCredits(RmaConnection& connection);
  Result<NetRequest*> Add(size_t word, uint64_t value);
  Status GiveUpRest(bool* moved);
  Status Unanswered(const char* what) const;
  Status Take(bool* moved);
  Status TakeOne(const Header& header, const std::byte* data);
  Status CarryOut(bool* moved);
  Status RaiseSignal(const Arrival& arrival) const;
  Status Refusal(const Header& header, const Status& why) const;

  const Parts parts_;
  std::deque<Order> orders_;       // not cut into pieces yet, or in part
  std::deque<Piece> pieces_;       // not put yet
  uint64_t num_put_ = 0;           // pieces, over the mail's life
  std::deque<NetRequest*> puts_;   // the last puts, under way
  uint64_t num_tested_ = 0;        // puts that are done
  std::deque<NetRequest*> notes_;  // credits and the end, under way
  std::deque<bool*> gets_;         // gets without an answer
  uint64_t header_credits_ = 0;    // credits from headers
  uint64_t num_taken_ = 0;         // incoming messages over the mail's life
  std::deque<Arrival> arrivals_;
  uint64_t num_emptied_ = 0;  // slots of messages that were carried out
  uint64_t num_told_ = 0;     // emptied slots that the peer knows of
  int64_t untold_since_ns_ = 0;
  bool closing_ = false;
  bool closed_ = false;  // The peer has been told, or is being told.
  bool gone_ = false;    // The peer has ended its communicator.
};

}  // namespace tutti
