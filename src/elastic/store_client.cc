#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "bootstrap/job_secret.h"
#include "elastic/store.h"
#include "elastic/store_wire.h"

namespace tutti::elastic {
namespace {

// An attempt at a single address: ample for a handshake, short enough to get round several.
constexpr int64_t kAttemptNs = 5'000'000'000;
constexpr auto kBetweenRounds = std::chrono::milliseconds(50);
// An answer may take this long beyond the requested wait. A launcher that is stopped, or whose host
// is gone, must not hold a worker for ever.
constexpr double kAnswerS = 30;
constexpr double kMaxWaitS = 3600;

}  // namespace

Key StoreKey(std::string_view secret) {
  return WithSecret(KeyFromText("elastic"), secret, "elastic");
}

Result<std::unique_ptr<StoreClient>> StoreClient::Connect(
    const std::vector<SocketAddress>& addresses, const Key& key, const WaitLimits& limits) {
  if (addresses.empty()) return InvalidArgument("no address of the job's launcher was given");
  for (;;) {
    std::string attempts;
    for (const SocketAddress& address : addresses) {
      Result<SealedSocket> socket =
          ConnectAuthenticated(address, key, {Purpose::kElastic, {}}, limits.Within(kAttemptNs));
      if (socket.ok()) {
        return std::unique_ptr<StoreClient>(new StoreClient(std::move(socket).value()));
      }
      attempts += fmt::format("{}{}: {}", attempts.empty() ? "" : "; ", address.ToString(),
                              socket.status().message());
    }
    if (limits.Aborted()) return InternalError("looking for the launcher: aborted by the caller");
    if (limits.deadline.Passed())
      return Timeout("the job's launcher cannot be reached ({})", attempts);
    std::this_thread::sleep_for(kBetweenRounds);
  }
}

Result<uint64_t> StoreClient::Set(std::string_view key, std::string_view value) {
  TUTTI_ASSIGN(const Entry entry, Ask(static_cast<uint8_t>(Op::kSet), key, 0, 0, value));
  return entry.version;
}

Result<Entry> StoreClient::Get(std::string_view key, uint64_t newer_than, double wait_s) {
  if (std::isnan(wait_s) || wait_s < 0) wait_s = 0;
  const auto wait_ms = static_cast<uint32_t>(std::min(wait_s, kMaxWaitS) * 1000);
  return Ask(static_cast<uint8_t>(Op::kGet), key, newer_than, wait_ms, "");
}

// Ends the connection, and so the wait of another thread. The descriptor stays open until the
// client is destroyed.
void StoreClient::Interrupt() {
  if (!IsTheParents()) shutdown(fd_, SHUT_RDWR);
}

Result<Entry> StoreClient::Ask(uint8_t op, std::string_view key, uint64_t newer_than,
                               uint32_t wait_ms, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    return InvalidArgument(
        "a key of {} and a value of {} bytes; keys have 1 to {}, values at "
        "most {}",
        key.size(), value.size(), kMaxKeyBytes, kMaxValueBytes);
  }
  if (IsTheParents()) {
    return InvalidUsage(
        "the connection to the job's launcher was made before this process was forked and is its "
        "parent's: processes make connections of their own");
  }
  const Bytes request = WithSize(EncodeRequest(
      {static_cast<Op>(op), newer_than, wait_ms, std::string(key), std::string(value)}));
  const MutexLock lock(mutex_);
  if (broken_) return RemoteError("the connection to the job's launcher broke before");
  Result<Entry> entry = Exchange(request, wait_ms);
  // A refusal is an answer like any other; other failures leave the stream in the middle of an
  // answer.
  broken_ = !entry.ok() && entry.status().code() != Code::kInvalidUsage;
  if (broken_) return std::move(entry).status().Annotate("the job's launcher");
  return entry;
}

// The deadline covers the requested wait and a grace, in which an answer at the end of the wait
// arrives.
Result<Entry> StoreClient::Exchange(const Bytes& request, uint32_t wait_ms) {
  WaitLimits limits;
  limits.deadline = Deadline::AfterSeconds(wait_ms / 1000.0 + kAnswerS);
  TUTTI_TRY(socket_.SendAll(request, limits));
  std::array<std::byte, 4> head;
  TUTTI_TRY(socket_.RecvAll(head, limits));
  const uint32_t size = WireReader(head).U32();
  if (size > kMaxMessageBytes) {
    return RemoteError("an answer of {} bytes where {} are allowed", size, kMaxMessageBytes);
  }
  Bytes message(size);
  TUTTI_TRY(socket_.RecvAll(message, limits));
  TUTTI_ASSIGN(Answer answer, ParseAnswer(message));
  if (answer.outcome == Outcome::kRefused) return InvalidUsage("{}", Printable(answer.value));
  if (answer.outcome == Outcome::kNotYet) return Entry{};
  return Entry{answer.version, std::move(answer.value)};
}

}  // namespace tutti::elastic
