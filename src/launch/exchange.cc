#include "launch/exchange.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "launch/handshake.h"
#include "launch/pmi1.h"
#include "launch/pmix.h"

namespace tutti::launch {
namespace {

Result<std::string> OverPmix(const LaunchInfo& info, std::string_view value, Deadline deadline) {
  TUTTI_ASSIGN(PmixClient client, PmixClient::Connect());
  if (info.rank == 0) TUTTI_TRY(client.Put("tutti.value", ToHex(value)));
  TUTTI_TRY(client.Fence(deadline));
  TUTTI_ASSIGN(const std::string hex, client.Get(0, "tutti.value", deadline));
  // Nobody leaves before everybody has read, or the launcher might take rank 0's values away.
  TUTTI_TRY(client.Fence(deadline));
  return FromHex(hex);
}

// PMI-1 bounds the length of a value, so the text is cut into pieces: tutti-0, tutti-1, …;
// "tutti-n" counts them.
Result<std::string> OverPmi(const LaunchInfo& info, const Lookup& lookup, std::string_view value,
                            Deadline deadline) {
  TUTTI_ASSIGN(Pmi1Client client, Pmi1Client::Connect(lookup, deadline));
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
  size_t pieces = 0;
  std::from_chars(count.data(), count.data() + count.size(), pieces);
  std::string hex;
  for (size_t i = 0; i < pieces && hex.size() <= 2 * kMaxBroadcastBytes; ++i) {
    TUTTI_ASSIGN(const std::string part, client.Get(fmt::format("tutti-{}", i), deadline));
    hex += part;
  }
  TUTTI_TRY(client.Barrier(deadline));
  TUTTI_TRY(client.Finalize(deadline));
  return FromHex(hex);
}

Result<std::string> OverTcp(const LaunchInfo& info, std::string_view value, Deadline deadline) {
  const Key key =
      KeyFromText(fmt::format("tutti launch|{}|{}|{}", info.job, info.size, info.secret));
  if (info.rank != 0) {
    std::vector<Endpoint> endpoints;
    for (const uint16_t port : info.ports) endpoints.push_back({info.address, port});
    TUTTI_ASSIGN(const UniqueFd fd,
                 ConnectWithClaim(endpoints, key, {0, static_cast<uint32_t>(info.rank)}, deadline));
    return ReceiveMessage(fd.get(), kMaxBroadcastBytes, deadline);
  }
  uint16_t port = 0;
  TUTTI_ASSIGN(UniqueFd listener, Listen(info.ports, &port));
  std::vector<Claim> expected;
  for (int rank = 1; rank < info.size; ++rank) expected.push_back({0, static_cast<uint32_t>(rank)});
  TUTTI_ASSIGN(const std::vector<UniqueFd> peers,
               AcceptClaims(std::move(listener), key, expected, deadline));
  for (const UniqueFd& peer : peers) TUTTI_TRY(SendMessage(peer.get(), value, deadline));
  return std::string(value);
}

}  // namespace

Result<std::string> BroadcastFromRankZero(const LaunchInfo& info, const Lookup& lookup,
                                          std::string_view value, Deadline deadline) {
  if (value.size() > kMaxBroadcastBytes) {
    return InvalidArgument("{} bytes are too many to hand round at launch; the limit is {}",
                           value.size(), kMaxBroadcastBytes);
  }
  if (info.size == 1) return std::string(value);
  Result<std::string> received = [&]() -> Result<std::string> {
    switch (info.rendezvous) {
      case Rendezvous::kPmix:
        return OverPmix(info, value, deadline);
      case Rendezvous::kPmi:
        return OverPmi(info, lookup, value, deadline);
      case Rendezvous::kTcp:
        return OverTcp(info, value, deadline);
      case Rendezvous::kNone:
        break;
    }
    return InvalidUsage("this job's ranks have no way to meet");
  }();
  if (received.ok()) return received;
  return std::move(received).status().Annotate(
      fmt::format("rank {} of {}, meeting the other ranks over {}", info.rank, info.size,
                  Name(info.rendezvous)));
}

}  // namespace tutti::launch
