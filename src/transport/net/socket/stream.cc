#include "transport/net/socket/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

// About the most bytes of one call. The bound frees the first slots while later slots travel.
constexpr size_t kWriteBytes = 256 * 1024;

// A piece of at least this length begins a record of its own, which goes straight to its
// destination.
constexpr size_t kOwnRecordBytes = 16 * 1024;

// Pieces with at most this length together are written as one, since a copy takes less time than
// the system takes for scattered memory.
constexpr size_t kGatherBytes = 512;

size_t Total(std::span<const iovec> pieces) {
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

// A call with several pieces costs the system more than a copy of short pieces.
ssize_t SocketStream::WritePlain(std::span<const iovec> pieces) {
  std::array<std::byte, kGatherBytes> gathered;
  iovec one = pieces[0];
  if (size_t total = 0; pieces.size() > 1 && Total(pieces) <= gathered.size()) {
    for (const iovec& piece : pieces) {
      if (piece.iov_len > 0) std::memcpy(&gathered[total], piece.iov_base, piece.iov_len);
      total += piece.iov_len;
    }
    one = {gathered.data(), total};
    pieces = {&one, 1};
  }
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent;
  do {
    sent = pieces.size() == 1 ? ::send(fd_.get(), one.iov_base, one.iov_len, kFlags)
                              : ::sendmsg(fd_.get(), &message, kFlags);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t SocketStream::ReadPlain(std::span<const iovec> places) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(places.data());
  message.msg_iovlen = places.size();
  ssize_t got;
  do {
    got = places.size() == 1
              ? ::recv(fd_.get(), places[0].iov_base, places[0].iov_len, MSG_DONTWAIT)
              : ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

// A record that the socket took only in part goes on with the next call. Its bytes count when the
// whole record is written, hence the caller passes them again.
ssize_t SocketStream::Write(std::span<const iovec> pieces) {
  if (!writing_) return WritePlain(pieces);
  Writing& w = *writing_;
  size_t taken = 0;
  while (taken < kWriteBytes) {
    if (w.length == 0) SealNext(pieces, taken);
    if (w.length == 0) break;
    const size_t total = w.seal.header_bytes() + w.length;
    const iovec rest = {&w.record[w.written], total - w.written};
    const ssize_t sent = WritePlain({&rest, 1});
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) w.error = errno;
    if (sent < 0) return taken > 0 ? static_cast<ssize_t>(taken) : sent;
    w.written += static_cast<size_t>(sent);
    if (w.written < total) continue;
    taken += w.length;
    w.length = 0;
  }
  return static_cast<ssize_t>(taken);
}

// Makes the next record of the bytes behind the first `skip` of `pieces`. The bytes are copied,
// because encryption works in place and the caller's bytes must not change.
void SocketStream::SealNext(std::span<const iovec> pieces, size_t skip) {
  Writing& w = *writing_;
  const size_t header = w.seal.header_bytes();
  for (const iovec& piece : pieces) {
    if (skip >= piece.iov_len) {
      skip -= piece.iov_len;
      continue;
    }
    const size_t left = piece.iov_len - skip;
    if (w.length > 0 && left >= kOwnRecordBytes) break;
    const size_t part = std::min(left, RecordSeal::kMostRecordBytes - w.length);
    if (w.record.size() < header + w.length + part) w.record.resize(header + w.length + part);
    std::memcpy(&w.record[header + w.length], static_cast<std::byte*>(piece.iov_base) + skip, part);
    w.length += part;
    skip = 0;
    if (part < left) break;
  }
  w.written = 0;
  if (w.length > 0) w.seal.Close(w.record.data(), &w.record[header], w.length);
}

// Returns opened bytes first. Otherwise reads a header and a record, as far as they have come, and
// opens the record when it is whole. A long record is read straight to the caller's first place, if
// it fits there.
ssize_t SocketStream::Read(std::span<const iovec> places) {
  if (!reading_) return ReadPlain(places);
  Reading& r = *reading_;
  if (!r.opened.empty()) return GiveOut(places);
  ssize_t got = r.damaged ? 1 : ReadHeader(places);
  if (got == 1 && !r.damaged) got = ReadRecord();
  if (got == 1 && !r.damaged) {
    std::byte* const bytes = r.place ? r.place : &r.buffer[r.from];
    r.damaged = !r.seal.Open(r.header.data(), bytes, r.length);
    const size_t length = std::exchange(r.length, 0);
    if (!r.place) r.from += length;
    if (!r.damaged && r.place == places.front().iov_base) return static_cast<ssize_t>(length);
    if (!r.damaged) r.opened = {bytes, length};
  }
  if (r.damaged) errno = EBADMSG;
  if (r.damaged) return -1;
  if (got == 0 && writing_->error != 0) {
    errno = writing_->error;
    return -1;
  }
  return got == 1 ? GiveOut(places) : got;
}

// Bytes that find no place stay for the next call.
ssize_t SocketStream::GiveOut(std::span<const iovec> places) {
  Reading& r = *reading_;
  size_t given = 0;
  for (const iovec& place : places) {
    const size_t part = std::min(place.iov_len, r.opened.size());
    if (part > 0) std::memcpy(place.iov_base, r.opened.data(), part);
    r.opened = r.opened.subspan(part);
    given += part;
  }
  return static_cast<ssize_t>(given);
}

// Reads the header of the next record and chooses a destination for its bytes: the buffer for a
// short record, the caller's first place, or `large`.
ssize_t SocketStream::ReadHeader(std::span<const iovec> places) {
  Reading& r = *reading_;
  if (r.length > 0) return 1;
  const size_t bytes = r.seal.header_bytes();
  while (r.to - r.from < bytes) {
    const ssize_t got = FillBuffer();
    if (got <= 0) return got;
  }
  std::memcpy(r.header.data(), &r.buffer[r.from], bytes);
  r.from += bytes;
  const std::optional<size_t> length = r.seal.ReadLength(r.header.data());
  r.damaged = !length.has_value();
  if (r.damaged) return 1;
  r.length = *length;
  r.got = 0;
  r.place = nullptr;
  if (r.length <= kBufferBytes) return 1;
  if (places.front().iov_len >= r.length) {
    r.place = static_cast<std::byte*>(places.front().iov_base);
  } else {
    r.large.resize(RecordSeal::kMostRecordBytes);
    r.place = r.large.data();
  }
  return 1;
}

ssize_t SocketStream::ReadRecord() {
  Reading& r = *reading_;
  while (!r.place && r.to - r.from < r.length) {
    const ssize_t got = FillBuffer();
    if (got <= 0) return got;
  }
  if (!r.place) return 1;
  while (r.got < r.length) {
    if (const size_t part = std::min(r.to - r.from, r.length - r.got); part > 0) {
      std::memcpy(r.place + r.got, &r.buffer[r.from], part);
      r.from += part;
      r.got += part;
      continue;
    }
    // One system call fills the rest of the record and, behind it, the buffer.
    const size_t rest = r.length - r.got;
    const std::array<iovec, 2> both = {iovec{r.place + r.got, rest},
                                       iovec{r.buffer.data(), r.buffer.size()}};
    const ssize_t got = ReadPlain(both);
    if (got <= 0) return got;
    const size_t part = std::min(static_cast<size_t>(got), rest);
    r.got += part;
    r.from = 0;
    r.to = static_cast<size_t>(got) - part;
  }
  return 1;
}

ssize_t SocketStream::FillBuffer() {
  Reading& r = *reading_;
  std::memmove(r.buffer.data(), r.buffer.data() + r.from, r.to - r.from);
  r.to -= r.from;
  r.from = 0;
  const iovec place = {r.buffer.data() + r.to, r.buffer.size() - r.to};
  const ssize_t got = ReadPlain({&place, 1});
  if (got > 0) r.to += static_cast<size_t>(got);
  return got;
}

// A poll of the socket does not report bytes that this stream has already read.
bool SocketStream::HasInput() const {
  if (!reading_ || reading_->damaged) return false;
  const Reading& r = *reading_;
  if (!r.opened.empty()) return true;
  const size_t buffered = r.to - r.from;
  if (r.length > 0) return !r.place && buffered >= r.length;
  // The buffer may have a whole record, and the next Read decides.
  return buffered >= r.seal.header_bytes();
}

}  // namespace tutti
