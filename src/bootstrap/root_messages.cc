#include "bootstrap/root_messages.h"

#include <algorithm>

namespace tutti {
namespace {

constexpr size_t kMaxHostBytes = 64;
constexpr size_t kMaxRequestWhyBytes = 160;  // a request has to fit in a hello
constexpr size_t kMaxSentenceBytes = 8192;
// 24 distances below 2^20 ranks and then some; an answer with as many contacts stays far below its
// limit.
constexpr size_t kMaxWanted = 32;
enum AnswerType : uint32_t { kContacts = 1, kFailure = 2, kNotice = 3 };

// The numbers come from a stranger. The bounds are checked first, because RootInCharge divides and
// multiplies the numbers.
bool Consistent(const RootRequest& request) {
  if (request.num_ranks == 0 || request.num_ranks > kMaxRanks ||
      request.rank >= request.num_ranks || request.num_roots == 0 ||
      request.num_roots > request.num_ranks || request.root_index >= request.num_roots) {
    return false;
  }
  const auto mine = [&](uint32_t rank) {
    return rank < request.num_ranks &&
           RootInCharge(rank, request.num_ranks, request.num_roots) == request.root_index;
  };
  if (request.kind == RootRequest::Kind::kRegister) {
    return mine(request.rank) && request.contact.address.port != 0;
  }
  if (request.kind == RootRequest::Kind::kDecline) return mine(request.rank);
  return !mine(request.rank) && std::all_of(request.wanted.begin(), request.wanted.end(), mine);
}

}  // namespace

void WriteContact(WireWriter& writer, const Contact& contact) {
  writer.Address(contact.address);
  writer.Raw(std::as_bytes(std::span(contact.key.get())));
}

Contact ReadContact(WireReader& reader) {
  Contact contact;
  contact.address = reader.Address();
  const auto key = reader.Raw(contact.key.get().size());
  std::copy(key.begin(), key.end(), std::as_writable_bytes(std::span(contact.key.get())).begin());
  return contact;
}

std::vector<int> LinkTargets(int rank, int num_ranks) {
  std::vector<int> targets;
  for (int64_t distance = 1; distance < num_ranks; distance *= 2) {
    targets.push_back(static_cast<int>((rank + distance) % num_ranks));
  }
  return targets;
}

Bytes EncodeRootRequest(const RootRequest& request) {
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(request.kind));
  writer.U32(request.rank);
  writer.U32(request.num_ranks);
  writer.U32(request.num_roots);
  writer.U32(request.root_index);
  writer.U32(request.timeout_ms);
  writer.U32(request.pid);
  writer.Text(request.host, kMaxHostBytes);
  if (request.kind == RootRequest::Kind::kRegister) {
    writer.Address(request.contact.address);
  } else if (request.kind == RootRequest::Kind::kDecline) {
    writer.Text(request.why, kMaxRequestWhyBytes);
  } else {
    writer.U8(static_cast<uint8_t>(request.wanted.size()));
    for (const uint32_t rank : request.wanted) writer.U32(rank);
  }
  return std::move(writer).Take();
}

Result<RootRequest> ParseRootRequest(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  RootRequest request;
  const uint8_t kind = reader.U8();
  request.kind = static_cast<RootRequest::Kind>(kind);
  request.rank = reader.U32();
  request.num_ranks = reader.U32();
  request.num_roots = reader.U32();
  request.root_index = reader.U32();
  request.timeout_ms = reader.U32();
  request.pid = reader.U32();
  request.host = reader.Text();
  if (kind == static_cast<uint8_t>(RootRequest::Kind::kRegister)) {
    request.contact.address = reader.Address();
  } else if (kind == static_cast<uint8_t>(RootRequest::Kind::kDecline)) {
    request.why = reader.Text();
  } else {
    const size_t count = reader.U8();
    if (kind != static_cast<uint8_t>(RootRequest::Kind::kLookUp) || count > kMaxWanted) {
      return RemoteError("a request to a root is malformed");
    }
    for (size_t i = 0; i < count; ++i) request.wanted.push_back(reader.U32());
  }
  if (reader.failed() || !reader.AtEnd() || request.host.size() > kMaxHostBytes ||
      request.why.size() > kMaxRequestWhyBytes) {
    return RemoteError("a request to a root has the wrong length");
  }
  if (!Consistent(request)) return RemoteError("a request to a root contradicts itself");
  return request;
}

Bytes EncodeRootAnswer(const RootAnswer& answer) {
  WireWriter body;
  if (!answer.notice.empty()) {
    body.Sentence(answer.notice, kMaxSentenceBytes);
  } else if (answer.failure.ok()) {
    body.U32(static_cast<uint32_t>(answer.contacts.size()));
    for (const auto& [rank, contact] : answer.contacts) {
      body.U32(rank);
      WriteContact(body, contact);
    }
  } else {
    body.U32(static_cast<uint32_t>(answer.failure.code()));
    body.Sentence(answer.failure.message(), kMaxSentenceBytes);
  }
  WireWriter whole;
  whole.U32(!answer.notice.empty() ? kNotice : answer.failure.ok() ? kContacts : kFailure);
  whole.U32(static_cast<uint32_t>(body.size()));
  whole.Raw(std::move(body).Take());
  return std::move(whole).Take();
}

Result<uint32_t> ParseRootAnswerHeader(std::span<const std::byte> header, uint32_t* type) {
  WireReader reader(header);
  *type = reader.U32();
  const uint32_t size = reader.U32();
  if (reader.failed() || size > kMaxRootAnswerBytes) {
    return RemoteError("the root's answer is malformed");
  }
  return size;
}

Result<RootAnswer> ParseRootAnswer(uint32_t type, std::span<const std::byte> body) {
  WireReader reader(body);
  RootAnswer answer;
  if (type == kContacts) {
    constexpr size_t kEntryBytes = sizeof(uint32_t) + 24 + sizeof(Key);
    const size_t count = reader.U32();
    if (count * kEntryBytes != reader.remaining()) {
      return RemoteError("the root's list of contacts has the wrong length");
    }
    for (size_t i = 0; i < count; ++i) {
      const uint32_t rank = reader.U32();
      answer.contacts.emplace_back(rank, ReadContact(reader));
    }
  } else if (type == kFailure) {
    const uint32_t code = reader.U32();
    std::string text = reader.Sentence();
    if (code == 0 || code > static_cast<uint32_t>(Code::kTimeout)) {
      return RemoteError("the root's answer names no known failure");
    }
    answer.failure = Status(static_cast<Code>(code), std::move(text));
  } else if (type == kNotice) {
    answer.notice = reader.Sentence();
    if (answer.notice.empty()) return RemoteError("the root's notice is empty");
  } else {
    return RemoteError("the root's answer is of an unknown type");
  }
  if (reader.failed() || !reader.AtEnd()) {
    return RemoteError("the root's answer has the wrong length");
  }
  return answer;
}

}  // namespace tutti
