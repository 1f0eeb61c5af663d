// What the watch knows of operations that are launched on GPUs and run on their own: comparing them
// with those of other ranks, and ranks that leave.

#include <algorithm>

#include "watch/watch.h"

namespace tutti {
namespace {

// The bytes of a message, or more than there are where a rank says nonsense.
uint64_t BytesOf(const OpSignature& message) {
  constexpr uint64_t kMost = ~uint64_t{0};
  const auto elem = static_cast<uint64_t>(SizeOf(message.type));
  return message.count > kMost / elem ? kMost : message.count * elem;
}

}  // namespace

void Watch::NoteCall(const OpSignature& signature) {
  collectives_.Add(signature);
  CompareEarly();
}

void Watch::CompareCalls(int peer) {
  CompareEarly();
  const uint64_t last = collectives_.last();
  const uint64_t kept = std::min(last, RecentCollectives::kKept - 1);
  for (uint64_t sequence = last - kept + 1; sequence <= last; ++sequence)
    if (const auto one = collectives_.Find(sequence)) AskWith(peer, *one, Shown::kCollective);
}

void Watch::NoteMessage(OpSignature signature, bool is_send) {
  std::lock_guard lock(mutex_);
  const size_t pair = 2 * static_cast<size_t>(signature.root) + (is_send ? 1 : 0);
  signature.sequence = ++launched_numbers_[pair];
  launched_[num_launched_++ % kRemembered] = {signature, is_send};
}

void Watch::CompareMessages() {
  std::vector<Launched> shown;
  {
    std::lock_guard lock(mutex_);
    for (uint64_t i = num_launched_ - std::min<uint64_t>(num_launched_ - num_shown_, kRemembered);
         i < num_launched_; ++i)
      shown.push_back(launched_[i % kRemembered]);
    num_shown_ = num_launched_;
  }
  for (const Launched& one : shown)
    AskWith(one.signature.root, one.signature,
            one.is_send ? Shown::kLaunchedSend : Shown::kLaunchedReceive);
}

void Watch::CompareLaunched(const Inquiry& inquiry) {
  const OpSignature& theirs = inquiry.signature;
  const bool sends = inquiry.shown == Shown::kLaunchedReceive;  // this rank does, and they receive
  std::optional<OpSignature> mine;
  {
    std::lock_guard lock(mutex_);
    for (const Launched& one : launched_)
      if (one.is_send == sends && one.signature.sequence == theirs.sequence &&
          one.signature.root == inquiry.from)
        mine = one.signature;
  }
  if (!mine || BytesOf(*mine) == BytesOf(theirs)) return;
  const OpSignature& sent = sends ? *mine : theirs;
  const OpSignature& received = sends ? theirs : *mine;
  const std::string here = NameOf(bootstrap_.rank()), there = NameOf(inquiry.from);
  Stop(InvalidUsage("mismatched message (or part of an AlltoAllV): as number {} between the two, "
                    "{} sends {} elements of {} to "
                    "{}, which receives {} of {}",
                    theirs.sequence, sends ? here : there, sent.count, tutti::Name(sent.type),
                    sends ? there : here, received.count, tutti::Name(received.type)),
       true);
}

void Watch::SetDepartureHook(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  departure_hook_ = std::move(hook);
}

void Watch::SayLeaving(bool finished) {
  Departure departure = {bootstrap_.rank(), finished, collectives_.last(), {}};
  std::vector<int> here = bootstrap_.LinkedRanks();
  {
    const std::lock_guard lock(mutex_);
    departure.messages = launched_numbers_;
    std::erase_if(here, [this](int rank) { return left_[static_cast<size_t>(rank)]; });
  }
  Bytes message(1, static_cast<std::byte>(Message::kLeaving));
  AppendDeparture(departure, message);
  for (const int rank : here) bootstrap_.SendControl(rank, message);
}

// Not every two ranks have a link: what is new is passed on.
void Watch::OnLeaving(int, std::span<const std::byte> payload) {
  std::optional<Departure> departure = ReadDeparture(payload.subspan(1), bootstrap_.num_ranks());
  if (!departure || departure->rank == bootstrap_.rank()) return;
  std::function<void()> hook;
  std::vector<int> here = bootstrap_.LinkedRanks();
  {
    const std::lock_guard lock(mutex_);
    if (!departures_.emplace(departure->rank, std::move(*departure)).second) return;
    hook = departure_hook_;
    std::erase_if(here, [this](int rank) {
      return left_[static_cast<size_t>(rank)] || departures_.count(rank) != 0;
    });
  }
  for (const int rank : here) bootstrap_.SendControl(rank, payload);
  if (hook) hook();
}

Status Watch::CheckDepartures(bool* cut_short) {
  *cut_short = false;
  const uint64_t last = collectives_.last();
  const int here = bootstrap_.rank();
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, departure] : departures_) {
    if (departure.collectives < last) {
      const std::optional<OpSignature> next = collectives_.Find(departure.collectives + 1);
      return RemoteError(
          "{} has ended its communicator after collective number {}, and {} waits for it in the "
          "next{}",
          NameOf(rank), departure.collectives, NameOf(here), next ? ", " + next->Describe() : "");
    }
    const auto at = static_cast<size_t>(rank), me = static_cast<size_t>(here);
    for (const bool sends : {false, true}) {
      const uint64_t mine = launched_numbers_[2 * at + (sends ? 1 : 0)];
      const uint64_t theirs = departure.messages[2 * me + (sends ? 0 : 1)];
      if (mine > theirs)
        return RemoteError("{} has ended its communicator and {} {} of {} messages that {} {}",
                           NameOf(rank), sends ? "received" : "sent", theirs, mine, NameOf(here),
                           sends ? "sends to it" : "expects of it");
    }
    *cut_short |= !departure.finished;
  }
  return Status::Ok();
}

Status Watch::CutShort() {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, departure] : departures_)
    if (!departure.finished)
      return RemoteError(
          "{} has ended its communicator in the middle of an operation that {} is in, {}",
          NameOf(rank), NameOf(bootstrap_.rank()), WhatHereLocked());
  return InternalError("no rank was cut short");
}

}  // namespace tutti
