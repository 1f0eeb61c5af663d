// Ranks compare the operations they have begun, and find out that they are in different operations:
// the inquiries of a rank, and its answers to the inquiries of others.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "watch/watch.h"

namespace tutti {
namespace {

// The other side's sentence arrives within this time after a foreign chunk has been seen.
constexpr int64_t kExplainNs = 2'000'000'000;
// A rank compares this many finished collectives with a peer whose data does not fit.
constexpr uint64_t kPastCompared = 8;

// Returns the bytes of a message, or the largest number where the product is too large.
uint64_t BytesOf(const OpSignature& message) {
  constexpr uint64_t kMost = ~uint64_t{0};
  const auto elem = static_cast<uint64_t>(SizeOf(message.type));
  return message.count > kMost / elem ? kMost : message.count * elem;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Asking

Status Watch::Refuse(OpSignature collective, const std::shared_ptr<const VariableParts>& parts) {
  if (!std::exchange(has_refused_, true)) {
    log_.BeginCollective(collective, parts);
    log_.End();
  }
  return StopReason();
}

Status Watch::OnForeignChunk(int peer, uint32_t expected_tag, uint32_t found_tag) {
  if (const auto receive = log_.FindReceive(peer, expected_tag)) {
    Ask(peer, Shown::kForeignReceive, *receive);
  } else {
    AskAboutPast(peer);
    AskAboutPresent(std::span(&peer, 1));
  }
  AwaitOver(std::nullopt, Deadline::After(kExplainNs));
  const Status otherwise = InvalidUsage(
      "{} sent data of another operation than the one that {} is in (tag {:08x}, expected {:08x}): "
      "all ranks must call the same operations in the same order with the same arguments, and a "
      "rank must send to another rank as many elements as the other rank expects{}",
      NameOf(peer), NameOf(bootstrap_.rank()), found_tag, expected_tag, OrTuners());
  Status reason = stopped() ? StopReason() : otherwise;
  Stop(reason, /*tell=*/true);
  return reason;
}

// Comparing with the next rank alone is enough for a collective: round the ring, some neighbours
// differ wherever two ranks differ.
void Watch::CompareRecent(int next) {
  CompareEarly();
  const uint64_t last = log_.last_collective();
  const uint64_t kept = std::min(last, RecentCollectives::kKept - 1);
  for (uint64_t sequence = last - kept + 1; sequence <= last; ++sequence) {
    const std::optional<OpSignature> one = log_.FindCollective(sequence);
    if (!one) continue;
    Ask(next, Shown::kCollective, *one);
    if (!HasCountsByPair(one->collective) || sequence <= last_shown_to_all_) continue;
    for (int rank = 0; rank < bootstrap_.num_ranks(); ++rank)
      if (rank != next && rank != bootstrap_.rank()) Ask(rank, Shown::kCollective, *one);
  }
  last_shown_to_all_ = last;
  for (const MessageCall& one : log_.TakeNewMessages())
    Ask(one.signature.root, one.is_send ? Shown::kSend : Shown::kReceive, one.signature);
}

// A group of messages has no collective to compare.
void Watch::AskAboutPresent(std::span<const int> peers) {
  const std::optional<OpSignature> mine = log_.CollectiveUnderWay();
  if (!mine) return AskWhatTheyDo(peers);
  for (const int peer : peers) Ask(peer, Shown::kCollective, *mine);
}

// A tag depends on all earlier collectives, so the collective in which the ranks differ may be over
// here. The oldest is asked about first: at the oldest difference the ranks parted, and the others
// follow from it.
void Watch::AskAboutPast(int peer) {
  const uint64_t last = log_.last_collective();
  for (uint64_t back = std::min(kPastCompared, last); back > 0; --back)
    if (const auto one = log_.FindCollective(last - back)) Ask(peer, Shown::kCollective, *one);
}

void Watch::Ask(int peer, Shown shown, const OpSignature& mine) {
  {
    const MutexLock lock(mutex_);
    unanswered_ns_.try_emplace(peer, NowNs());
  }
  Inquiry inquiry = {.shown = shown, .signature = mine};
  if (shown == Shown::kCollective && HasCountsByPair(mine.collective))
    inquiry.pair = log_.FindPair(mine.sequence, peer);
  Bytes message = StartMessage(Message::kInquiry);
  AppendInquiry(inquiry, message);
  bootstrap_.SendControl(peer, message);
}

// ---------------------------------------------------------------------------------------------------------------------
// Answering

void Watch::OnInquiry(int from, std::span<const std::byte> body) {
  std::optional<Inquiry> inquiry = ReadInquiry(body);
  if (!inquiry) return;
  Compare({from, std::move(*inquiry)});
  AnswerWhatThisDoes(from);
}

// An inquiry that comes during this look may be missed. A rank that waits long, or compares, looks
// again.
void Watch::CompareEarly() {
  if (!has_early_.load(std::memory_order_relaxed)) return;
  std::vector<Asked> early;
  {
    const MutexLock lock(mutex_);
    early.swap(early_);
    has_early_.store(false, std::memory_order_relaxed);
  }
  for (const Asked& asked : early) Compare(asked);
}

void Watch::Compare(const Asked& asked) {
  switch (asked.inquiry.shown) {
    case Shown::kNothing:
      return;
    case Shown::kCollective:
      return CompareCollective(asked);
    case Shown::kSend:
    case Shown::kReceive:
    case Shown::kForeignReceive:
      return CompareMessage(asked);
  }
}

// Equal sequence numbers mean the same call of the program, so a difference is an error of the
// program.
void Watch::CompareCollective(const Asked& asked) {
  const OpSignature& theirs = asked.inquiry.signature;
  {
    const MutexLock lock(mutex_);
    if (theirs.sequence > log_.last_collective()) {  // This rank has not begun the collective yet.
      if (early_.size() < kMaxEarly) {
        early_.push_back(asked);
        has_early_.store(true, std::memory_order_relaxed);
      }
      return;
    }
  }
  const std::optional<OpSignature> mine = log_.FindCollective(theirs.sequence);
  if (!mine) return;
  if (*mine == theirs) return ComparePair(asked);
  Stop(InvalidUsage("mismatched collectives: as number {} of {} {} called {} and {} "
                    "called {}. All ranks must call the same operations in the same order with "
                    "the same count, type, operator and root, and in the same places of the same "
                    "registered buffers{}",
                    theirs.sequence, label_, NameOf(bootstrap_.rank()), mine->Describe(),
                    NameOf(asked.from), theirs.Describe(), OrTuners()),
       /*tell=*/true);
}

// Both ranks are in the same collective. Only the two can tell whether they agree on the counts
// between them.
void Watch::ComparePair(const Asked& asked) {
  const uint64_t sequence = asked.inquiry.signature.sequence;
  const std::optional<PairCounts>& theirs = asked.inquiry.pair;
  if (!theirs) return;
  const std::optional<PairCounts> mine = log_.FindPair(sequence, asked.from);
  if (!mine) return;
  const auto refuse = [&](int sender, uint64_t sent, int receiver, uint64_t expected) {
    Stop(InvalidUsage("mismatched collectives: in {}, number {} of {}, {} sends {} "
                      "elements of {} to {}, which expects {}",
                      tutti::Name(asked.inquiry.signature.collective), sequence, label_,
                      NameOf(sender), sent, tutti::Name(asked.inquiry.signature.type),
                      NameOf(receiver), expected),
         /*tell=*/true);
  };
  const int here = bootstrap_.rank();
  if (mine->sends != theirs->receives)
    refuse(here, mine->sends, asked.from, theirs->receives);
  else if (mine->receives != theirs->sends)
    refuse(asked.from, theirs->sends, here, mine->receives);
}

// The two ends of a message may name its bytes by different types. Where a tag was foreign, type
// and count must be the same as well, because the tag depends on both.
void Watch::CompareMessage(const Asked& asked) {
  const OpSignature& theirs = asked.inquiry.signature;
  const bool sent_here = asked.inquiry.shown != Shown::kSend;
  const std::optional<OpSignature> mine = log_.FindMessage(asked.from, sent_here, theirs.sequence);
  if (!mine) return;
  const bool fits = asked.inquiry.shown == Shown::kForeignReceive
                        ? mine->count == theirs.count && mine->type == theirs.type
                        : BytesOf(*mine) == BytesOf(theirs);
  if (fits) return;
  const OpSignature& sent = sent_here ? *mine : theirs;
  const OpSignature& received = sent_here ? theirs : *mine;
  const std::string here = NameOf(bootstrap_.rank()), there = NameOf(asked.from);
  Stop(InvalidUsage(
           "mismatched message: as number {} between the two in {}, {} sends {} elements of {} "
           "to {}, which receives {} of {}",
           theirs.sequence, label_, sent_here ? here : there, sent.count, tutti::Name(sent.type),
           sent_here ? there : here, received.count, tutti::Name(received.type)),
       /*tell=*/true);
}

}  // namespace tutti
