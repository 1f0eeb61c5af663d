#include "launch/pmi1.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/text.h"
#include "launch/hex.h"
#include "launch/share.h"
#include "sys/tcp.h"

namespace tutti::launch {
namespace {

// PMI-1 lines hold a key and a value of about a kilobyte each; a line of ten times their length is
// malformed.
constexpr size_t kMaxLine = 16384;
constexpr size_t kMaxValue = 8192;

Result<int> ParseInt(std::string_view name, std::string_view text) {
  if (const std::optional<int> value = WholeNumber<int>(text)) return *value;
  return RemoteError("the launcher sent {}={}, which is not a number", name, text);
}

}  // namespace

Pmi1Fields ParsePmi1Line(std::string_view line) {
  Pmi1Fields fields;
  while (!line.empty()) {
    const std::string_view field = NextItem(line, ' ');
    if (const size_t equals = field.find('='); equals != std::string_view::npos) {
      fields.emplace(field.substr(0, equals), field.substr(equals + 1));
    }
  }
  return fields;
}

Result<Pmi1Client> Pmi1Client::Connect(int fd, Deadline deadline) {
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoError(errno, fmt::format("PMI_FD={} names no open descriptor", fd));
  }
  return Start(UniqueFd(fd), deadline);
}

Result<Pmi1Client> Pmi1Client::Start(UniqueFd fd, Deadline deadline) {
  Pmi1Client client(std::move(fd));
  TUTTI_TRY(client.Introduce(deadline));
  return client;
}

Status Pmi1Client::Introduce(Deadline deadline) {
  TUTTI_TRY(Ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline).status());
  TUTTI_ASSIGN(Fields maxes, Ask("cmd=get_maxes", "maxes", deadline));
  TUTTI_ASSIGN(const int limit, ParseInt("vallen_max", maxes["vallen_max"]));
  if (limit < 64) return RemoteError("the launcher allows values of {} bytes only", limit);
  max_value_ =
      std::min(static_cast<size_t>(limit) - 1, kMaxValue);  // the limit counts a final zero byte
  TUTTI_ASSIGN(Fields name, Ask("cmd=get_my_kvsname", "my_kvsname", deadline));
  space_ = name["kvsname"];
  return {};
}

Status Pmi1Client::Put(std::string_view key, std::string_view value, Deadline deadline) {
  return Ask(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, value), "put_result",
             deadline)
      .status();
}

Status Pmi1Client::Barrier(Deadline deadline) {
  return Ask("cmd=barrier_in", "barrier_out", deadline).status();
}

Result<std::string> Pmi1Client::Get(std::string_view key, Deadline deadline) {
  TUTTI_ASSIGN(Fields answer,
               Ask(fmt::format("cmd=get kvsname={} key={}", space_, key), "get_result", deadline));
  return answer["value"];
}

Status Pmi1Client::Finalize(Deadline deadline) {
  return Ask("cmd=finalize", "finalize_ack", deadline).status();
}

Result<Pmi1Client::Fields> Pmi1Client::Ask(std::string line, std::string_view answer,
                                           Deadline deadline) {
  line += '\n';
  Status sent = SendAll(fd_.get(), std::as_bytes(std::span(line)), {deadline, nullptr});
  if (!sent.ok()) return std::move(sent).Annotate("talking PMI to the launcher");
  TUTTI_ASSIGN(Fields fields, ReadLine(deadline));
  if (fields["cmd"] != answer) {
    return RemoteError("the launcher answered '{}' where PMI says '{}'", fields["cmd"], answer);
  }
  if (const auto rc = fields.find("rc"); rc != fields.end() && rc->second != "0") {
    return RemoteError("the launcher refused '{}': {}", line.substr(0, line.find(' ')),
                       fields["msg"]);
  }
  return fields;
}

Result<Pmi1Client::Fields> Pmi1Client::ReadLine(Deadline deadline) {
  size_t end = 0;
  while ((end = pending_.find('\n')) == std::string::npos) {
    if (pending_.size() > kMaxLine) return RemoteError("the launcher sent a PMI line without end");
    char buffer[1024];
    pollfd entry{fd_.get(), POLLIN, 0};
    const int ready = poll(&entry, 1, deadline.RemainingMs(1000));
    if (ready <= 0) {
      if (deadline.Passed()) return Timeout("the launcher did not answer over PMI");
      continue;
    }
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got == 0) return RemoteError("the launcher closed its PMI connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR)
      return ErrnoError(errno, "reading from the launcher");
    if (got > 0) pending_.append(buffer, static_cast<size_t>(got));
  }
  Fields fields = ParsePmi1Line(std::string_view(pending_).substr(0, end));
  pending_.erase(0, end + 1);
  return fields;
}

// Shares over PMI-1, which bounds the length of a value: the text is cut into pieces, tutti-0,
// tutti-1, …; "tutti-n" is the number of pieces.
Result<std::string> ShareOverPmi(const LaunchInfo& info, std::string_view value,
                                 Deadline deadline) {
  TUTTI_ASSIGN(Pmi1Client client, Pmi1Client::Connect(info.pmi_fd, deadline));
  if (info.rank == 0) {
    const std::string hex = ToHex(value);
    // Half the limit: some launchers count key, value and command against the same line buffer.
    const size_t piece = std::max<size_t>(32, client.max_value() / 2);
    size_t pieces = 0;
    for (size_t at = 0; at < hex.size(); at += piece, ++pieces) {
      TUTTI_TRY(client.Put(fmt::format("tutti-{}", pieces), std::string_view(hex).substr(at, piece),
                           deadline));
    }
    TUTTI_TRY(client.Put("tutti-n", std::to_string(pieces), deadline));
  }
  TUTTI_TRY(client.Barrier(deadline));
  TUTTI_ASSIGN(const std::string count, client.Get("tutti-n", deadline));
  const size_t pieces = WholeNumber<size_t>(count).value_or(0);
  std::string hex;
  for (size_t i = 0; i < pieces && hex.size() <= 2 * kMaxSharedBytes; ++i) {
    TUTTI_ASSIGN(const std::string part, client.Get(fmt::format("tutti-{}", i), deadline));
    hex += part;
  }
  TUTTI_TRY(client.Barrier(deadline));
  TUTTI_TRY(client.Finalize(deadline));
  return FromHex(hex);
}

}  // namespace tutti::launch
