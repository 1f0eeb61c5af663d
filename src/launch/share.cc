#include "launch/share.h"

#include <algorithm>
#include <charconv>

#include "launch/hex.h"
#include "launch/pmi1.h"
#include "launch/pmix.h"

namespace tutti::launch {

Result<std::string> ShareOverPmix(const LaunchInfo& info, std::string_view value,
                                  Deadline deadline) {
  TUTTI_ASSIGN(PmixClient client, PmixClient::Connect());
  if (info.rank == 0) TUTTI_TRY(client.Put("tutti.value", ToHex(value)));
  TUTTI_TRY(client.Fence(deadline));
  TUTTI_ASSIGN(const std::string hex, client.Get(0, "tutti.value", deadline));
  // No process leaves before all have read, lest the launcher remove rank 0's values.
  TUTTI_TRY(client.Fence(deadline));
  return FromHex(hex);
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
  size_t pieces = 0;
  std::from_chars(count.data(), count.data() + count.size(), pieces);
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
