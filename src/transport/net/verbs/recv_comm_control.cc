// Handles messages of the control socket at the receiving end: opens the connection, wakes the
// sender, and makes lost queue pairs again (recovery.h).

#include <algorithm>

#include "transport/net/verbs/recv_comm.h"

namespace tutti {

// Wakes a sender that has gone to sleep for lack of a grant. The grant itself is a write into the
// sender's memory and makes no descriptor readable.
Status VerbsRecvComm::TellIfAsleep() {
  if (wake_from_ == 0 || granted_ < wake_from_) return Status::Ok();
  WireWriter writer;
  writer.U64(granted_);
  wake_from_ = 0;
  const Status told = channel_->control().Send(ControlType::kWoken, std::move(writer).Take());
  // The next receive notices a sender that is gone.
  return told.ok() || told.code() == Code::kRemoteError ? Status::Ok() : channel_->Fail(told);
}

Status VerbsRecvComm::TakeOfferAgain(const ControlMessage& message) {
  const bool answered = channel_->lost() && channel_->state() != Recovery::State::kLost;
  if (offer_again_ || answered) {
    return channel_->Refuse(RemoteError("the sender offered queue pairs twice"));
  }
  Result<VerbsEnd> offer = VerbsEnd::Decode(message.payload);
  if (!offer.ok()) return channel_->Refuse(std::move(offer).status());
  TUTTI_TRY(
      channel_->Lose(RemoteError("the other end lost its queue pairs"), Recovery::Loss::kTold));
  offer_again_ = std::move(offer).value();
  return Status::Ok();
}

// Answers the offer when all receives of the lost queue pairs have come back, because only then
// this end knows which groups have come. Completions come in order, so a marker is posted behind
// the last receive of each queue pair.
Status VerbsRecvComm::GoOnLost() {
  for (; markers_posted_ < channel_->num_queue_pairs(); ++markers_posted_) {
    TUTTI_TRY(channel_->FailUnlessOk(
        channel_->pair(markers_posted_).Receive(channel_->Mark(kMarkerBit | markers_posted_))));
  }
  if (!offer_again_ || markers_taken_ < markers_posted_) return Status::Ok();
  const Status answered = AnswerOffer();
  return answered.ok() ? answered : channel_->Refuse(answered);
}

// Joins the renewed queue pairs, and tells the sender which groups have not come. The missing
// groups are granted anew.
Status VerbsRecvComm::AnswerOffer() {
  TUTTI_TRY(channel_->Renew(&*offer_again_));
  AnswerAgain answer;
  answer.groups.posted = posted_;
  const uint64_t first = posted_ < kTableSlots ? 1 : posted_ - kTableSlots + 1;
  granted_ = posted_;
  for (uint64_t group = first; group <= posted_; ++group) {
    Request& request = At(group);
    if (request.group != group || request.pending == 0) continue;
    answer.groups.Miss(group);
    granted_ = std::min(granted_, group - 1);
    Expect(request);
  }
  const size_t pairs = receives_.size();
  for (size_t pair = 0; pair < pairs; ++pair) {
    receives_[pair] = 0;
    next_ended_[pair] = first + (pair + pairs - first % pairs) % pairs;
  }
  TUTTI_TRY(PostReceives());
  for (Request& flush : flushes_) {
    if (flush.pending > 0) TUTTI_TRY(PostFlush(flush));
  }
  reclaimed_ = granted_;
  TUTTI_TRY(channel_->Join(*offer_again_, channel_->options().grant_traffic_class));
  answer.end = channel_->Here();
  offer_again_.reset();
  markers_posted_ = 0;
  markers_taken_ = 0;
  return channel_->control().Send(ControlType::kAnswerAgain, answer.Encode());
}

Status VerbsRecvComm::TakeControl(const ControlMessage& message) {
  if (message.type == ControlType::kReady && channel_->Open()) return GrantWhatIsPosted();
  if (message.type == ControlType::kAwaiting && channel_->ports().iwarp()) {
    const Status begun = channel_->BeginToConnect();
    return begun.ok() ? begun : channel_->Refuse(begun);
  }
  if (message.type == ControlType::kLost) {
    return channel_->Lose(RemoteError("the other end lost its queue pairs"), Recovery::Loss::kTold);
  }
  if (message.type == ControlType::kOfferAgain) return TakeOfferAgain(message);
  WireReader reader(message.payload);
  const uint64_t group = reader.U64();
  if (message.type == ControlType::kWake && (channel_->open() || channel_->lost()) &&
      !reader.failed() && group > 0) {
    wake_from_ = group;
    return TellIfAsleep();
  }
  return channel_->Refuse(RemoteError("the sender sent control message {} at the wrong time",
                                      static_cast<int>(message.type)));
}

}  // namespace tutti
