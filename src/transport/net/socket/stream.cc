#include "transport/net/socket/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

// One call writes about this much, so that the first slots are free while the later ones travel.
constexpr size_t kWriteBytes = 256 * 1024;

// A piece of so many bytes begins a record of its own, which the receiver can then read to where it
// belongs.
constexpr size_t kOwnRecordBytes = 16 * 1024;

// Only where fewer bytes are awaited may they be left in the socket. TCP takes packets of this
// length and more for full ones (TCP_MSS_DEFAULT in Linux), of which it acknowledges every second
// one on its way in, whenever they are taken out.
constexpr size_t kFullPacketBytes = 536;

// And only where it reads no more than this.
constexpr size_t kLeaveBytes = 16 * 1024;

// Pieces that have so few bytes together are written as one: a copy takes less than it takes the
// system to read where they lie.
constexpr size_t kGatherBytes = 512;

size_t Total(std::span<const iovec> pieces) {
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

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
  acknowledges_soon_ = false;
  return sent;
}

// Returns whether a read may leave its bytes in the socket. Where the last look found something,
// nobody waits in vain, and the system call that takes the bytes out would be one more.
bool SocketStream::MayLeave(std::span<const iovec> places) const {
  return awaited_ > 0 && awaited_ < kFullPacketBytes && polled_ && Total(places) <= kLeaveBytes;
}

ssize_t SocketStream::ReadPlain(std::span<const iovec> places) {
  TakeOut();
  if (take_out_error_ != 0) {
    errno = std::exchange(take_out_error_, 0);
    return -1;
  }
  // Only TCP can take bytes out unseen, which it says here.
  bool leaves = MayLeave(places);
  if (leaves && !acknowledges_soon_) AcknowledgeSoon();
  leaves &= is_tcp_;
  const int flags = MSG_DONTWAIT | (leaves ? MSG_PEEK : 0);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(places.data());
  message.msg_iovlen = places.size();
  ssize_t got;
  do {
    got = places.size() == 1 ? ::recv(fd_.get(), places[0].iov_base, places[0].iov_len, flags)
                             : ::recvmsg(fd_.get(), &message, flags);
  } while (got < 0 && errno == EINTR);
  const bool nothing = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  polled_ = nothing;
  if (got <= 0) return got;
  if (leaves) left_in_socket_ = static_cast<size_t>(got);
  return got;
}

void SocketStream::TakeOut() {
  while (left_in_socket_ > 0) {
    // TCP's MSG_TRUNC takes bytes out without a copy.
    const ssize_t taken = ::recv(fd_.get(), nullptr, left_in_socket_, MSG_TRUNC | MSG_DONTWAIT);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) take_out_error_ = errno;
    left_in_socket_ -= taken > 0 ? static_cast<size_t>(taken) : left_in_socket_;
  }
}

// Has TCP acknowledge at once what leaves the socket, while the caller waits for more. A socket
// that has written lets an acknowledgement wait for the next write, or for a second packet: the
// second one would then be acknowledged before the caller gets it.
void SocketStream::AcknowledgeSoon() {
  const int kOn = 1;
  is_tcp_ = setsockopt(fd_.get(), IPPROTO_TCP, TCP_QUICKACK, &kOn, sizeof(kOn)) == 0;
  acknowledges_soon_ = true;
}

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

// Makes the next record of the bytes behind the first `skip` of `pieces`, by a copy, because
// encryption works in place and the caller's bytes must not change.
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

// Gives out what is opened already; else reads a header and a record, as far as they have come, and
// opens the record when it is whole. A long record is read straight to where the caller wants it,
// if it fits there.
ssize_t SocketStream::Read(std::span<const iovec> places, size_t awaited) {
  awaited_ = awaited;
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

bool SocketStream::HasInput() const {
  if (!reading_ || reading_->damaged) return false;
  const Reading& r = *reading_;
  if (!r.opened.empty()) return true;
  const size_t buffered = r.to - r.from;
  if (r.length > 0) return !r.place && buffered >= r.length;
  // It may be a whole record, which one more Read tells.
  return buffered >= r.seal.header_bytes();
}

}  // namespace tutti
