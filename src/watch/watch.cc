#include "watch/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/log.h"

namespace tutti {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Long enough that ordinary skew between ranks asks nothing, short enough that a mismatch is shown
// at once.
constexpr int64_t kAskAfterNs = kSecond / 5;
constexpr int64_t kAskEveryNs = 5 * kSecond;
constexpr int64_t kWarnEveryNs = 10 * kSecond;
// A rank that has said goodbye may have finished the operation already; what it left in the rings
// arrives within this.
constexpr int64_t kLeftGraceNs = kSecond;
// For the other side's sentence after a foreign chunk has been seen.
constexpr int64_t kExplainNs = 2 * kSecond;
// For the answers to what ranks are doing, of which the last thing is said.
constexpr int64_t kAnswersNs = kSecond;
// A rank whose peer waits itself lets that one speak first: it is nearer to whoever holds them all
// up.
constexpr int64_t kNearerGraceNs = kSecond;
// A wait says that it goes on at least this often; what was said longer ago is over.
constexpr int64_t kStillWaitsNs = kSecond / 2;
constexpr size_t kMaxText = 2000;
constexpr size_t kMaxRanksShown = 8;
// How many finished collectives a rank compares with a peer whose data does not fit.
constexpr uint64_t kPastCompared = 8;

// Wire form of the control messages: one byte Message, then the fields below, little-endian as on
// all hosts Tutti runs on. Texts run to the end of the message.
struct FailureHeader {
  uint8_t message;
  uint8_t code;
};
struct DoingHeader {
  uint8_t message;
  uint8_t waits;
};
struct InquiryWire {
  uint8_t message;
  uint8_t shown;
  uint8_t collective;
  uint8_t type;
  uint8_t op;
  uint8_t has_op;
  uint8_t zero[2];
  int32_t root;
  uint32_t parts;
  uint64_t sequence;
  uint64_t count;
  // AlltoAllV: elements that the asking rank sends to the asked one, and expects of it.
  uint64_t pair_sends;
  uint64_t pair_receives;
  uint32_t registered;
  uint32_t more_zero;
};

template <class Header>
Bytes Pack(const Header& header, std::string_view text = {}) {
  text = text.substr(0, kMaxText);
  Bytes bytes(sizeof(Header) + text.size());
  std::memcpy(bytes.data(), &header, sizeof(Header));
  if (!text.empty()) std::memcpy(bytes.data() + sizeof(Header), text.data(), text.size());
  return bytes;
}

template <class Header>
bool Unpack(std::span<const std::byte> payload, Header& header, std::string& text) {
  if (payload.size() < sizeof(Header)) return false;
  std::memcpy(&header, payload.data(), sizeof(Header));
  const auto rest = payload.subspan(sizeof(Header));
  text.assign(reinterpret_cast<const char*>(rest.data()), std::min(rest.size(), kMaxText));
  return true;
}

}  // namespace

Watch::Watch(Bootstrap& bootstrap, int64_t timeout_ns, std::vector<std::string> rank_names)
    : bootstrap_(bootstrap), timeout_ns_(timeout_ns), rank_names_(std::move(rank_names)) {
  left_.resize(static_cast<size_t>(bootstrap.num_ranks()));
  launched_numbers_.resize(2 * left_.size());
}

void Watch::StopListening(EventLoop& loop) {
  bootstrap_.SetEvents({});
  loop.RunSync([] {});  // an event that was being handled has been by now
}

void Watch::Start() {
  bootstrap_.SetEvents({
      .ranks_lost = [this](std::span<const LostRank> lost) { OnLost(lost); },
      .peer_left =
          [this](int rank) {
            std::lock_guard lock(mutex_);
            left_[static_cast<size_t>(rank)] = true;
            left_at_ns_[rank] = NowNs();
          },
      .control = [this](int from, std::span<const std::byte> payload) { OnControl(from, payload); },
      .failed = [this](const Status& why) { Stop(why, true); },
  });
}

std::string Watch::NameOf(int rank) const { return rank_names_[static_cast<size_t>(rank)]; }

std::string Watch::NameAll(std::span<const int> ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", NameOf(ranks[i]));
  if (ranks.size() > kMaxRanksShown)
    text += fmt::format(" and {} more", ranks.size() - kMaxRanksShown);
  return text;
}

void Watch::SetStopHook(std::function<void()> hook) {
  bool stopped_before = false;
  {
    std::lock_guard lock(mutex_);
    stop_hook_ = hook;
    stopped_before = !reason_.ok();
  }
  if (stopped_before) hook();
}

void Watch::Stop(const Status& reason, bool tell) {
  std::function<void()> hook;
  {
    std::lock_guard lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = reason;
    stop_.store(true, std::memory_order_release);
    for (JointCall* call : joint_calls_) call->EndLocked(reason);
    hook = stop_hook_;
  }
  if (hook) hook();  // without the mutex: the hook may ask the watch, or stop another one
  if (!tell) return;
  const FailureHeader header = {static_cast<uint8_t>(Message::kFailure),
                                static_cast<uint8_t>(reason.code())};
  const Bytes message = Pack(header, reason.message());
  for (const int rank : bootstrap_.LinkedRanks()) bootstrap_.SendControl(rank, message);
}

void Watch::Begin(const OpSignature& signature,
                  const std::shared_ptr<const VariableParts>& exchange) {
  // No lock: every collective comes by here.
  if (exchange) {
    std::lock_guard lock(mutex_);
    exchanges_[num_exchanges_++ % kRememberedExchanges] = {signature.sequence, exchange};
  }
  num_messages_.store(0, std::memory_order_relaxed);
  busy_.store(true, std::memory_order_relaxed);
  collectives_.Add(signature);
  receives_.clear();
  asked_ns_ = warned_ns_ = 0;
  CompareEarly();
}

// A question that comes while this looks may be missed; OnLongWait looks again.
void Watch::CompareEarly() {
  if (!has_early_.load(std::memory_order_relaxed)) return;
  std::vector<Inquiry> early;
  {
    std::lock_guard lock(mutex_);
    early.swap(early_);
    has_early_.store(false, std::memory_order_relaxed);
  }
  for (const Inquiry& inquiry : early) Compare(inquiry);
}

void Watch::BeginMessages(std::span<const OpSignature> sends,
                          std::span<const OpSignature> receives) {
  std::lock_guard lock(mutex_);
  num_messages_.store(sends.size() + receives.size(), std::memory_order_relaxed);
  busy_.store(true, std::memory_order_relaxed);
  receives_.assign(receives.begin(), receives.end());
  for (const OpSignature& send : sends) sends_[num_sends_++ % kRemembered] = send;
  asked_ns_ = warned_ns_ = 0;
}

Status Watch::StopReason() {
  std::lock_guard lock(mutex_);
  return reason_.ok() ? InternalError("the communicator was stopped without a reason") : reason_;
}

void Watch::OnControl(int from, std::span<const std::byte> payload) {
  if (payload.empty()) return;
  switch (static_cast<Message>(payload[0])) {
    case Message::kFailure:
      return OnFailure(from, payload);
    case Message::kInquiry:
      return OnInquiry(from, payload);
    case Message::kDoing:
      return OnDoing(from, payload);
    case Message::kLeaving:
      return OnLeaving(from, payload);
    case Message::kExcluded:
      return OnExcluded(payload);
  }
}

void Watch::OnFailure(int, std::span<const std::byte> payload) {
  FailureHeader header;
  std::string text;
  if (!Unpack(payload, header, text)) return;
  const bool known = header.code >= 1 && header.code <= static_cast<uint8_t>(Code::kTimeout);
  Stop(Status(known ? static_cast<Code>(header.code) : Code::kRemoteError, std::move(text)), true);
}

void Watch::OnInquiry(int from, std::span<const std::byte> payload) {
  InquiryWire wire;
  std::string unused;
  if (!Unpack(payload, wire, unused)) return;
  if (wire.type >= kNumDataTypes || wire.collective > static_cast<uint8_t>(Collective::kBarrier) ||
      wire.shown > static_cast<uint8_t>(Shown::kLaunchedSend))
    return;
  Inquiry inquiry = {
      from, {}, static_cast<Shown>(wire.shown), {wire.pair_sends, wire.pair_receives}};
  inquiry.signature = {wire.sequence,
                       wire.count,
                       wire.root,
                       wire.parts,
                       static_cast<Collective>(wire.collective),
                       static_cast<DataType>(wire.type),
                       wire.op,
                       wire.has_op != 0,
                       wire.registered};
  Compare(inquiry);

  std::string doing;
  DoingHeader header = {static_cast<uint8_t>(Message::kDoing), 0};
  {
    std::lock_guard lock(mutex_);
    doing = WhatHereLocked();
    header.waits = WaitsLocked();
    if (header.waits != 0) doing += fmt::format(", and waits for {}", NameAll(waits_for_));
  }
  bootstrap_.SendControl(from, Pack(header, doing));
}

void Watch::Compare(const Inquiry& inquiry) {
  if (inquiry.shown >= Shown::kLaunchedReceive) return CompareLaunched(inquiry);
  const bool misfit = inquiry.shown == Shown::kMisfit;
  const OpSignature& theirs = inquiry.signature;
  // A rank in a group of messages asks only what this one is doing: there is no collective to
  // compare.
  if (!misfit && theirs.collective == Collective::kSendRecv) return;
  std::optional<OpSignature> mine;
  {
    std::lock_guard lock(mutex_);
    if (misfit) {
      // The asking rank received our message number `sequence` and expected something else.
      for (const OpSignature& send : sends_) {
        if (send.root == inquiry.from && send.sequence == theirs.sequence &&
            send.collective == Collective::kSendRecv)
          mine = send;
      }
      if (!mine) return;
    } else if (theirs.sequence > collectives_.last()) {  // not there yet
      if (early_.size() < kRemembered) {
        early_.push_back(inquiry);
        has_early_.store(true, std::memory_order_relaxed);
      }
      return;
    } else {
      mine = collectives_.Find(theirs.sequence);
      if (!mine) return;
    }
  }
  const int here = bootstrap_.rank();
  if (misfit) {
    if (mine->count == theirs.count && mine->type == theirs.type) return;
    Stop(InvalidUsage(
             "mismatched message: {} sends {} elements of {} to {}, which receives {} of {}",
             NameOf(here), mine->count, tutti::Name(mine->type), NameOf(inquiry.from), theirs.count,
             tutti::Name(theirs.type)),
         true);
    return;
  }
  if (*mine == theirs) {
    if (mine->collective == Collective::kAlltoAllV) ComparePair(inquiry);
    return;
  }
  Stop(InvalidUsage("mismatched collectives: as number {} of this communicator {} called {} and {} "
                    "called {}. All ranks must call the same operations in the same order with "
                    "the same count, type, operator and root, and in the same places of the same "
                    "registered buffers",
                    theirs.sequence, NameOf(here), mine->Describe(), NameOf(inquiry.from),
                    theirs.Describe()),
       true);
}

// Both are in the same AlltoAllV; whether they agree on what passes between them only they can
// tell.
void Watch::ComparePair(const Inquiry& inquiry) {
  const uint64_t sequence = inquiry.signature.sequence;
  PairCounts mine;
  {
    std::lock_guard lock(mutex_);
    const bool known = std::any_of(exchanges_.begin(), exchanges_.end(), [&](const Exchange& one) {
      return one.parts && one.sequence == sequence;
    });
    if (!known) return;
    mine = PairWithLocked(inquiry.from, sequence);
  }
  const auto refuse = [&](int sender, uint64_t sent, int receiver, uint64_t expected) {
    Stop(InvalidUsage("mismatched collectives: in AlltoAllV, number {} of this communicator, {} "
                      "sends {} elements of {} to {}, which expects {}",
                      sequence, NameOf(sender), sent, tutti::Name(inquiry.signature.type),
                      NameOf(receiver), expected),
         true);
  };
  const int here = bootstrap_.rank();
  if (mine.sends != inquiry.pair.receives)
    refuse(here, mine.sends, inquiry.from, inquiry.pair.receives);
  else if (mine.receives != inquiry.pair.sends)
    refuse(inquiry.from, inquiry.pair.sends, here, mine.receives);
}

Watch::PairCounts Watch::PairWithLocked(int peer, uint64_t sequence) const {
  const auto at = static_cast<size_t>(peer);
  for (const Exchange& one : exchanges_) {
    if (one.parts && one.sequence == sequence)
      return {one.parts->send_counts[at], one.parts->recv_counts[at]};
  }
  return {};
}

void Watch::OnDoing(int from, std::span<const std::byte> payload) {
  DoingHeader header;
  std::string text;
  if (!Unpack(payload, header, text)) return;
  std::lock_guard lock(mutex_);
  answers_[from] = {std::move(text), header.waits != 0, NowNs()};
}

bool Watch::WaitsLocked() const {
  return busy_.load(std::memory_order_relaxed) && NowNs() - waits_at_ns_ < kStillWaitsNs;
}

std::string Watch::WhatHereLocked() const {
  if (!step_.empty()) return step_;
  const uint64_t last = collectives_.last();
  const std::optional<OpSignature> collective = collectives_.Find(last);
  const std::string named = fmt::format("collective number {}, {}", last,
                                        collective ? collective->Describe() : "which is over");
  if (!busy_.load(std::memory_order_relaxed))
    return last == 0 ? "idle, no collective called yet" : "idle after " + named;
  if (const uint64_t messages = num_messages_.load(std::memory_order_relaxed); messages != 0)
    return fmt::format("in a group of {} sends and receives after collective number {}", messages,
                       last);
  return "in " + named;
}

void Watch::Ask(std::span<const int> peers) {
  const std::optional<OpSignature> mine = collectives_.Find(collectives_.last());
  if (!mine || num_messages_.load(std::memory_order_relaxed) != 0) return AskWhatTheyDo(peers);
  for (const int peer : peers) AskWith(peer, *mine, Shown::kCollective);
}

// No collective of this rank is to be compared with theirs.
void Watch::AskWhatTheyDo(std::span<const int> peers) {
  OpSignature nothing;
  nothing.collective = Collective::kSendRecv;
  for (const int peer : peers) AskWith(peer, nothing, Shown::kCollective);
}

// Tags depend on all collectives before, so the one in which the ranks differ may be over here.
void Watch::AskAboutThePast(int peer) {
  std::vector<OpSignature> past;
  const uint64_t last = collectives_.last();
  for (uint64_t i = 1; i <= std::min(kPastCompared, last); ++i)
    if (const auto one = collectives_.Find(last - i)) past.push_back(*one);
  // The oldest first: where the ranks parted, not what followed from it.
  for (auto one = past.rbegin(); one != past.rend(); ++one) AskWith(peer, *one, Shown::kCollective);
}

void Watch::AskWith(int peer, const OpSignature& mine, Shown shown) {
  PairCounts pair;
  if (shown == Shown::kCollective && mine.collective == Collective::kAlltoAllV) {
    std::lock_guard lock(mutex_);
    pair = PairWithLocked(peer, mine.sequence);
  }
  const InquiryWire wire = {static_cast<uint8_t>(Message::kInquiry),
                            static_cast<uint8_t>(shown),
                            static_cast<uint8_t>(mine.collective),
                            static_cast<uint8_t>(mine.type),
                            mine.op,
                            mine.has_op,
                            {},
                            mine.root,
                            mine.parts,
                            mine.sequence,
                            mine.count,
                            pair.sends,
                            pair.receives,
                            mine.registered,
                            0};
  bootstrap_.SendControl(peer, Pack(wire));
}

Status Watch::OnLongWait(std::span<const int> peers, int64_t waited_ns) {
  if (stopped()) return StopReason();
  const int64_t now_ns = NowNs();
  // With a short timeout the answers must still be fresh when it comes.
  const int64_t ask_every_ns =
      timeout_ns_ > 0 ? std::clamp(timeout_ns_ / 4, kAskAfterNs, kAskEveryNs) : kAskEveryNs;
  if (waited_ns >= kAskAfterNs && now_ns - asked_ns_ >= ask_every_ns) {
    asked_ns_ = now_ns;
    Ask(peers);
  }
  CompareEarly();
  bool peer_waits = false;
  {
    std::lock_guard lock(mutex_);
    waits_for_.assign(peers.begin(), peers.end());
    waits_at_ns_ = now_ns;
    for (const int peer : peers) {
      const auto answer = answers_.find(peer);
      peer_waits |= answer != answers_.end() && answer->second.waits &&
                    now_ns - answer->second.at_ns < 2 * ask_every_ns;
      if (left_[static_cast<size_t>(peer)] && waited_ns > kLeftGraceNs &&
          now_ns - left_at_ns_.at(peer) > kLeftGraceNs) {
        return RemoteError("{} has destroyed its communicator while {} waits for it {}",
                           NameOf(peer), NameOf(bootstrap_.rank()), WhatHereLocked());
      }
    }
  }
  const bool timed_out =
      timeout_ns_ > 0 && waited_ns >= timeout_ns_ + (peer_waits ? kNearerGraceNs : 0);
  if (!timed_out && (waited_ns < kWarnEveryNs || now_ns - warned_ns_ < kWarnEveryNs))
    return Status::Ok();
  warned_ns_ = now_ns;
  Status stalled = Stalled(peers, waited_ns);
  if (!timed_out) {
    TUTTI_WARN("{}", stalled.message());
    return Status::Ok();
  }
  Stop(stalled, true);
  return stalled;
}

Status Watch::Stalled(std::span<const int> peers, int64_t waited_ns) {
  std::lock_guard lock(mutex_);
  std::string text =
      fmt::format("{} has waited {:.1f} s for {}, {}", NameOf(bootstrap_.rank()),
                  static_cast<double>(waited_ns) / 1e9, NameAll(peers), WhatHereLocked());
  return Timeout("{}{}. TUTTI_TIMEOUT_S sets how long an operation may make no progress", text,
                 AnswersLocked(peers, NowNs() - waited_ns));
}

// "; rank 2 (…) does not answer; rank 1 (…) is idle …": what they have said since then.
std::string Watch::AnswersLocked(std::span<const int> peers, int64_t since_ns) const {
  std::string text;
  // The silent ones first: they are the likeliest reason.
  size_t shown = 0;
  for (const bool silent : {true, false}) {
    for (const int rank : peers) {
      if (shown == kMaxRanksShown) break;
      const auto answer = answers_.find(rank);
      const bool answered = answer != answers_.end() && answer->second.at_ns >= since_ns;
      if (answered == silent) continue;
      ++shown;
      text += silent ? fmt::format("; {} does not answer", NameOf(rank))
                     : fmt::format("; {} is {}", NameOf(rank), answer->second.doing);
    }
  }
  return text;
}

Watch::Step::Step(Watch& watch, std::string what) : watch_(watch) {
  std::lock_guard lock(watch_.mutex_);
  watch_.step_ = std::move(what);
}

Watch::Step::~Step() {
  std::lock_guard lock(watch_.mutex_);
  watch_.step_.clear();
}

Status Watch::Explain(const Status& timeout, std::span<const int> peers) {
  const int64_t asked_ns = NowNs();
  AskWhatTheyDo(peers);
  const Deadline deadline = Deadline::After(kAnswersNs);
  const auto all_answered = [&] {
    return std::all_of(peers.begin(), peers.end(), [&](int peer) {
      const auto answer = answers_.find(peer);
      return answer != answers_.end() && answer->second.at_ns >= asked_ns;
    });
  };
  std::unique_lock lock(mutex_);
  while (!all_answered() && !deadline.Passed()) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return Status(timeout.code(),
                fmt::format("{}{}", timeout.message(), AnswersLocked(peers, asked_ns)));
}

Status Watch::WaitForReason(int64_t timeout_ns, const Status& otherwise) {
  const Deadline deadline = Deadline::After(timeout_ns);
  while (!stopped() && !deadline.Passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return stopped() ? StopReason() : otherwise;
}

Status Watch::OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) {
  std::optional<OpSignature> message;
  for (const OpSignature& receive : receives_)
    if (receive.root == peer && receive.Tag() == expected_tag) message = receive;
  if (message) {
    AskWith(peer, *message, Shown::kMisfit);
  } else {
    AskAboutThePast(peer);
    Ask(std::span(&peer, 1));
  }
  const Status otherwise = InvalidUsage(
      "{} sent data of another operation than the one that {} is in (tag {:08x}, expected {:08x}): "
      "all ranks must call the same operations in the same order with the same arguments (in an "
      "AlltoAllV, what one rank sends another must be what that one expects)",
      NameOf(peer), NameOf(bootstrap_.rank()), found_tag, expected_tag);
  const Status reason = WaitForReason(kExplainNs, otherwise);
  Stop(reason, true);
  return reason;
}

}  // namespace tutti
