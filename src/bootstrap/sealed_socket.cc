#include "bootstrap/sealed_socket.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace tutti {
namespace {

// The most bytes of one read. Larger reads are no faster, and the bytes lie on the stack.
constexpr size_t kReadBytes = size_t{64} << 10;

}  // namespace

// The bytes of a record count when the whole record has left, so the caller passes the bytes of a
// record under way again.
Result<size_t> SealedSocket::TrySend(std::span<const std::byte> data) {
  const size_t header = out_.header_bytes();
  size_t taken = 0;
  for (;;) {
    if (sent_ == record_.size()) {
      const auto next = data.subspan(taken);
      const size_t length = std::min(next.size(), RecordSeal::kMostRecordBytes);
      if (length == 0) return taken;
      record_.resize(header + length);
      std::memcpy(record_.data() + header, next.data(), length);
      out_.Close(record_.data(), record_.data() + header, length);
      sent_ = 0;
    }
    TUTTI_ASSIGN(const size_t sent, tutti::TrySend(fd_.get(), std::span(record_).subspan(sent_)));
    if (sent == 0) return taken;
    sent_ += sent;
    if (sent_ == record_.size()) taken += record_.size() - header;
  }
}

// Opens the whole records of `sealed_` and keeps the rest.
Status SealedSocket::OpenRecords(Bytes& data) {
  const size_t header = in_.header_bytes();
  size_t at = 0;
  while (sealed_.size() - at >= header) {
    std::byte* const record = sealed_.data() + at;
    const std::optional<size_t> length = in_.ReadLength(record);
    if (length && sealed_.size() - at - header < *length) break;
    if (!length || !in_.Open(record, record + header, *length)) {
      return RemoteError("bytes of the connection were changed on their way");
    }
    data.insert(data.end(), record + header, record + header + *length);
    at += header + *length;
  }
  sealed_.erase(sealed_.begin(), sealed_.begin() + static_cast<ptrdiff_t>(at));
  return Status::Ok();
}

Result<int64_t> SealedSocket::TryRecv(Bytes& data) {
  std::array<std::byte, kReadBytes> bytes;
  TUTTI_ASSIGN(const int64_t got, tutti::TryRecv(fd_.get(), bytes));
  if (got == kEndOfStream && !sealed_.empty()) {
    return RemoteError("the connection was cut off within a record");
  }
  if (got <= 0) return got;
  sealed_.insert(sealed_.end(), bytes.begin(), bytes.begin() + got);
  TUTTI_TRY(OpenRecords(data));
  return got;
}

Status SealedSocket::SendAll(std::span<const std::byte> data, const WaitLimits& limits) {
  for (;;) {
    TUTTI_ASSIGN(const size_t sent, TrySend(data));
    data = data.subspan(sent);
    if (data.empty()) return Status::Ok();
    TUTTI_TRY(WaitReady(fd_.get(), POLLOUT, limits, "sending"));
  }
}

Status SealedSocket::RecvAll(std::span<std::byte> data, const WaitLimits& limits) {
  while (opened_.size() < data.size()) {
    TUTTI_ASSIGN(const int64_t got, TryRecv(opened_));
    if (got == kEndOfStream) return RemoteError("the other end closed the connection");
    if (got == 0) TUTTI_TRY(WaitReady(fd_.get(), POLLIN, limits, "receiving"));
  }
  std::copy_n(opened_.begin(), data.size(), data.begin());
  opened_.erase(opened_.begin(), opened_.begin() + static_cast<ptrdiff_t>(data.size()));
  return Status::Ok();
}

}  // namespace tutti
