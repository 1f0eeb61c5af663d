#include "gin/mail.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace tutti {
namespace {

// Bounds of the memory that a rank pins for all its mailboxes, and of the data of one slot.
constexpr size_t kMostPinned = 64 << 20;
constexpr size_t kMostData = 256 << 10, kLeastData = 16 << 10;
constexpr size_t kPage = 4096;
// The time for which a rank without a message to send holds its credits back for a later message.
constexpr int64_t kTellWithinNs = 50'000;

}  // namespace

// Begins every slot, and describes the operation on the data behind the header. The peer checks all
// fields.
struct GinMail::Header {
  uint32_t kind = 0;   // Order::Kind
  uint32_t bytes = 0;  // The length of the data, or of a value. kGet has none.
  uint64_t to_at = 0;
  uint64_t from_at = 0;  // kGet
  uint64_t total = 0;    // kGet
  uint64_t value = 0;    // kValue
  uint64_t signal_at = 0;
  uint64_t added = 0;
  uint32_t signal = 0;   // GinMail::Signal
  uint32_t is_last = 0;  // kReply: of an answer
  uint64_t credits = 0;  // emptied slots that the peer has not been told of
};

GinMailLayout GinMailLayout::For(size_t num_peers) {
  const size_t each = kMostPinned / (2 * kSlots * std::max(num_peers, size_t{1}));
  return {std::clamp(each / kPage * kPage, kLeastData, kMostData)};
}

uint64_t GinMail::Credits() const {
  return Word(GinMailLayout::kCreditsAt).load(std::memory_order_acquire) + header_credits_;
}

bool GinMail::PeerHasClosed() const {
  return gone_ || Word(GinMailLayout::kClosedAt).load(std::memory_order_acquire) != 0;
}

bool GinMail::idle() const {
  if (PeerHasClosed()) return orders_.empty() && arrivals_.empty();
  return orders_.empty() && pieces_.empty() && gets_.empty() && arrivals_.empty() &&
         puts_.empty() && Credits() == num_put_;
}

// Takes incoming messages, carries out copied ones, and sends as many messages as may be sent. The
// connection is entered only where this end has something to put or to test.
Result<bool> GinMail::Move(bool attend) {
  bool moved = false;
  // The order matters: all messages that the peer sent before it closed have then come, and are
  // taken below.
  const bool closed = PeerHasClosed();
  TUTTI_TRY(Take(&moved));
  TUTTI_TRY(CarryOut(&moved));
  if (closed)
    TUTTI_TRY(GiveUpRest(&moved));
  else
    TUTTI_TRY(Cut(&moved));
  if (gone_) return moved;
  RmaConnection& connection = parts_.remote->connection(parts_.peer);
  if (attend) {
    TUTTI_ASSIGN(const bool attended, connection.Attend());
    moved |= attended;
  }
  if (!pieces_.empty() || !puts_.empty() || !notes_.empty() || num_told_ != num_emptied_) {
    RmaConnection::Inside inside(connection);
    TUTTI_TRY(PutPieces(connection, &moved));
    TUTTI_TRY(ReturnCredits(connection));
    TUTTI_TRY(TestPuts(connection, &moved));
    inside.Linger();
  }
  return moved;
}

// ---------------------------------------------------------------------------------------------------------------------
// Sending

// Cuts orders into pieces as long as the peer has free slots, and this end too.
Status GinMail::Cut(bool* moved) {
  while (!orders_.empty()) {
    const uint64_t number = num_cut();
    if (number - Credits() >= GinMailLayout::kSlots) break;
    if (number - num_tested_ >= GinMailLayout::kSlots) break;
    TUTTI_TRY(CutOne(orders_.front()));
    *moved = true;
  }
  return Status::Ok();
}

// Makes the next message of an order, and drops the order with its last message.
Status GinMail::CutOne(Order& order) {
  const uint64_t number = num_cut();
  std::byte* const slot = Own(parts_.layout.OutAt(number));
  const bool has_data = order.kind == Order::Kind::kPut || order.kind == Order::Kind::kReply;
  const uint64_t bytes =
      has_data ? std::min<uint64_t>(order.bytes, parts_.layout.slot_bytes) : order.bytes;
  const bool is_last = !has_data || bytes == order.bytes;
  Header header;
  header.kind = static_cast<uint32_t>(order.kind);
  header.to_at = order.to_at;
  header.from_at = order.from_at;
  header.value = order.value;
  header.is_last = is_last ? 1 : 0;
  if (order.kind == Order::Kind::kGet)
    header.total = order.bytes;
  else
    header.bytes = static_cast<uint32_t>(bytes);
  if (is_last && order.kind != Order::Kind::kGet) {
    header.signal = static_cast<uint32_t>(order.signal);
    header.signal_at = order.signal_at;
    header.added = order.added;
  }
  std::memcpy(slot, &header, sizeof(header));
  Piece piece;
  piece.bytes = GinMailLayout::kHeaderBytes + (has_data ? bytes : 0);
  if (has_data && bytes > 0) {
    TUTTI_ASSIGN(piece.copied_at,
                 parts_.line_out->Out(slot + GinMailLayout::kHeaderBytes, order.from, bytes));
    order.begun = true;
    order.from += bytes;
    order.to_at += bytes;
    order.bytes -= bytes;
  }
  if (is_last && order.kind == Order::Kind::kGet)
    gets_.push_back(order.done);
  else if (is_last)
    piece.done = order.done;
  pieces_.push_back(piece);
  if (is_last) orders_.pop_front();
  return Status::Ok();
}

// Puts the pieces whose data is in their slots.
Status GinMail::PutPieces(RmaConnection& connection, bool* moved) {
  while (!pieces_.empty()) {
    const Piece piece = pieces_.front();
    TUTTI_ASSIGN(const uint64_t copied, parts_.line_out->reached());
    if (piece.copied_at > copied) break;
    const uint64_t out = parts_.layout.OutAt(num_put_);
    const uint64_t untold = num_emptied_ - num_told_;
    std::memcpy(Own(out) + offsetof(Header, credits), &untold, sizeof(untold));
    const RemoteWindows::Added arrived = {
        {parts_.window->handle, parts_.peer_at + GinMailLayout::kArrivedAt}, 1, /*strong=*/true};
    TUTTI_ASSIGN(NetRequest* const request,
                 parts_.remote->BeginPut(
                     parts_.peer, {parts_.window->handle, parts_.own_at + out},
                     {parts_.window->handle, parts_.peer_at + parts_.layout.InAt(num_put_)},
                     piece.bytes, &arrived));
    if (request == nullptr) break;
    num_told_ += untold;
    puts_.push_back(request);
    ++num_put_;
    pieces_.pop_front();
    if (piece.done != nullptr) *piece.done = true;
    *moved = true;
  }
  TUTTI_ASSIGN(const bool progressed, connection.Progress());
  *moved |= progressed;
  return Status::Ok();
}

// Tests requests in the order of their beginning and stops at the first one under way: slots are
// used again in the same order.
Status GinMail::TestPuts(RmaConnection& connection, bool* moved) {
  while (!puts_.empty()) {
    TUTTI_ASSIGN(const bool done, connection.Test(*puts_.front()));
    if (!done) break;
    puts_.pop_front();
    ++num_tested_;
    *moved = true;
  }
  while (!notes_.empty()) {
    TUTTI_ASSIGN(const bool done, connection.Test(*notes_.front()));
    if (!done) break;
    notes_.pop_front();
  }
  return Status::Ok();
}

// Begins to add to a word of this rank's mailbox at the peer. Returns null if the connection has no
// room.
Result<NetRequest*> GinMail::Add(size_t word, uint64_t value) {
  const RemoteWindows::Added added = {
      {parts_.window->handle, parts_.peer_at + word}, value, /*strong=*/true};
  return parts_.remote->BeginPut(parts_.peer, {}, {}, 0, &added);
}

// Tells the peer of emptied slots if the peer may wait for them, or if no message has told it for
// long.
Status GinMail::ReturnCredits(RmaConnection& connection) {
  const uint64_t untold = num_emptied_ - num_told_;
  // A peer that knows of the end may have given its mailbox back.
  if (untold == 0 || PeerHasClosed() || closed_) return Status::Ok();
  const bool many = untold >= GinMailLayout::kSlots / 2;
  if (!many && !closing_ && NowNs() - untold_since_ns_ < kTellWithinNs) return Status::Ok();
  TUTTI_ASSIGN(NetRequest* const request, Add(GinMailLayout::kCreditsAt, untold));
  if (request == nullptr) return Status::Ok();
  num_told_ += untold;
  notes_.push_back(request);
  return connection.Progress().status();
}

// Ends the operations that wait for a peer that takes no message any more.
Status GinMail::GiveUpRest(bool* moved) {
  if (!gets_.empty()) return Unanswered("a get");
  for (; !orders_.empty(); orders_.pop_front()) {
    const Order& order = orders_.front();
    if (order.kind == Order::Kind::kGet) return Unanswered("a get");
    const bool is_long = order.begun || order.bytes > parts_.layout.slot_bytes;
    if (order.kind == Order::Kind::kPut && is_long) return Unanswered("a put");
    if (order.done != nullptr) *order.done = true;
    *moved = true;
  }
  return Status::Ok();
}

Status GinMail::Unanswered(const char* what) const {
  return InvalidUsage(
      "{} of rank {} needs {}, which has ended its {}: end it when the operations of all ranks "
      "with "
      "that one are done",
      what, parts_.rank, parts_.remote->NameOf(parts_.peer),
      gone_ ? "communicator" : "device communicator");
}

void GinMail::NoteGone() {
  gone_ = true;
  // The connection is broken, and reads and writes nothing any more.
  puts_.clear();
  notes_.clear();
  for (const Piece& piece : pieces_)
    if (piece.done != nullptr) *piece.done = true;
  pieces_.clear();
}

// Sends the remaining credits and then the end, which must be the last write to the peer. A
// connection without room leaves the end to a later call.
Result<bool> GinMail::Close() {
  if (gone_) return true;
  RmaConnection& connection = parts_.remote->connection(parts_.peer);
  RmaConnection::Inside inside(connection);
  if (!closing_) {
    closing_ = true;
    TUTTI_TRY(ReturnCredits(connection));
    TUTTI_ASSIGN(NetRequest* const request, Add(GinMailLayout::kClosedAt, 1));
    closing_ = closed_ = request != nullptr;
    if (request != nullptr) notes_.push_back(request);
  }
  bool moved = false;
  TUTTI_TRY(connection.Progress().status());
  TUTTI_TRY(TestPuts(connection, &moved));
  return closing_ && notes_.empty() && puts_.empty();
}

bool GinMail::Settle() {
  RmaConnection& connection = parts_.remote->connection(parts_.peer);
  RmaConnection::Inside inside(connection);
  for (std::deque<NetRequest*>* const requests : {&puts_, &notes_}) {
    while (!requests->empty()) {
      const Result<bool> done = connection.Test(*requests->front());
      // A broken connection reads and writes nothing any more.
      if (done.ok() && !*done) return false;
      requests->pop_front();
    }
  }
  return true;
}

void GinMail::Drop() {
  if (!Settle()) parts_.remote->connection(parts_.peer).Break();
}

// ---------------------------------------------------------------------------------------------------------------------
// Receiving

Status GinMail::Take(bool* moved) {
  const uint64_t arrived = Word(GinMailLayout::kArrivedAt).load(std::memory_order_acquire);
  for (; num_taken_ < arrived; ++num_taken_) {
    const std::byte* const slot = Own(parts_.layout.InAt(num_taken_));
    Header header;
    std::memcpy(&header, slot, sizeof(header));
    header_credits_ += header.credits;
    Status taken = TakeOne(header, slot + GinMailLayout::kHeaderBytes);
    // A copy that fails is an error of this rank alone.
    if (taken.code() == Code::kUnhandledCudaError) return taken;
    if (!taken.ok()) return Refusal(header, taken);
    *moved = true;
  }
  return Status::Ok();
}

// Returns the error for a peer's operation that this rank refuses. The connection is sound: both
// ends hear of a mistake of the program.
Status GinMail::Refusal(const Header& header, const Status& why) const {
  const char* what = "a put";
  if (header.kind == static_cast<uint32_t>(Order::Kind::kGet)) what = "a get";
  if (header.kind == static_cast<uint32_t>(Order::Kind::kReply)) what = "the answer to a get";
  return InvalidArgument("{} of {} cannot be done at rank {}: {}", what,
                         parts_.remote->NameOf(parts_.peer), parts_.rank, why.message());
}

// Begins to carry out a message. Every field comes from another process: places are checked against
// this rank's windows, and lengths against the slot.
Status GinMail::TakeOne(const Header& header, const std::byte* data) {
  Arrival arrival;
  arrival.signal = static_cast<Signal>(header.signal);
  arrival.signal_at = header.signal_at;
  arrival.added = header.added;
  const auto kind = static_cast<Order::Kind>(header.kind);
  if (kind == Order::Kind::kGet) {
    TUTTI_ASSIGN(const std::byte* const from,
                 parts_.symmetric->OwnAt(header.from_at, header.total));
    Send({.kind = Order::Kind::kReply, .from = from, .to_at = header.to_at, .bytes = header.total});
  } else if (kind == Order::Kind::kPut || kind == Order::Kind::kReply) {
    if (header.bytes > parts_.layout.slot_bytes)
      return RemoteError("a message of {} bytes", header.bytes);
    if (header.bytes > 0) {
      TUTTI_ASSIGN(std::byte* const to, parts_.symmetric->OwnAt(header.to_at, header.bytes));
      TUTTI_ASSIGN(arrival.copied_at, parts_.line_in->In(to, data, header.bytes));
    }
    if (kind == Order::Kind::kReply && header.is_last != 0) {
      if (gets_.empty()) return RemoteError("it answers what was not asked for");
      arrival.done = gets_.front();
      gets_.pop_front();
    }
  } else if (kind == Order::Kind::kValue) {
    if (header.bytes > sizeof(header.value))
      return RemoteError("a value of {} bytes", header.bytes);
    TUTTI_ASSIGN(std::byte* const to, parts_.symmetric->OwnAt(header.to_at, header.bytes));
    const std::byte* const value = data - GinMailLayout::kHeaderBytes + offsetof(Header, value);
    TUTTI_ASSIGN(arrival.copied_at, parts_.line_in->In(to, value, header.bytes));
  } else {
    return RemoteError("a message of unknown kind {}", header.kind);
  }
  arrivals_.push_back(arrival);
  return Status::Ok();
}

// A failure of CUDA is an error of this rank. Every other failure is a mistake of the peer's
// program, and the sentence names the peer.
Status GinMail::RaiseSignal(const Arrival& arrival) const {
  if (arrival.signal == Signal::kNone) return Status::Ok();
  Status raised;
  if (arrival.signal == Signal::kNumbered) {
    raised = parts_.add_to_signal(arrival.signal_at, arrival.added);
  } else {
    const Result<std::byte*> word = parts_.symmetric->OwnAt(arrival.signal_at, sizeof(uint64_t));
    raised = word.ok() ? parts_.add_to_word(*word, arrival.added) : word.status();
  }
  if (raised.ok() || raised.code() == Code::kUnhandledCudaError) return raised;
  return InvalidArgument("a signal of {} cannot be raised at rank {}: {}",
                         parts_.remote->NameOf(parts_.peer), parts_.rank, raised.message());
}

// Raises the signals of messages whose data is in its place, in order, and gives their slots back.
Status GinMail::CarryOut(bool* moved) {
  while (!arrivals_.empty()) {
    const Arrival& oldest = arrivals_.front();
    TUTTI_ASSIGN(const uint64_t copied, parts_.line_in->reached());
    if (oldest.copied_at > copied) break;
    TUTTI_TRY(RaiseSignal(oldest));
    if (oldest.done != nullptr) *oldest.done = true;
    if (num_emptied_ == num_told_) untold_since_ns_ = NowNs();
    ++num_emptied_;
    arrivals_.pop_front();
    *moved = true;
  }
  return Status::Ok();
}

}  // namespace tutti
