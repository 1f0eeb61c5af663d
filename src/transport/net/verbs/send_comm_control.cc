// Handles messages of the control socket at the sending end: opens the connection, and repeats
// messages over queue pairs that were made again (recovery.h).

#include <algorithm>

#include "transport/net/verbs/send_comm.h"

namespace tutti {

// Renews the queue pairs, and offers them to the receiver. The caller must have taken all
// completions of the lost queue pairs, because they tell which messages are done.
Status VerbsSendComm::OfferAgain() {
  const Status renewed = channel_->Renew(nullptr);
  if (!renewed.ok()) return channel_->Refuse(renewed);
  return channel_->FailUnlessOk(
      channel_->control().Send(ControlType::kOfferAgain, channel_->Here().Encode()));
}

// Repeats the messages that are not done at this end and whose groups have not come at the
// receiver.
Status VerbsSendComm::TakeAnswerAgain(const ControlMessage& message) {
  Result<AnswerAgain> answer = AnswerAgain::Decode(message.payload);
  if (!answer.ok()) return channel_->Refuse(std::move(answer).status());
  const Status joined = channel_->Join(answer->end, channel_->options().traffic_class);
  if (!joined.ok()) return channel_->Refuse(joined);
  std::vector<Request*> missing;
  for (Request& request : requests_) {
    if (!request.taken || request.pending == 0) continue;
    if (!answer->groups.Has(request.group)) {
      missing.push_back(&request);
      continue;
    }
    request.pending = 0;
    --in_flight_;
  }
  std::sort(missing.begin(), missing.end(),
            [](const Request* a, const Request* b) { return a->number < b->number; });
  for (UnderWay& way : under_way_) {
    way.first += way.requests.size();
    way.requests.clear();
  }
  posting_ = 0;
  for (Request* const request : missing) {
    TUTTI_TRY(channel_->FailUnlessOk(Post(*request)));
  }
  TUTTI_TRY(Flush());
  wake_asked_ = 0;
  woken_ = 0;
  channel_->Open(missing.size());
  return channel_->FailUnlessOk(channel_->control().Send(ControlType::kReady, {}));
}

// Each message is allowed in a single state of the connection (recovery.h), and refused in all
// further states.
Status VerbsSendComm::TakeControl(const ControlMessage& message) {
  WireReader reader(message.payload);
  switch (message.type) {
    case ControlType::kAnswer: {
      if (channel_->state() != Recovery::State::kSettingUp) break;
      Result<VerbsEnd> end = VerbsEnd::Decode(message.payload);
      if (!end.ok()) return channel_->Refuse(std::move(end).status());
      const Status joined = channel_->Join(*end, channel_->options().traffic_class);
      if (!joined.ok()) return channel_->Refuse(joined);
      if (!channel_->ports().iwarp()) return OpenIfJoined();
      // The caller has a message to send, and calls Progress until the message is sent.
      return channel_->FailUnlessOk(channel_->control().Send(ControlType::kAwaiting, {}));
    }
    case ControlType::kAnswerAgain:
      if (channel_->state() != Recovery::State::kRenewed) break;
      return TakeAnswerAgain(message);
    case ControlType::kLost:
      // The message changes nothing where this end has already seen the loss.
      return channel_->Lose(RemoteError("the other end lost its queue pairs"),
                            Recovery::Loss::kTold);
    case ControlType::kWoken:
      woken_ = std::max(woken_, reader.U64());
      return Status::Ok();
    default:
      break;
  }
  return channel_->Refuse(RemoteError("the receiver sent control message {} at the wrong time",
                                      static_cast<int>(message.type)));
}

Status VerbsSendComm::OpenIfJoined() {
  const bool can_send = !channel_->ports().iwarp() || hellos_ == channel_->num_queue_pairs();
  if (!can_send) return Status::Ok();
  channel_->Open();
  return channel_->FailUnlessOk(channel_->control().Send(ControlType::kReady, {}));
}

}  // namespace tutti
