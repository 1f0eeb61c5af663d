// Fuzzes the messages that a peer sends over the control socket (make fuzz). The first byte chooses
// the pieces in which the rest comes.

#include <algorithm>
#include <cstdlib>

#include "bootstrap/testing/sealed_pair.h"
#include "transport/net/verbs/setup.h"

namespace tutti {
namespace {

// Decoded values must be values that a peer can have written.
void CheckEnd(const ControlMessage& message) {
  if (const Result<AnswerAgain> answer = AnswerAgain::Decode(message.payload); answer.ok()) {
    if (answer->end.queue_pairs.empty() || answer->groups.Has(answer->groups.posted + 1)) abort();
  }
  const Result<VerbsEnd> end = VerbsEnd::Decode(message.payload);
  if (!end.ok()) return;
  if (end->queue_pairs.empty() || end->queue_pairs.size() > kMaxQueuePairs) abort();
  for (const VerbsEnd::Pair& pair : end->queue_pairs) {
    if (pair.port >= end->ports.size() || pair.port >= kMaxPorts) abort();
  }
  const Result<VerbsEnd> again = VerbsEnd::Decode(end->Encode());
  if (!again.ok() || again->queue_pairs.size() != end->queue_pairs.size()) abort();
}

// Takes all messages. Returns false when the socket has failed.
bool TakeAll(ControlSocket& socket) {
  ControlMessage message;
  for (;;) {
    const Result<bool> came = socket.Receive(message);
    if (!came.ok()) return false;
    if (!*came) {
      if (socket.HasStaged()) abort();  // Receive has just returned no message.
      return true;
    }
    if (message.payload.size() > kMaxControlPayload) abort();
    CheckEnd(message);
  }
}

void Feed(const uint8_t* data, size_t size, size_t piece) {
  auto [there, near] = testing::SealedPair();
  ControlSocket here{std::move(near)};
  const auto bytes = std::as_bytes(std::span(data, size));
  for (size_t at = 0; at < size; at += piece) {
    const auto part = bytes.subspan(at, std::min(piece, size - at));
    const Result<size_t> sent = there.TrySend(part);
    if (!sent.ok() || *sent != part.size()) abort();
    if (!TakeAll(here)) return;
  }
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMost = 16 * 1024;  // less than a socket holds
  if (size == 0 || size > kMost) return 0;
  tutti::Feed(data + 1, size - 1, size_t{1} << (data[0] % 15));
  tutti::ControlMessage message;
  message.payload.assign(reinterpret_cast<const std::byte*>(data + 1),
                         reinterpret_cast<const std::byte*>(data + size));
  tutti::CheckEnd(message);
  return 0;
}
